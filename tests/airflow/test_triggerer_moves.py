"""A whole Airflow with two triggerers: what moves between them goes on, and what a person ends is ended."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import psutil
import pytest
from standalone import a_running_airflow, settings, tells_triggers, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(540)]

_DAGS = pathlib.Path(__file__).with_name("standalone_dags.py")
#: Seconds without a heartbeat after which a triggerer's triggers are given to another.
_QUICKLY = {"AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "8"}


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    with a_running_airflow(tmp_path_factory.mktemp("two"), [_DAGS], dags=5, **_QUICKLY) as running:
        yield running


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


@pytest.fixture
def second_triggerer(airflow):
    """Start one when the test wants it."""
    started = []

    def start():
        environment = settings(airflow.home, airflow.url.rpartition(":")[2]) | _QUICKLY
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
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def first_triggerer(airflow):
    """The processes of the triggerer that Airflow itself has started."""
    named = [each for each in psutil.process_iter(["cmdline"]) if (each.info["cmdline"] or [""])[-1] == "triggerer"]
    mine = [each for each in named if each.environ().get("AIRFLOW_HOME") == str(airflow.home)]
    return list({each for one in mine for each in (one, *one.children(recursive=True))})


def triggerer_of(task):
    """The number of the triggerer that waits for a task, None between two."""
    return (task.instance().get("triggerer_job") or {}).get("id")


def moved_from(task, before):
    """Wait for another triggerer to have the task; return its number."""
    return until(lambda: (now := triggerer_of(task)) != before and now)


def is_deferred(task):
    """Whether a task waits; a whole Airflow that has just started may be too busy to say."""
    try:
        return task.instance()["state"] == "deferred"
    except OSError:
        return False


def goes_on(airflow, ref):
    return airflow.client.observe(ref).outcome is None


@pytest.mark.parametrize("state", ["failed", "success"])
@pytest.mark.parametrize("dag", [pytest.param("deferred", marks=tells_triggers), "waiting"])
def test_ending_the_run_of_a_task_ends_its_job(airflow, gate, dag, state):
    task = airflow.start(dag, gate)
    ref = task.training_while_deferred() if dag == "deferred" else task.training()
    airflow.ask("PATCH", f"/api/v2/dags/{dag}/dagRuns/{task._run}", {"state": state})
    assert until(lambda: airflow.client.observe(ref).outcome).diagnosis.reason == "it was cancelled"


def test_marking_a_running_task_as_successful_ends_its_job(airflow, gate):
    task = airflow.start("waiting", gate)
    ref = task.training()
    task.mark("success")
    assert until(lambda: airflow.client.observe(ref).outcome).diagnosis.reason == "it was cancelled"


@tells_triggers
def test_a_task_that_moves_between_triggerers_keeps_its_job(airflow, gate, second_triggerer):
    task = airflow.start("deferred", gate)
    until(lambda: is_deferred(task))
    ref = task.training_while_deferred()
    one, processes = until(lambda: triggerer_of(task)), first_triggerer(airflow)
    another = second_triggerer()
    for process in processes:
        process.suspend()
    two = moved_from(task, one)
    for process in processes:
        process.resume()
    # The first one now ends the trigger with the very reason that it has for a person who ends a task.
    until(lambda: "cancelled by user action" in task.log() + (airflow.home / "output.log").read_text())
    assert goes_on(airflow, ref)
    os.kill(another.pid, signal.SIGTERM)
    moved_from(task, two)
    assert goes_on(airflow, ref)
    gate.touch()
    task.is_now("success")
    assert task.xcom("return_value") == {"accuracy": 0.97}
