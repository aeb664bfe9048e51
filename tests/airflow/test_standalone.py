"""A whole Airflow with all its processes: what people and clocks do to a task reaches its TrainJob."""

from __future__ import annotations

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
import urllib.parse
import urllib.request

import psutil
import pytest

from trainer_core import LocalProcessBackendConfig, TrainerClient, TrainJobRef

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_DAGS = pathlib.Path(__file__).with_name("standalone_dags.py")
_EXAMPLES = pathlib.Path(__file__).parents[2] / "dags"


def until(condition):
    """Wait for something to become true, and return it; pytest's timeout is the limit."""
    pause = threading.Event()
    while not (found := condition()):
        pause.wait(0.1)
    return found


class Airflow:
    """A running Airflow, by its REST interface."""

    def __init__(self, home, port):
        self._url = f"http://127.0.0.1:{port}"
        self._token = None
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
        return len(dags) == 8 and all(health[part]["status"] == "healthy" for part in parts)

    def ask(self, method, path, body=None):
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)  # noqa: S310 - our own server
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            text = answer.read().decode()
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
        return until(lambda: self.instance()["state"] == state)

    def xcom(self, key):
        return self._airflow.ask("GET", f"{self._path}/xcomEntries/{key}?deserialize=true")["value"]

    def submitted(self):
        """Wait for the job to exist; return its ref."""
        return TrainJobRef.from_dict(until(self.ref))

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


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    home = tmp_path_factory.mktemp("standalone")
    shutil.copytree(_EXAMPLES, home / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(_DAGS, home / "dags")
    port = free_port()
    command = [sys.executable, "-m", "airflow", "standalone"]
    with (home / "output.log").open("w") as output:
        process = subprocess.Popen(
            command, env=settings(home, port), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    running = Airflow(home, port)
    try:
        until(lambda: process.poll() is not None or running.healthy())
        assert process.poll() is None, (home / "output.log").read_text()[-3000:]
        yield running
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
        for job in running.client.list_jobs():
            running.client.delete_job(job.name)


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


def ended(airflow, ref):
    return until(lambda: airflow.client.observe(ref).outcome)


def test_a_deferred_task_returns_the_result_and_shows_the_log_of_the_training(airflow, gate):
    task = airflow.start("deferred", gate)
    task.training_while_deferred()
    gate.touch()
    task.is_now("success")
    assert task.xcom("return_value") == {"accuracy": 0.97}
    assert task.xcom("metrics") == {"accuracy": 0.97}


@pytest.mark.parametrize("state", ["failed", "success"])
def test_marking_a_deferred_task_ends_its_job(airflow, gate, state):
    task = airflow.start("deferred", gate)
    ref = task.training_while_deferred()
    task.mark(state)
    assert ended(airflow, ref).diagnosis.reason == "it was cancelled"


def test_marking_a_running_task_ends_its_job(airflow, gate):
    task = airflow.start("waiting", gate)
    ref = task.training()
    task.mark("failed")
    assert ended(airflow, ref).diagnosis.reason == "it was cancelled"


def test_a_dag_run_that_times_out_ends_the_job_of_a_deferred_task(airflow, gate):
    task = airflow.start("run_out_of_time", gate)
    assert ended(airflow, task.submitted()).diagnosis.reason == "it was cancelled"


def test_a_deferred_task_that_times_out_fails_and_ends_its_job(airflow, gate):
    task = airflow.start("out_of_time", gate)
    assert ended(airflow, task.submitted()).diagnosis.reason == "it was cancelled"
    task.is_now("failed")


def test_a_job_to_be_kept_outlives_its_task(airflow, gate):
    task = airflow.start("kept", gate)
    ref = task.training_while_deferred()
    task.mark("failed")
    task.is_now("failed")
    gate.touch()
    assert ended(airflow, ref).result == {"accuracy": 0.97}


def test_clearing_a_deferred_task_ends_its_job_and_starts_another(airflow, gate):
    task = airflow.start("deferred", gate)
    first = task.training_while_deferred()
    task.clear()
    assert ended(airflow, first).diagnosis.reason == "it was cancelled"
    until(lambda: task.ref() not in (None, first.to_dict()))
    second = task.training()
    gate.touch()
    task.is_now("success")
    assert airflow.client.outcome(second).status == "Complete"


def process_of(task):
    """The process in which Airflow runs a task, by the title Airflow gives it."""
    title = f"airflow worker -- {task.instance()['id']}"
    return next(
        process for process in psutil.process_iter(["cmdline"]) if title in " ".join(process.info["cmdline"] or ())
    )


def test_a_killed_worker_leaves_the_job_to_the_retry(airflow, gate):
    task = airflow.start("waiting", gate)
    ref = task.training()
    process_of(task).kill()
    until(lambda: task.instance()["try_number"] == 2)
    gate.touch()
    task.is_now("success")
    assert task.ref() == ref.to_dict()
    assert task.xcom("return_value") == {"accuracy": 0.97}


def test_a_new_dataset_starts_the_retraining_which_fetches_it(airflow, gate):
    pytest.importorskip("sklearn")
    (nightly,) = until(lambda: airflow.runs("retrain_digits", "scheduled"))
    airflow.end(nightly)
    airflow.start("ingest_digits", gate)
    (run,) = until(lambda: airflow.runs("retrain_digits", "asset_triggered"))
    initialize = Task(airflow, "retrain_digits", run["dag_run_id"], "initialize")
    initialize.is_now("success")
    airflow.end(run)
    dataset = urllib.parse.urlsplit(initialize.xcom("return_value")["dataset"])
    assert pathlib.Path(dataset.path, "digits.npz").is_file()
    assert airflow.causes(run) == [("digits-dataset", "ingest_digits")]
