"""A whole Airflow with all its processes, and what tests ask of it by REST."""

from __future__ import annotations

import http
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
import tenacity
from airflow.triggers.base import BaseTrigger

from trainer_core import LocalProcessBackendConfig, TrainerClient, TrainJobRef

EXAMPLES = pathlib.Path(__file__).parents[2] / "dags"


#: For tests of what only some versions of Airflow can do.
tells_triggers = pytest.mark.skipif(
    not hasattr(BaseTrigger, "on_kill"), reason="before 3.3 Airflow tells a trigger nothing when somebody ends its task"
)
_ENDED = {"success", "failed", "skipped", "upstream_failed", "removed"}


def until(condition):
    """Wait for something to become true, and return it; pytest's timeout is the limit."""
    pause = threading.Event()
    while not (found := condition()):
        pause.wait(0.1)
    return found


def _is_passing(error):
    return isinstance(error, urllib.error.HTTPError) and error.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR


# One SQLite serves all of a test's Airflow: while another process writes, the api-server answers 500 or 503. A longer
# wait for the lock than the usual five seconds is no help: the api-server may be waiting for a request of its own.
@tenacity.retry(
    retry=tenacity.retry_if_exception(_is_passing),
    stop=tenacity.stop_after_delay(60),
    wait=tenacity.wait_fixed(0.5),
    reraise=True,
)
def _answer(request):
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        error.close()  # Its socket would be left to the garbage collector, in the middle of another test.
        raise


class Airflow:
    """A running Airflow, by its REST interface."""

    def __init__(self, home, port, dags):
        self.url = f"http://127.0.0.1:{port}"
        self._token = None
        self._dags = dags
        self.home = home
        self.client = TrainerClient(LocalProcessBackendConfig(home=home / "trainjob"))

    def healthy(self):
        try:
            self._token = self.ask("GET", "/auth/token")["access_token"]
            health = self.ask("GET", "/api/v2/monitor/health")
            dags = self.ask("GET", "/api/v2/dags")["dags"]
        except (OSError, urllib.error.URLError):
            return False
        parts = ("scheduler", "triggerer", "dag_processor")
        return len(dags) == self._dags and all(health[part]["status"] == "healthy" for part in parts)

    def ask(self, method, path, body=None):
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310 - our own server
        text = _answer(request)
        return json.loads(text) if text.startswith(("{", "[")) else text

    def start(self, dag, gate):
        body = {"logical_date": None, "conf": {"gate": str(gate)}}
        return Task(self, dag, self.ask("POST", f"/api/v2/dags/{dag}/dagRuns", body)["dag_run_id"])

    def runs(self, dag, kind):
        return self.ask("GET", f"/api/v2/dags/{dag}/dagRuns?run_type={kind}")["dag_runs"]

    def end(self, run):
        self.ask("PATCH", f"/api/v2/dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}", {"state": "failed"})

    def causes(self, run):
        """The Assets that started a run, and who made each of them new."""
        path = f"/api/v2/dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}/upstreamAssetEvents"
        return [(event["name"], event["source_dag_id"]) for event in self.ask("GET", path)["asset_events"]]


class Task:
    """A task of one DAG run."""

    def __init__(self, airflow, dag, run, name="train"):
        self._airflow = airflow
        self._dag = dag
        self._run = run
        self._path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{name}"

    def instance(self):
        return self._airflow.ask("GET", self._path)

    def is_now(self, state):
        """Wait for a state; a task that has ended in another one will not come to it."""
        until(lambda: (now := self.instance()["state"]) == state or now in _ENDED - {state})
        assert self.instance()["state"] == state, self.log()

    def xcom(self, key):
        return self._airflow.ask("GET", f"{self._path}/xcomEntries/{key}?deserialize=true")["value"]

    def submitted(self):
        """Wait for the job to exist; return its ref. A task that has ended submits none any more."""
        until(lambda: self.ref() or self.instance()["state"] in _ENDED)
        assert self.ref(), self.log()
        return TrainJobRef.from_dict(self.ref())

    def training(self):
        """Wait for the training to run; return its ref."""
        ref = self.submitted()
        until(lambda: self._airflow.client.observe(ref).status == "Running")
        return ref

    def training_while_deferred(self):
        """Wait until the triggerer follows the training: it shows the log then. Return its ref."""
        self.is_now("deferred")
        ref = self.training()
        until(lambda: "training begins" in self.log())
        return ref

    def log(self):
        """What the task has logged; nothing if that grew while Airflow sent it, which Airflow answers with an error."""
        try:
            return json.dumps(self._airflow.ask("GET", f"{self._path}/logs/1?full_content=true"))
        except urllib.error.HTTPError:
            return ""

    def mark(self, state):
        self._airflow.ask("PATCH", self._path, {"new_state": state})

    def clear(self):
        body = {"dry_run": False, "dag_run_id": self._run, "task_ids": ["train"], "only_failed": False}
        self._airflow.ask("POST", f"/api/v2/dags/{self._dag}/clearTaskInstances", body)

    def ref(self):
        """Where the job is, None as long as that is not known."""
        try:
            return self.xcom("ref")
        except urllib.error.HTTPError:
            return None


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def settings(home, port):
    """The environment of an Airflow of its own, quick and without network."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    return clean | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        # The api-server loads what answers tasks when the first one asks, for half a minute on a busy machine.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "TRAINJOB_HOME": str(home / "trainjob"),
        "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]),
        "NO_PROXY": "localhost,127.0.0.1",
        "no_proxy": "localhost,127.0.0.1",
    }


@contextmanager
def a_running_airflow(home, files, dags, **environment):
    """Start an Airflow; it is healthy, and ends with all its TrainJobs.

    Args:
        home: Its folder.
        files: Its DAG files and what they import.
        dags: How many DAGs are in them.
        environment: Of its processes.
    """
    (home / "dags").mkdir()
    for file in files:
        shutil.copy(file, home / "dags")
    port = free_port()
    command = [sys.executable, "-m", "airflow", "standalone"]
    with (home / "output.log").open("w") as output:
        process = subprocess.Popen(
            command,
            env=settings(home, port) | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    running = Airflow(home, port, dags)
    try:
        until(lambda: process.poll() is not None or running.healthy())
        assert process.poll() is None, (home / "output.log").read_text()[-3000:]
        yield running
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(120)
        for job in running.client.list_jobs():
            running.client.delete_job(job.name)
