"""`make airflow-up` and `make airflow-e2e`: starts after a kill, stops without leftovers, and the checks of the run."""

from __future__ import annotations

import random
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from optional_packages import requires

from trainer_core.node import locks

pytestmark = requires("sklearn")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import airflow_here

    return airflow_here


@pytest.fixture
def e2e(here):
    import airflow_e2e

    return airflow_e2e


def test_a_start_ends_what_is_left_of_an_airflow_that_was_killed(here, tmp_path):
    killed = here.AirflowHere(tmp_path / "up")
    killed.folder.mkdir()
    leader = killed._start_process("scheduler", ["sh", "-c", "sleep 600 & wait"])
    here.wait_until(leader.children, "it has a child")
    (child,) = leader.children()
    here.AirflowHere(tmp_path / "up")._stop_leftover_processes()
    assert psutil.wait_procs([leader, child], timeout=300)[1] == []


def test_its_command_uses_its_settings_whatever_the_terminal_has(here, tmp_path, monkeypatch):
    airflow = here.AirflowHere(tmp_path / "it's up", {"AIRFLOW__CORE__DAGS_FOLDER": "/srv/my $dags"})
    airflow.folder.mkdir()
    airflow._write_command()
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", "/elsewhere")
    command = [airflow.command, "config", "get-value", "core", "dags_folder"]
    assert subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[-1] == "/srv/my $dags"


def test_a_second_airflow_in_the_same_folder_is_refused(here, tmp_path):
    of_another_process = locks.locked(tmp_path / "up.lock")
    with (
        of_another_process,
        pytest.raises(here.AirflowHereError, match=r"an Airflow already runs in .*up; stop it first"),
    ):
        here.AirflowHere(tmp_path / "up").__enter__()


def test_a_port_in_use_is_refused(here, tmp_path):
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        taken = owner.getsockname()[1]
        assert here.AirflowHere(tmp_path / "up", ports=[taken]).port != taken


def test_a_free_port_is_accepted(here, tmp_path):
    (free,) = random.sample(here.UNUSED_PORTS, 1)
    assert here.AirflowHere(tmp_path / "up", ports=[free]).port == free


def test_a_timeout_names_the_condition(here):
    with pytest.raises(here.AirflowHereError, match=r"^the task is deferred: not true after 0 s$"):
        here.wait_until(lambda: None, "the task is deferred", timeout=0.01)


def test_a_reused_pid_is_not_a_leftover_process(here):
    own = psutil.Process()
    assert not here._is_reused_pid(own.pid, own.create_time())
    assert here._is_reused_pid(own.pid, own.create_time() - 3600)


class Run:
    """A DAG run with the interface that the end-to-end run uses."""

    def __init__(self, dag, tries, jobs=None):
        self.dag = dag
        self._tries = tries
        self._jobs = jobs or {}

    def tasks(self):
        return [{"task_id": task} for task in self._tries]

    def tries(self, task):
        return self._tries[task]

    def job(self, task):
        return self._jobs.get(task)


def test_a_task_that_succeeded_twice_is_reported(e2e):
    right = Run("retrain_digits", {"train": ["failed", "success"], "wait": ["success"]})
    wrong = Run("retrain_digits_one_task", {"retrain": ["success", "success"]})

    assert list(e2e.check_tasks([right, wrong])) == [
        "task retrain of retrain_digits_one_task has the tries ['success', 'success'], expected ['success']"
    ]


def test_a_worker_that_was_not_killed_is_reported(e2e):
    missed = Run("retrain_digits", {"train": ["success"]})

    assert list(e2e.check_tasks([missed])) == [
        "task train of retrain_digits has the tries ['success'], expected ['failed', 'success']"
    ]


def train(seed: int) -> None: ...


def test_a_second_training_is_reported(e2e, client, submit):
    first, second = submit(train, seed=1), submit(train, seed=2)
    run = Run("retrain_digits", {"train": [], "wait": []}, {"train": first.name, "wait": first.name})

    (problem,) = e2e.check_jobs([run], client)

    assert problem == (
        f"the backend has the TrainJobs {sorted([first.name, second.name])}, the runs refer to {[first.name]}"
    )
