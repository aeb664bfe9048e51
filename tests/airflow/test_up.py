"""`make airflow-up` and `make airflow-e2e`: starts after a kill, stops without leftovers, and the checks of the run."""

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


@pytest.fixture
def program(tmp_path):
    """The program in a separate folder for its data, with one DAG."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "dags").mkdir()
    for name in ("approve_forecast", "energy", "forecast"):
        shutil.copy(ROOT / "dags" / f"{name}.py", tmp_path / "dags")
    yield tmp_path / "tools" / "airflow_up.py"
    for pid in list_remaining_processes(tmp_path / ".airflow" / "up"):
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
        self.output = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def wait_until_ready(self):
        """Wait until it prints its URL and login."""
        for line in self.process.stdout:
            self.output += line
            if "Ctrl-C" in line:
                return
        raise AssertionError(self.output)

    @contextmanager
    def api(self, here):
        """A client that is logged in as the printed user."""
        url = re.search(r"Airflow: +(\S+)", self.output)[1]
        username, password = re.search(r"user (\w+), password (\S+)", self.output).groups()
        with httpx.Client(base_url=url, trust_env=False, timeout=300) as client:
            # Until all its processes have started, one of them may lock the database, and the server answers 500.
            login = {"username": username, "password": password}
            token = here.wait_until(lambda: read_token(client.post("/auth/token", json=login)), "login")
            client.headers["Authorization"] = f"Bearer {token}"
            yield client


def read_token(answer):
    """Return the token; None for an error, whose text is not always JSON."""
    return answer.json()["access_token"] if answer.is_success else None


def is_healthy(answer):
    return answer.status_code == 200 and {part["status"] for part in answer.json().values()} == {"healthy"}


def read_started_processes(folder):
    """Return the recorded session ids by process name; empty while the record is being written."""
    with suppress(FileNotFoundError, ValueError):
        return {name: session for name, (session, _) in json.loads((folder / "processes.json").read_text()).items()}
    return {}


def list_remaining_processes(folder):
    """Yield the pids of the folder's Airflow that still run."""
    for session in read_started_processes(folder).values():
        yield from (pid for pid in psutil.pids() if get_session(pid) == session)


def get_session(pid):
    with suppress(OSError):
        return os.getsid(pid)


@pytest.mark.slow
@pytest.mark.timeout(600)  # a whole Airflow starts twice
def test_it_starts_again_after_sigkill_and_stops_at_ctrl_c(program, here, tmp_path):
    folder = tmp_path / ".airflow" / "up"
    with Up(program) as killed:
        here.wait_until(
            lambda: len(read_started_processes(folder)) == len(here.COMPONENTS), "all its processes have started"
        )
        killed.process.kill()
    with Up(program) as up:
        up.wait_until_ready()
        with up.api(here) as api:
            here.wait_until(lambda: is_healthy(api.get("/api/v2/monitor/health")), "all its processes are healthy")
        up.process.send_signal(signal.SIGINT)
        rest, _ = up.process.communicate(timeout=300)

    assert (up.process.returncode, rest.splitlines()[-1]) == (
        0,
        "airflow-up: stopped; `make airflow-up` continues with the same data",
    )
    assert list(list_remaining_processes(folder)) == []


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
