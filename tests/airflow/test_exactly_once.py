"""Worker processes killed at any time lead to one job; the next try returns its result."""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading

import pytest

from trainer_core import LocalProcessBackendConfig, TrainerClient

pytestmark = pytest.mark.slow

_HERE = pathlib.Path(__file__).parent


class Worker:
    """Runs tries of a task with `worker.py`."""

    def __init__(self):
        command = [sys.executable, "-W", "ignore", str(_HERE / "worker.py")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._hear("ready")

    def begin(self, folder, number, **command):
        self._process.stdin.write(json.dumps({"folder": str(folder), "try": number, **command}) + "\n")
        self._process.stdin.flush()

    def finish(self, folder, number):
        """Wait for a try to end; return its result, None if it was killed."""
        self._hear("done")
        answer = folder / f"try-{number}.json"
        return json.loads(answer.read_text()) if answer.exists() else None

    def attempt(self, folder, number, **command):
        self.begin(folder, number, **command)
        return self.finish(folder, number)

    def _hear(self, word):
        # Airflow writes a task's log to stdout as well.
        for line in self._process.stdout:
            if line.strip() == word:
                return
        raise AssertionError(f"the worker ended before it said {word!r}")

    def close(self):
        self._process.communicate()


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.close()


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    (tmp_path / "gate").touch()
    client = jobs_in(tmp_path)
    for job in client.list_jobs():
        client.delete_job(job.name)


def jobs_in(folder):
    return TrainerClient(LocalProcessBackendConfig(home=folder / "home"))


def runs_in(folder):
    return (folder / "runs").read_text().count("run")


def delivered(folder, answer):
    """Check that one job ran once and that its outcome was returned."""
    assert answer == {"returned": 42}
    assert [job.status for job in jobs_in(folder).list_jobs()] == ["Complete"]
    assert runs_in(folder) == 1
    assert json.loads((folder / "xcom-status.json").read_text()) == "Complete"
    assert json.loads((folder / "xcom-ref.json").read_text())["name"] == jobs_in(folder).list_jobs()[0].name


_EARLY = ["before-submit", "after-submit", "before-xcom-ref", "after-xcom-ref", "before-xcom-status"]
_LATE = ["before-finishing", "before-xcom-metrics", "after-xcom-artifacts", "before-returning"]


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("stop", [*_EARLY, *_LATE])
def test_a_worker_killed_between_two_steps_leads_to_one_job(worker, folder, stop, deferrable):
    (folder / "gate").touch()
    assert worker.attempt(folder, 1, stop=stop, deferrable=deferrable) is None
    delivered(folder, worker.attempt(folder, 2, deferrable=deferrable))


@pytest.mark.parametrize(
    ("stop", "deferrable"), [("before-waiting", False), ("before-deferring", True), ("deferred", True)]
)
def test_a_worker_killed_before_waiting_leaves_the_job_running(worker, folder, stop, deferrable):
    assert worker.attempt(folder, 1, stop=stop, deferrable=deferrable) is None
    (folder / "gate").touch()
    delivered(folder, worker.attempt(folder, 2, deferrable=deferrable))


def test_a_worker_killed_in_every_try_but_the_last_leads_to_one_job(worker, folder):
    (folder / "gate").touch()
    for number, stop in enumerate(["after-submit", "after-xcom-ref", "before-returning"], 1):
        assert worker.attempt(folder, number, stop=stop) is None
    delivered(folder, worker.attempt(folder, 4))


@pytest.mark.parametrize("seed", range(8))
def test_workers_killed_at_random_times_lead_to_one_job(worker, folder, seed):
    (folder / "gate").touch()
    generator = random.Random(seed)  # noqa: S311 - not a secret
    deferrable = generator.random() < 0.5
    for number in range(1, 5):
        worker.attempt(folder, number, kill_after=generator.uniform(0.0, 0.35), deferrable=deferrable)
    delivered(folder, worker.attempt(folder, 5, deferrable=deferrable))


def start_training(worker, folder, **command):
    """Start a try and wait until its training runs; return the try and its process."""
    worker.begin(folder, 1, **command)
    until(lambda: (folder / "runs").exists())
    return int((folder / "started-1").read_text())


def until(condition):
    pause = threading.Event()
    while not condition():
        pause.wait(0.02)


def test_a_worker_that_is_stopped_keeps_the_job_and_the_retry_attaches_to_it(worker, folder):
    os.kill(start_training(worker, folder), signal.SIGTERM)
    assert "keeps running: only the worker was stopped" in worker.finish(folder, 1)["message"]
    (folder / "gate").touch()
    delivered(folder, worker.attempt(folder, 2))


@pytest.mark.parametrize("state", ["failed", "restarting"])
def test_a_signal_after_a_person_ended_or_cleared_the_task_cancels_its_job(worker, folder, state):
    os.kill(start_training(worker, folder, state=state), signal.SIGTERM)
    assert worker.finish(folder, 1)["raised"] == "TrainJobInterruptedError"
    # A task has a few seconds after SIGTERM, so it does not wait for the end of its job.
    until(lambda: [job.status for job in jobs_in(folder).list_jobs()] == ["Failed"])


def test_a_kept_job_outlives_its_task_and_the_retry_attaches_to_it(worker, folder):
    os.kill(start_training(worker, folder, on_kill="keep"), signal.SIGTERM)
    assert "keeps running (on_kill='keep')" in worker.finish(folder, 1)["message"]
    (folder / "gate").touch()
    delivered(folder, worker.attempt(folder, 2, on_kill="keep"))


def test_a_worker_killed_while_it_waits_leaves_the_job_running(worker, folder):
    os.kill(start_training(worker, folder), signal.SIGKILL)
    assert worker.finish(folder, 1) is None
    (folder / "gate").touch()
    delivered(folder, worker.attempt(folder, 2))
