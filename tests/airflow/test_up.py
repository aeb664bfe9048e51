"""`make airflow-up` and `make airflow-e2e`: a whole Airflow that starts after it was killed, and leaves nothing."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

pytest.importorskip("sklearn")

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


@pytest.fixture
def program(tmp_path):
    """The program in a folder of its own, where it keeps everything that it makes; with one DAG to read."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "dags").mkdir()
    for name in ("approve_forecast", "energy"):
        shutil.copy(ROOT / "dags" / f"{name}.py", tmp_path / "dags")
    yield tmp_path / "tools" / "airflow_up.py"
    for pid in left_in(tmp_path / ".airflow" / "up"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Up:
    """A running `airflow-up`."""

    def __init__(self, program):
        self.process = subprocess.Popen(
            [sys.executable, program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.said = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def invites(self):
        """Wait until it says that it is there."""
        for line in self.process.stdout:
            self.said += line
            if "Ctrl-C" in line:
                return
        raise AssertionError(self.said)

    @contextmanager
    def api(self):
        """A client that has logged in as the program says."""
        url = re.search(r"Airflow: +(\S+)", self.said)[1]
        username, password = re.search(r"user (\w+), password (\S+)", self.said).groups()
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
            token = client.post("/auth/token", json={"username": username, "password": password}).json()["access_token"]
            client.headers["Authorization"] = f"Bearer {token}"
            yield client


def started_in(folder):
    """The sessions of the Airflow that the folder knows, by name; of a file that is being written, none yet."""
    with suppress(FileNotFoundError, ValueError):
        return {name: session for name, (session, _) in json.loads((folder / "processes.json").read_text()).items()}
    return {}


def left_in(folder):
    """The processes of the Airflow that the folder knows."""
    for session in started_in(folder).values():
        yield from (pid for pid in psutil.pids() if session_of(pid) == session)


def session_of(pid):
    with suppress(OSError):
        return os.getsid(pid)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_runs_right_after_it_was_killed_and_ends_at_ctrl_c(program, here, tmp_path):
    folder = tmp_path / ".airflow" / "up"
    with Up(program) as killed:
        here.until(lambda: len(started_in(folder)) == len(here.COMPONENTS), "all its processes have started")
        killed.process.kill()
    with Up(program) as up:
        up.invites()
        with up.api() as api:
            health = api.get("/api/v2/monitor/health").json()
        up.process.send_signal(signal.SIGINT)
        rest, _ = up.process.communicate(timeout=300)

    assert {part["status"] for part in health.values()} == {"healthy"}
    assert (up.process.returncode, rest.splitlines()[-1]) == (
        0,
        "airflow-up: ended; `make airflow-up` goes on where it was",
    )
    assert list(left_in(folder)) == []


def test_a_second_one_in_the_same_folder_is_refused(here, tmp_path):
    first, second = here.AirflowHere(tmp_path / "up"), here.AirflowHere(tmp_path / "up")
    with first._lock, pytest.raises(here.AirflowHereError, match=r"one runs already in .*up; end it first"):
        second.__enter__()


def test_a_port_that_is_taken_is_left_to_its_owner(here, tmp_path):
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        taken = owner.getsockname()[1]
        assert here.AirflowHere(tmp_path / "up", ports=[taken]).port != taken


def test_a_port_that_is_free_is_taken(here, tmp_path):
    (free,) = random.sample(here.QUIET_PORTS, 1)
    assert here.AirflowHere(tmp_path / "up", ports=[free]).port == free


def test_what_does_not_become_true_is_named(here):
    with pytest.raises(here.AirflowHereError, match=r"^the task is deferred: not within 0 s$"):
        here.until(lambda: None, "the task is deferred", patience=0.01)


def test_a_number_that_another_process_has_now_is_no_leftover(here):
    own = psutil.Process()
    assert not here._is_another(own.pid, own.create_time())
    assert here._is_another(own.pid, own.create_time() - 3600)


class Run:
    """A DAG run as the end-to-end run reads it."""

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


def test_a_task_that_succeeded_twice_is_told(e2e):
    right = Run("retrain_digits", {"train": ["failed", "success"], "wait": ["success"]})
    wrong = Run("retrain_digits_one_task", {"retrain": ["success", "success"]})

    assert list(e2e.tasks_that_went_wrong([right, wrong])) == [
        "task retrain of retrain_digits_one_task has the tries ['success', 'success'], not ['success']"
    ]


def test_a_worker_that_was_not_killed_is_told(e2e):
    missed = Run("retrain_digits", {"train": ["success"]})

    assert list(e2e.tasks_that_went_wrong([missed])) == [
        "task train of retrain_digits has the tries ['success'], not ['failed', 'success']"
    ]


def train(seed: int) -> None: ...


def test_a_second_training_is_told(e2e, client, submit):
    first, second = submit(train, seed=1), submit(train, seed=2)
    run = Run("retrain_digits", {"train": [], "wait": []}, {"train": first.name, "wait": first.name})

    (told,) = e2e.jobs_that_went_wrong([run], client)

    assert told == (
        f"the backend has the TrainJobs {sorted([first.name, second.name])}, the runs know of {[first.name]}"
    )
