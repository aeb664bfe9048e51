"""A complete Airflow with all its processes, and a client of its REST API."""

from __future__ import annotations

import http
import http.client
import json
import pathlib
import random
import shutil
import threading
import urllib.error
import urllib.request
import uuid
from contextlib import contextmanager

import pytest
import tenacity
from airflow.triggers.base import BaseTrigger
from airflow_here import UNUSED_PORTS, AirflowHere

from trainer_core import LocalProcessBackendConfig, TrainerClient, TrainJobRef

EXAMPLES = pathlib.Path(__file__).parents[2] / "dags"


#: For tests of features that some versions of Airflow lack.
needs_trigger_on_kill = pytest.mark.skipif(
    not hasattr(BaseTrigger, "on_kill"), reason="Airflow before 3.3 does not call on_kill of a trigger"
)
_ENDED = {"success", "failed", "skipped", "upstream_failed", "removed"}


def until(condition):
    """Wait until a function returns a true value, and return it; limited by pytest's timeout."""
    pause = threading.Event()
    while not (found := condition()):
        # Requests are expensive for Airflow.
        pause.wait(0.3)
    return found


def _is_passing(error):
    """Return whether a retry can help: Airflow is starting or busy. A refusal is permanent."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR
    return isinstance(error, (OSError, http.client.HTTPException))


def _answer(request):
    # All processes share one SQLite file: while another process writes, the API server returns 500 or 503. A
    # longer lock timeout than the default of five seconds does not help: the lock owner may wait for this server.
    again = tenacity.Retrying(
        retry=tenacity.retry_if_exception(_is_passing),
        stop=tenacity.stop_after_delay(90),
        wait=tenacity.wait_fixed(0.5),
        reraise=True,
    )
    for attempt in again:
        with attempt:
            try:
                with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
                    return answer.read().decode()
            except urllib.error.HTTPError as error:
                error.close()  # Otherwise the garbage collector closes its socket during another test.
                if error.code == http.HTTPStatus.CONFLICT and attempt.retry_state.attempt_number > 1:
                    return ""  # The first request had taken effect, although its response was an error.
                raise
    raise AssertionError("unreachable")


class Airflow:
    """Client of a running Airflow's REST API."""

    def __init__(self, here, dags):
        self.here = here
        self.url = here.url
        self.home = here.folder
        self.client = TrainerClient(LocalProcessBackendConfig(home=here.jobs))
        self._token = None
        self._token = self.ask("GET", "/auth/token")["access_token"]
        until(lambda: self.ask("GET", "/api/v2/dags")["total_entries"] == dags)

    def ask(self, method, path, body=None):
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310 - our own server
        text = _answer(request)
        return json.loads(text) if text.startswith(("{", "[")) else text

    def start(self, dag, gate):
        run = f"by-a-test-{uuid.uuid4().hex[:12]}"
        body = {"dag_run_id": run, "logical_date": None, "conf": {"gate": str(gate)}}
        self.ask("POST", f"/api/v2/dags/{dag}/dagRuns", body)
        return Task(self, dag, run)

    def runs(self, dag, kind):
        return self.ask("GET", f"/api/v2/dags/{dag}/dagRuns?run_type={kind}")["dag_runs"]

    def end(self, run):
        self.ask("PATCH", f"/api/v2/dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}", {"state": "failed"})

    def causes(self, run):
        """Return the Assets that started a run, and the DAG that updated each of them."""
        path = f"/api/v2/dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}/upstreamAssetEvents"
        return [(event["name"], event["source_dag_id"]) for event in self.ask("GET", path)["asset_events"]]


class Task:
    """A task of one DAG run."""

    def __init__(self, airflow, dag, run, name="train"):
        self._airflow = airflow
        self._dag = dag
        self.run = run
        self._path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{name}"

    def instance(self):
        return self._airflow.ask("GET", self._path)

    def run_state(self):
        return self._airflow.ask("GET", f"/api/v2/dags/{self._dag}/dagRuns/{self.run}")["state"]

    def is_now(self, state):
        """Wait for a state; fail if the task has ended in another one."""
        found = until(lambda: (now := self.instance()["state"]) in {state, *_ENDED} and now)
        assert found == state, f"{found}: {self.log(self.instance()['try_number'])}"

    def xcom(self, key):
        return self._airflow.ask("GET", f"{self._path}/xcomEntries/{key}?deserialize=true")["value"]

    def submitted(self):
        """Wait for the task to submit its job; return the ref. Fail if the task has ended without one."""
        found = until(lambda: self.ref() or self.instance()["state"] in _ENDED)
        known = self.ref() if found is True else found
        assert known, self.log()
        return TrainJobRef.from_dict(known)

    def training(self):
        """Wait for the training to run; return its ref."""
        ref = self.submitted()
        seen = until(lambda: (now := self._airflow.client.observe(ref)).status != "Created" and now)
        assert seen.status == "Running", self.log()
        return ref

    def training_while_deferred(self):
        """Wait until the triggerer writes the job's log; return the ref."""
        self.is_now("deferred")
        ref = self.training()
        until(lambda: "training begins" in self.log())
        return ref

    def triggered(self):
        """Wait until the trigger of the task runs: Airflow does not call `on_kill` of one that has not begun."""
        self.is_now("deferred")
        until(lambda: (now := self.instance())["state"] == "deferred" and ") starting" in self.log(now["try_number"]))

    def log(self, attempt=1):
        """Return the log of one try; empty if it grew during the request, for which Airflow returns an error."""
        try:
            return json.dumps(self._airflow.ask("GET", f"{self._path}/logs/{attempt}?full_content=true"))
        except (OSError, http.client.HTTPException):
            return ""

    def mark(self, state):
        self._airflow.ask("PATCH", self._path, {"new_state": state})

    def clear(self):
        body = {"dry_run": False, "dag_run_id": self.run, "task_ids": ["train"], "only_failed": False}
        self._airflow.ask("POST", f"/api/v2/dags/{self._dag}/clearTaskInstances", body)

    def ref(self):
        """Return the ref of the job; None if the task has not pushed it."""
        try:
            return self.xcom("ref")
        except urllib.error.HTTPError:
            return None


def _settings(dags):
    """Settings that differ from `make airflow-up`."""
    return {
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        # Ten times the time that a busy machine needs to parse a file.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120",
        "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "180",
        # The DAG files do not change during the tests.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "180",
        # Seconds until a running task notices that it was ended.
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "False",
    }


@contextmanager
def a_running_airflow(home, files, dags, **environment):
    """Start an Airflow, wait until it is healthy, and stop it with all its TrainJobs at the end."""
    folder = home / "dags"
    folder.mkdir()
    for file in files:
        shutil.copy(file, folder)
    here = AirflowHere(home / "airflow", _settings(folder) | environment, ports=random.sample(UNUSED_PORTS, 3))
    try:
        with here:
            yield Airflow(here, dags)
            # Kill them: some processes take ten seconds to exit after SIGTERM.
            for leader in here._leaders.values():
                leader.kill()
    finally:
        client = TrainerClient(LocalProcessBackendConfig(home=here.jobs))
        for job in client.list_jobs():
            client.delete_job(job.name)
