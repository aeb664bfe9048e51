"""An Airflow task's TrainJob is tracked by a connection of type mlflow. A small server stands in for MLflow."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG, Connection
from patient_tracking import be_patient

from airflow_provider.hooks.mlflow import MlflowHook, _parse_connection
from airflow_provider.operators.promote import PromoteModelOperator
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from trainer_core import CustomTrainer
from trainer_core.testing.recorder import completes
from trainer_core.tracking import reporter as reporting


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
    deadline = time.monotonic() + 600
    while not Path(path).exists():
        assert time.monotonic() < deadline, "the progress did not arrive"
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    be_patient(monkeypatch)


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
    assert {each.partition(" ")[0] for each in mlflow.authorization} == {"Basic"}


@pytest.mark.parametrize("waits", ["operator", "sensor"])
def test_the_curve_of_a_deferred_task_arrives_while_its_job_runs(run_dag, mlflow, tmp_path, monkeypatch, waits):
    monkeypatch.setattr(reporting, "_INTERVAL_SECONDS", 0.05)
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


def test_a_model_that_another_training_overwrote_fails_the_promotion_by_name(
    trainjob_recorder, run_trainjob_task, tmp_path
):
    model = tmp_path / "model.bin"
    model.write_text("of lr=0.1")
    trainjob_recorder.script(completes({"accuracy": 0.9, "artifacts": {"model": model.as_uri()}}))
    train = TrainJobOperator(task_id="train", runtime="python", trainer=CustomTrainer(fit))
    ref = run_trainjob_task(train).xcoms["ref"]
    model.write_text("of lr=0.5")

    registry = str(tmp_path / "registry")
    promote = PromoteModelOperator(task_id="promote", job=ref, model="m", metric="accuracy", registry=registry)
    promoted = run_trainjob_task(promote)

    assert promoted.state == "failed"
    assert f"artifact 'model' of TrainJob '{ref['name']}': {model.as_uri()} was written again" in str(promoted.error)


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
