"""An Airflow task's TrainJob is tracked by a connection of type mlflow. A small server stands in for MLflow."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from airflow.sdk import DAG, Connection
from patient_tracking import be_patient

from airflow_provider.hooks.mlflow import MlflowHook, _parse_connection
from airflow_provider.operators.promote import PromoteModelOperator
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from trainer_core import CustomTrainer
from trainer_core.tracking import progress_sender


def fit():
    from trainer_core import output_path

    path = output_path() / "model.bin"
    path.write_text("weights")
    return {"accuracy": 0.9, "artifacts": {"model": path.as_uri()}}


def fail():
    raise ValueError("the key is s3cr3t-word")


def fit_until(path: str):
    """Report progress, and train on until a file exists."""
    import time
    from pathlib import Path

    from trainer_core import progress

    progress(step=1, metrics={"loss": 0.5})
    deadline = time.monotonic() + 60
    while not Path(path).exists():
        assert time.monotonic() < deadline, "the progress did not arrive"
        time.sleep(0.05)


class Mlflow:
    """What the tests need of an MLflow server: it keeps the last status, the tags and the metrics of one run.

    Attributes:
        arrived: File that is created when the first point arrives.
    """

    def __init__(self):
        self.tags, self.status, self.authorization = {}, "RUNNING", set()
        self.metrics, self.arrived = {}, None

    def answer(self, path, body):
        for each in body.get("metrics", ()):
            self.metrics.setdefault(each["key"], set()).add((each["step"], each["value"], each["timestamp"]))
            if self.arrived is not None:
                self.arrived.touch()
        for each in body.get("tags", ()):
            self.tags[each["key"]] = each["value"]
        self.status = body.get("status", self.status)
        info = {"run_id": "run-1", "experiment_id": "7", "status": self.status, "lifecycle_stage": "active"}
        data = {"tags": [{"key": key, "value": value} for key, value in self.tags.items()]}
        answers = {
            "experiments/get-by-name": {"experiment": {"experiment_id": "7"}},
            "runs/search": {},
            "runs/create": {"run": {"info": info}},
            "runs/get": {"run": {"info": info, "data": data}},
        }
        return answers.get(path.partition("?")[0].removeprefix("/api/2.0/mlflow/"), {})


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    be_patient(monkeypatch)


@pytest.fixture
def mlflow(monkeypatch):
    server = Mlflow()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            server.authorization.add(self.headers.get("Authorization"))
            text = json.dumps(server.answer(self.path, body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST  # noqa: N815 -- http.server's name

        def log_message(self, *_):
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    uri = {"conn_type": "mlflow", "host": "http://127.0.0.1", "port": listening.server_address[1]}
    extra = {"ui_url": "https://ui.example"}
    connection = {**uri, "login": "ada", "password": "s3cr3t-word", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW_DEFAULT", json.dumps(connection))
    yield server
    listening.shutdown()
    listening.server_close()
    thread.join()


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_task_is_one_run_with_its_tags_link_and_id(run_dag, xcom, mlflow, deferrable):
    with DAG("tracked") as dag:
        TrainJobOperator(task_id="train", runtime="python", trainer=CustomTrainer(fit), deferrable=deferrable)

    run = run_dag(dag)

    assert (run.state, mlflow.status) == ("success", "FINISHED")
    assert mlflow.tags["airflow.task_id"] == "train"
    assert mlflow.tags["trainjob.status"] == "Complete"
    assert xcom(run, "train", "mlflow_run_id") == "run-1"
    assert xcom(run, "train", "trainjob_mlflow_link") == "https://ui.example/#/experiments/7/runs/run-1"
    assert all(each.startswith("Basic ") for each in mlflow.authorization)


@pytest.mark.parametrize("waits", ["operator", "sensor"])
def test_the_curve_of_a_deferred_task_arrives_while_its_job_runs(run_dag, mlflow, tmp_path, monkeypatch, waits):
    monkeypatch.setattr(progress_sender, "_INTERVAL_SECONDS", 0.05)
    mlflow.arrived = tmp_path / "arrived"
    with DAG("tracked") as dag:
        trainer = CustomTrainer(fit_until, func_args={"path": str(mlflow.arrived)})
        is_deferred = waits == "operator"
        train = TrainJobOperator(
            task_id="train", runtime="python", trainer=trainer, deferrable=True, wait_for_completion=is_deferred
        )
        if not is_deferred:
            TrainJobSensor(task_id="wait", job=train.output["ref"], deferrable=True)

    run = run_dag(dag)

    assert (run.state, mlflow.status) == ("success", "FINISHED")
    assert [(step, value) for step, value, _ in mlflow.metrics["loss"]] == [(1, 0.5)]


def test_a_failed_task_ends_its_run_with_a_masked_diagnosis(run_dag, mlflow):
    with DAG("tracked") as dag:
        TrainJobOperator(task_id="train", runtime="python", trainer=CustomTrainer(fail))

    run = run_dag(dag)

    assert (run.state, mlflow.status) == ("failed", "FAILED")
    assert "the key is ***" in mlflow.tags["trainjob.diagnosis"]


def test_a_model_is_promoted_once_and_again_with_the_same_answer(run_dag, xcom, tmp_path):
    with DAG("tracked") as dag:
        train = TrainJobOperator(task_id="train", runtime="python", trainer=CustomTrainer(fit))
        for task_id in ("first", "second"):
            PromoteModelOperator(
                task_id=task_id,
                job=train.output["ref"],
                model="digits",
                metric="accuracy",
                registry=str(tmp_path / "registry"),
            )

    run = run_dag(dag)

    assert run.state == "success"
    assert xcom(run, "first", "return_value")["promoted"]
    assert xcom(run, "second", "return_value") == xcom(run, "first", "return_value")
    assert xcom(run, "first", "model_version") == xcom(run, "train", "ref")["name"]


def test_a_connection_of_another_provider_is_read_and_an_unknown_field_is_refused():
    other = Connection(
        conn_id="mlflow", conn_type="http", host="mlflow.example", schema="https", login="a", password="b"
    )
    wrong = Connection(conn_id="mlflow", conn_type="mlflow", host="mlflow.example", extra='{"tokn": "x"}')

    assert _parse_connection(other, "mlflow").uri == "https://mlflow.example"
    with pytest.raises(ValueError, match="unknown field tokn"):
        _parse_connection(wrong, "mlflow")


def test_without_the_default_connection_nothing_is_tracked():
    assert MlflowHook().get_server() is None
