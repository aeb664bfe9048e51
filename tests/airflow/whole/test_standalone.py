"""A complete Airflow: effects of users and timeouts on TrainJobs, and runs of the examples."""

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
from functools import partial

import psutil
import pytest
from airflow_here import UNUSED_PORTS
from optional_packages import requires
from standalone import Task, needs_trigger_on_kill, until

from trainer_core import TrainJobRef

# A whole Airflow starts.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


def why_it_ended(airflow, ref):
    return until(lambda: airflow.client.observe(ref).outcome).diagnosis.reason


def test_a_deferred_task_returns_the_result_and_writes_the_log(airflow, gate):
    task = airflow.start("deferred", gate)
    task.training_while_deferred()
    gate.touch()
    task.is_now("success")
    assert task.xcom("return_value") == {"accuracy": 0.97}
    assert task.xcom("metrics") == {"accuracy": 0.97}


def begun(airflow, dag, gate):
    """Start a task and wait until its training runs; return task and ref."""
    task = airflow.start(dag, gate)
    return task, task.training_while_deferred() if dag == "deferred" else task.training()


@pytest.mark.parametrize("state", ["failed", "success"])
@pytest.mark.parametrize("dag", [pytest.param("deferred", marks=needs_trigger_on_kill), "waiting"])
def test_marking_a_task_cancels_its_job(airflow, gate, dag, state):
    task, ref = begun(airflow, dag, gate)
    task.mark(state)
    assert why_it_ended(airflow, ref) == "it was cancelled"


@pytest.mark.parametrize("state", ["failed", "success"])
@pytest.mark.parametrize("dag", [pytest.param("deferred", marks=needs_trigger_on_kill), "waiting"])
def test_failing_the_dag_run_cancels_the_job(airflow, gate, dag, state):
    task, ref = begun(airflow, dag, gate)
    airflow.ask("PATCH", f"/api/v2/dags/{dag}/dagRuns/{task.run}", {"state": state})
    assert why_it_ended(airflow, ref) == "it was cancelled"


def has_begun_long_ago(airflow, task):
    """Change the start time of a task's DAG run to the past."""
    database = airflow.here.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].removeprefix("sqlite:///")
    with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        began = "UPDATE dag_run SET start_date = '2001-01-01 00:00:00.000000' WHERE run_id = ?"
        assert connection.execute(began, [task.run]).rowcount == 1


@needs_trigger_on_kill
def test_a_dag_run_timeout_cancels_the_job_of_a_deferred_task(airflow, gate):
    task = airflow.start("run_out_of_time", gate)
    ref = task.training_while_deferred()
    has_begun_long_ago(airflow, task)
    assert why_it_ended(airflow, ref) == "it was cancelled"


def test_a_deferred_task_that_times_out_fails_and_cancels_its_job(airflow, gate):
    task = airflow.start("out_of_time", gate)
    assert why_it_ended(airflow, task.submitted()) == "it was cancelled"
    task.is_now("failed")


def test_a_job_with_on_kill_keep_outlives_its_task(airflow, gate):
    task = airflow.start("kept", gate)
    ref = task.training_while_deferred()
    task.mark("failed")
    task.is_now("failed")
    gate.touch()
    assert until(lambda: airflow.client.observe(ref).outcome).result == {"accuracy": 0.97}


def test_clearing_a_deferred_task_cancels_its_job_and_starts_another(airflow, gate):
    # With a retry: on SQLite the new trigger can get the id of the old one, whose event then ends the deferral at once.
    # Airflow's scheduler takes a task that was deferred for less than a second for one that failed.
    task = airflow.start("cleared", gate)
    first = task.training_while_deferred()
    task.clear()
    assert why_it_ended(airflow, first) == "it was cancelled"
    until(lambda: task.ref() not in (None, first.to_dict()))
    task.training()
    gate.touch()
    task.is_now("success")
    assert airflow.client.get_job_outcome(TrainJobRef.from_dict(task.ref())).status == "Complete"


@needs_trigger_on_kill
def test_a_cleared_task_that_asks_continues_its_job(airflow, gate):
    task = airflow.start("asked", gate)
    first = task.training_while_deferred()
    task.clear()
    until(lambda: task.instance()["try_number"] > 1)
    task.triggered()
    gate.touch()
    task.is_now("success")
    assert task.ref() == first.to_dict()
    assert [(generation, status) for _, generation, status in list_trials(airflow, task)] == [("1", "Complete")]


def list_trials(airflow, task):
    """Return name, generation and status of the trials of a task."""
    read = airflow.client.get_job_request
    jobs = [(job, read(job.name).context.owner) for job in airflow.client.list_jobs()]
    return [(job.name, owner.generation, job.status) for job, owner in jobs if f"/{task.run}/" in owner.key]


def running_trials(airflow, task, generation):
    """Wait until two trials of a generation run, and no other trial; return their names."""

    def find():
        alive = [trial for trial in list_trials(airflow, task) if trial[2] in ("Created", "Running")]
        names = [name for name, *of in alive if of == [generation, "Running"]]
        return names if len(alive) == len(names) == 2 else []

    return until(find)


@needs_trigger_on_kill
def test_clearing_a_search_starts_another_and_marking_it_failed_ends_its_trials(airflow, gate):
    task = airflow.start("searching", gate)
    first = running_trials(airflow, task, "1")
    task.triggered()
    task.clear()
    second = running_trials(airflow, task, "2")
    assert {why_it_ended(airflow, name) for name in first} == {"it was cancelled"}
    task.triggered()
    task.mark("failed")
    assert {why_it_ended(airflow, name) for name in second} == {"it was cancelled"}
    assert len(list_trials(airflow, task)) == 4


def process_of(task):
    """Return the process of a task, found by its title."""
    title = f"airflow worker -- {task.instance()['id']}"
    return next(
        process for process in psutil.process_iter(["cmdline"]) if title in " ".join(process.info["cmdline"] or ())
    )


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_retry_attaches_to_the_job_of_a_worker_that_was_killed_or_stopped(airflow, gate, end):
    task = airflow.start("waiting", gate)
    ref = task.training()
    process_of(task).send_signal(end)
    until(lambda: task.instance()["try_number"] == 2)
    gate.touch()
    task.is_now("success")
    assert task.ref() == ref.to_dict()
    assert task.xcom("return_value") == {"accuracy": 0.97}


@requires("sklearn")
def test_a_new_dataset_starts_the_retraining_and_is_downloaded(airflow, gate):
    nightly, *_ = started(airflow, "retrain_digits", "scheduled")
    airflow.end(nightly)
    airflow.start("ingest_digits", gate)
    (run,) = started(airflow, "retrain_digits", "asset_triggered")
    initialize = Task(airflow, "retrain_digits", run["dag_run_id"], "initialize")
    initialize.is_now("success")
    airflow.end(run)
    dataset = urllib.parse.urlsplit(initialize.xcom("return_value")["dataset"])
    assert pathlib.Path(dataset.path, "digits.npz").is_file()
    assert airflow.causes(run) == [("digits-dataset", "ingest_digits")]


# The examples.


def started(airflow, dag, kind, number=1):
    """Wait until a DAG has this number of runs; return them."""
    return until(lambda: len(runs := airflow.runs(dag, kind)) >= number and runs)


def promotion(airflow, candidate):
    """Wait for the evaluation run of a DAG's candidate; return its last task."""
    gates = partial(airflow.runs, "promote_forecast", "asset_triggered")
    gated = until(
        lambda: next((run for run in gates() if ("energy-candidate", candidate) in airflow.causes(run)), None)
    )
    return Task(airflow, "promote_forecast", gated["dag_run_id"], "promote")


def test_a_drift_event_trains_a_candidate_that_is_evaluated(airflow, drift):
    # Airflow can combine two candidates of the same time into one run; the scheduled one may come at any time.
    nightly, *_ = started(airflow, "nightly_forecast", "scheduled")
    promotion(airflow, "nightly_forecast").is_now("success")
    drift.write_text("{}")
    (run,) = started(airflow, "retrain_on_drift", "asset_triggered")
    first, second = (Task(airflow, each["dag_id"], each["dag_run_id"]) for each in (nightly, run))
    second.is_now("success")
    # The errors of two runs are random, so either model can be better.
    is_better = second.xcom("metrics")["error"] < first.xcom("metrics")["error"]
    promotion(airflow, "retrain_on_drift").is_now({True: "success", False: "skipped"}[is_better])

    assert not drift.exists()
    assert airflow.causes(run) == [("energy-drift", None)]


def test_a_backfill_trains_each_past_day_once(airflow):
    body = {"dag_id": "nightly_forecast", "from_date": "2026-02-01T00:00:00Z", "to_date": "2026-02-03T00:00:00Z"}
    airflow.ask("POST", "/api/v2/backfills", {**body, "max_active_runs": 2, "dag_run_conf": {}})
    runs = started(airflow, "nightly_forecast", "backfill", 2)
    tasks = [Task(airflow, "nightly_forecast", run["dag_run_id"]) for run in runs]
    for task in tasks:
        task.is_now("success")

    days = {task.xcom("return_value")["day"] for task in tasks}
    names = {task.ref()["name"] for task in tasks}
    assert days == {"2026-01-31", "2026-02-01"}
    assert len(names) == len(tasks)


@needs_trigger_on_kill
def test_a_backfill_of_partitions_trains_each_once_with_its_key_and_the_trace_of_its_task(airflow):
    body = {"dag_id": "forecast_of_each_day", "from_date": "2026-02-01T00:00:00Z", "to_date": "2026-02-02T23:00:00Z"}
    airflow.ask("POST", "/api/v2/backfills", {**body, "max_active_runs": 2, "dag_run_conf": {}})
    runs = started(airflow, "forecast_of_each_day", "backfill", 2)
    for run in runs:
        until(lambda each=run: Task(airflow, each["dag_id"], each["dag_run_id"]).run_state() == "success")

    jobs = [job for run in runs for job in airflow.client.list_jobs(partition=run["partition_key"])]
    assert [job.partition for job in jobs] == [run["partition_key"] for run in runs]
    assert {job.partition for job in jobs} == {"2026-02-01", "2026-02-02"}
    assert all(airflow.client.get_job_request(job.name).context.traceparent for job in jobs)


def asked(airflow):
    """Start the DAG that needs approval; return the question and the promotion task."""
    run = airflow.start("approve_forecast", "").run
    path = f"/api/v2/dags/approve_forecast/dagRuns/{run}/taskInstances/approve/-1/hitlDetails"
    noted = f"TaskInstance Finished: dag_id=approve_forecast, task_id=approve, run_id={run}"

    def question():
        train = Task(airflow, "approve_forecast", run).instance()["state"]
        waits = Task(airflow, "approve_forecast", run, "approve").instance()["state"]
        # Airflow 3.3.2 asks again if the answer arrives before the scheduler has recorded the question.
        known = train == "success" and noted in airflow.here.get_log_file("scheduler").read_text()
        return known and waits in ("awaiting_input", "deferred") and airflow.ask("GET", path)

    return until(question), path, Task(airflow, "approve_forecast", run, "promote")


@pytest.mark.parametrize(("answer", "became"), [("Approve", "success"), ("Reject", "skipped")])
def test_an_approval_task_shows_the_metrics(airflow, answer, became):
    question, path, promote = asked(airflow)
    airflow.ask("PATCH", path, {"chosen_options": [answer], "params_input": {}})
    promote.is_now(became)

    assert question["body"].startswith("Error: **0.")
    assert "forecast.json" in question["body"]


# Two triggerers.


@pytest.fixture
def second_triggerer(airflow):
    """Start a second triggerer when the test calls the function."""
    started = []

    def start():
        (port,) = random.sample(UNUSED_PORTS, 1)
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
    """Suspend processes with SIGSTOP; resume them after the test, because suspended processes ignore SIGTERM."""
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
    """Processes of Airflow's first triggerer."""
    leader = psutil.Process(airflow.here._leaders["triggerer"].pid)
    return [leader, *leader.children(recursive=True)]


def triggerer_of(task):
    """Return the id of the triggerer of a task; None while it has none."""
    return (task.instance().get("triggerer_job") or {}).get("id")


def moved_from(task, before):
    """Wait until the task has another triggerer; return its id."""
    return until(lambda: (now := triggerer_of(task)) != before and now)


def goes_on(airflow, ref):
    return airflow.client.observe(ref).outcome is None


@needs_trigger_on_kill
def test_a_deferred_task_that_moves_to_another_triggerer_keeps_its_job(airflow, gate, second_triggerer, suspended):
    task = airflow.start("deferred", gate)
    ref = task.training_while_deferred()
    one, processes = until(lambda: triggerer_of(task)), first_triggerer(airflow)
    another = second_triggerer()
    suspended(processes)
    two = moved_from(task, one)
    for process in processes:
        process.resume()
    # The first triggerer now cancels the trigger in the same way as after a user ended the task.
    until(lambda: "cancelled by user action" in task.log() + airflow.here.get_log_file("triggerer").read_text())
    assert goes_on(airflow, ref)
    os.kill(another.pid, signal.SIGTERM)
    moved_from(task, two)
    assert goes_on(airflow, ref)
    gate.touch()
    task.is_now("success")
    assert task.xcom("return_value") == {"accuracy": 0.97}
