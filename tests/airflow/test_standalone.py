"""A whole Airflow with all its processes: what people and clocks do to a task reaches its TrainJob."""

from __future__ import annotations

import pathlib
import urllib.parse

import psutil
import pytest
from standalone import EXAMPLES, Task, a_running_airflow, tells_triggers, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_DAGS = pathlib.Path(__file__).with_name("standalone_dags.py")
_DIGITS = ("digits", "registry", "retraining", "ingest_digits", "retrain_digits", "retrain_digits_one_task")


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    files = [_DAGS, *(EXAMPLES / f"{name}.py" for name in _DIGITS)]
    with a_running_airflow(tmp_path_factory.mktemp("standalone"), files, dags=8) as running:
        yield running


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


@tells_triggers
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


@tells_triggers
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
