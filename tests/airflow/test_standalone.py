"""A whole Airflow with all its processes: what people and clocks do to a task reaches its TrainJob."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import sys
import urllib.parse
from contextlib import closing, suppress

import psutil
import pytest
from airflow_here import QUIET_PORTS
from standalone import EXAMPLES, Task, a_running_airflow, tells_triggers, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_DAGS = pathlib.Path(__file__).with_name("standalone_dags.py")
_DIGITS = ("digits", "registry", "retraining", "ingest_digits", "retrain_digits", "retrain_digits_one_task")
#: Seconds without a heartbeat after which a triggerer's triggers are given to another.
_QUICKLY = {"AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "8"}


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    files = [_DAGS, *(EXAMPLES / f"{name}.py" for name in _DIGITS)]
    with a_running_airflow(tmp_path_factory.mktemp("standalone"), files, dags=8, **_QUICKLY) as running:
        yield running


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


def why_it_ended(airflow, ref):
    return until(lambda: airflow.client.observe(ref).outcome).diagnosis.reason


def test_a_deferred_task_returns_the_result_and_shows_the_log_of_the_training(airflow, gate):
    task = airflow.start("deferred", gate)
    task.training_while_deferred()
    gate.touch()
    task.is_now("success")
    assert task.xcom("return_value") == {"accuracy": 0.97}
    assert task.xcom("metrics") == {"accuracy": 0.97}


def begun(airflow, dag, gate):
    """A task whose training runs, and its ref; the triggerer of a deferred one follows it."""
    task = airflow.start(dag, gate)
    return task, task.training_while_deferred() if dag == "deferred" else task.training()


@pytest.mark.parametrize("state", ["failed", "success"])
@pytest.mark.parametrize("dag", [pytest.param("deferred", marks=tells_triggers), "waiting"])
def test_marking_a_task_ends_its_job(airflow, gate, dag, state):
    task, ref = begun(airflow, dag, gate)
    task.mark(state)
    assert why_it_ended(airflow, ref) == "it was cancelled"


@pytest.mark.parametrize("state", ["failed", "success"])
@pytest.mark.parametrize("dag", [pytest.param("deferred", marks=tells_triggers), "waiting"])
def test_ending_the_run_of_a_task_ends_its_job(airflow, gate, dag, state):
    task, ref = begun(airflow, dag, gate)
    airflow.ask("PATCH", f"/api/v2/dags/{dag}/dagRuns/{task.run}", {"state": state})
    assert why_it_ended(airflow, ref) == "it was cancelled"


def has_begun_long_ago(airflow, task):
    """Set back when the run of a task began."""
    database = airflow.here.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].removeprefix("sqlite:///")
    with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        began = "UPDATE dag_run SET start_date = '2001-01-01 00:00:00.000000' WHERE run_id = ?"
        assert connection.execute(began, [task.run]).rowcount == 1


@tells_triggers
def test_a_dag_run_that_times_out_ends_the_job_of_a_deferred_task(airflow, gate):
    task = airflow.start("run_out_of_time", gate)
    ref = task.training_while_deferred()
    has_begun_long_ago(airflow, task)
    assert why_it_ended(airflow, ref) == "it was cancelled"


def test_a_deferred_task_that_times_out_fails_and_ends_its_job(airflow, gate):
    task = airflow.start("out_of_time", gate)
    assert why_it_ended(airflow, task.submitted()) == "it was cancelled"
    task.is_now("failed")


def test_a_job_to_be_kept_outlives_its_task(airflow, gate):
    task = airflow.start("kept", gate)
    ref = task.training_while_deferred()
    task.mark("failed")
    task.is_now("failed")
    gate.touch()
    assert until(lambda: airflow.client.observe(ref).outcome).result == {"accuracy": 0.97}


def test_clearing_a_deferred_task_ends_its_job_and_starts_another(airflow, gate):
    task = airflow.start("deferred", gate)
    first = task.training_while_deferred()
    task.clear()
    assert why_it_ended(airflow, first) == "it was cancelled"
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
    nightly, *_ = until(lambda: airflow.runs("retrain_digits", "scheduled"))
    airflow.end(nightly)
    airflow.start("ingest_digits", gate)
    (run,) = until(lambda: airflow.runs("retrain_digits", "asset_triggered"))
    initialize = Task(airflow, "retrain_digits", run["dag_run_id"], "initialize")
    initialize.is_now("success")
    airflow.end(run)
    dataset = urllib.parse.urlsplit(initialize.xcom("return_value")["dataset"])
    assert pathlib.Path(dataset.path, "digits.npz").is_file()
    assert airflow.causes(run) == [("digits-dataset", "ingest_digits")]


# Two triggerers: what moves between them goes on, and what a person ends is ended.


@pytest.fixture
def second_triggerer(airflow):
    """Start one when the test wants it."""
    started = []

    def start():
        (port,) = random.sample(QUIET_PORTS, 1)
        environment = airflow.here.environment | {"AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(port)}
        with (airflow.home / "second.log").open("w") as output:
            command = [sys.executable, "-m", "airflow", "triggerer"]
            started.append(
                subprocess.Popen(
                    command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
            )
        return started[0]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def suspended():
    """Suspend processes; they go on at the end of the test in any case: what is suspended cannot even be ended."""
    held = []

    def suspend(processes):
        held.extend(processes)
        for process in processes:
            process.suspend()

    yield suspend
    for process in held:
        with suppress(psutil.NoSuchProcess):
            process.resume()


def first_triggerer(airflow):
    """The processes of the triggerer that Airflow has had from the beginning."""
    leader = psutil.Process(airflow.here._leaders["triggerer"].pid)
    return [leader, *leader.children(recursive=True)]


def triggerer_of(task):
    """The number of the triggerer that waits for a task, None between two."""
    return (task.instance().get("triggerer_job") or {}).get("id")


def moved_from(task, before):
    """Wait for another triggerer to have the task; return its number."""
    return until(lambda: (now := triggerer_of(task)) != before and now)


def goes_on(airflow, ref):
    return airflow.client.observe(ref).outcome is None


@tells_triggers
def test_a_task_that_moves_between_triggerers_keeps_its_job(airflow, gate, second_triggerer, suspended):
    task = airflow.start("deferred", gate)
    ref = task.training_while_deferred()
    one, processes = until(lambda: triggerer_of(task)), first_triggerer(airflow)
    another = second_triggerer()
    suspended(processes)
    two = moved_from(task, one)
    for process in processes:
        process.resume()
    # The first one now ends the trigger with the very reason that it has for a person who ends a task.
    until(lambda: "cancelled by user action" in task.log() + airflow.here.log_of("triggerer").read_text())
    assert goes_on(airflow, ref)
    os.kill(another.pid, signal.SIGTERM)
    moved_from(task, two)
    assert goes_on(airflow, ref)
    gate.touch()
    task.is_now("success")
    assert task.xcom("return_value") == {"accuracy": 0.97}
