"""Failures of supervisors and nodes: the job ends at once with a diagnosis, and no process remains."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from local_jobs import (
    PATIENCE,
    fails_at_rank,
    ignores_sigterm,
    keeps_children,
    kill,
    leaves_a_child,
    leaves_a_child_and_no_log,
    processes_of,
    returns,
    supervisor_of,
    wait_for_supervisor_exit,
    wait_until_dead,
    waits_at,
)

from trainer_core import Category, Owner, Suspend
from trainer_core.backends import supervisor_process as supervisor
from trainer_core.backends.local import backend as local, runner
from trainer_core.backends.local.processes import kill_job_processes, signal_supervisor
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.lifecycle.diagnosis import StepFacts
from trainer_core.testing.case import wait_for_status

#: A sitecustomize module with which no supervisor gets beyond the start of Python.
HANGING_SUPERVISOR = """
import signal, sys
if "trainer_core.backends.local.supervisor" in sys.orig_argv:
    signal.pause()
"""


def test_a_killed_supervisor_fails_the_job_and_all_its_processes_end(client, running, home, gate):
    ref = running(keeps_children, {"gate": gate})
    processes = processes_of(ref.uid)
    kill(supervisor_of(home, "job"))
    outcome = client.wait(ref, timeout=PATIENCE)
    assert (outcome.status, outcome.diagnosis.category) == ("Failed", Category.INFRASTRUCTURE)
    assert outcome.diagnosis.retryable
    assert "the supervisor" in outcome.diagnosis.reason
    assert len(processes) == 3
    assert wait_until_dead(processes)


@pytest.mark.parametrize("proc", ["/proc", "/no-proc"], ids=["linux", "macos"])
def test_the_processes_of_a_job_are_found_by_their_environment(proc):
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    started = [subprocess.Popen(sleeper, env={**os.environ, "TRAINJOB_UID": uid}) for uid in ("one", "two", "other")]
    try:
        kill_job_processes(["one", "two"], Path(proc))
        assert [each.wait(PATIENCE) for each in started[:2]] == [-signal.SIGKILL] * 2
        assert started[2].poll() is None
    finally:
        for each in started:
            each.kill()
            each.wait()


def test_a_signal_for_a_supervisor_that_has_ended_reaches_no_later_process_with_its_id():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        signal_supervisor(process.pid, signal.SIGKILL, is_alive=lambda: False)
        signal_supervisor(process.pid, signal.SIGTERM, is_alive=lambda: True)
        assert process.wait(PATIENCE) == -signal.SIGTERM
    signal_supervisor(process.pid, signal.SIGKILL, is_alive=lambda: True)


def test_a_supervisor_loads_no_heavy_library(running, home, gate):
    running(waits_at, {"gate": gate})
    loaded = " ".join(each.path for each in supervisor_of(home, "job").memory_maps())
    assert "_asyncio" in loaded or "_socket" in loaded
    assert [name for name in ("pydantic", "psutil", "_yaml", "_ssl", "libssl") if name in loaded] == []


def test_killing_the_process_group_of_the_supervisor_ends_all_processes_of_the_job(client, running, home, gate):
    ref = running(keeps_children, {"gate": gate})
    processes = processes_of(ref.uid)
    os.killpg(os.getpgid(supervisor_of(home, "job").pid), signal.SIGKILL)
    assert client.wait(ref, timeout=PATIENCE).diagnosis.retryable
    assert len(processes) == 3
    assert wait_until_dead(processes)


def test_a_retry_ends_the_processes_of_a_job_whose_supervisor_and_guard_were_killed(client, ask, home, gate):
    def request(func, args=None):
        return ask(func, args).with_fields(owner=Owner(key="run/task", slug="task", generation="1"))

    ref = client.submit(request(keeps_children, {"gate": gate}))
    assert "it runs" in client.get_job_logs(ref.name, follow=True)
    processes = processes_of(ref.uid)
    supervisor = supervisor_of(home, ref.name)
    (guard,) = [child for child in supervisor.children() if child not in processes]
    kill(guard)
    kill(supervisor)
    assert client.wait(ref, timeout=PATIENCE).diagnosis.retryable
    assert processes_of(ref.uid) == processes
    retry = client.submit(request(returns))
    assert processes_of(ref.uid) == []
    assert (client.wait(retry).result, retry.name) == (1, "job-1")


def test_a_killed_supervisor_of_a_suspended_job_fails_the_job(client, ask, home):
    client.submit(ask(options=[Suspend()]))
    wait_for_status(client, "job", "Suspended")
    kill(supervisor_of(home, "job"))
    assert client.wait("job", timeout=PATIENCE).diagnosis.category == Category.INFRASTRUCTURE


def test_a_job_whose_supervisor_was_killed_can_be_deleted_and_created_again(client, ask, running, home, gate):
    running(waits_at, {"gate": gate})
    kill(supervisor_of(home, "job"))
    client.delete_job("job")
    assert client.wait(client.submit(ask())).succeeded


def test_sigterm_to_the_supervisor_fails_the_job_as_retryable(client, running, home, gate):
    ref = running(keeps_children, {"gate": gate})
    supervisor_of(home, "job").terminate()
    outcome = client.wait(ref)
    assert (outcome.diagnosis.category, outcome.diagnosis.retryable) == (Category.INFRASTRUCTURE, True)
    assert processes_of(ref.uid) == []


def test_a_killed_node_fails_the_job_as_retryable(client, running, home, gate):
    ref = running(waits_at, {"gate": gate})
    (node,) = processes_of(ref.uid)
    node.kill()
    diagnosis = client.wait(ref).diagnosis
    assert (diagnosis.category, diagnosis.step, diagnosis.exit_code) == (Category.INFRASTRUCTURE, "node-0", -9)
    assert diagnosis.retryable
    assert "SIGKILL" in diagnosis.reason


def test_a_node_that_fails_ends_the_others(client, ask, gate):
    ref = client.submit(ask(fails_at_rank, {"rank": 1, "gate": gate}, num_nodes=3))
    diagnosis = client.wait(ref).diagnosis
    assert (diagnosis.category, diagnosis.step) == (Category.USER_CODE, "node-1")
    assert diagnosis.reason == "ValueError: rank 1 fails"
    assert processes_of(ref.uid) == []


def test_an_io_error_in_the_supervisor_fails_the_job_and_ends_its_processes(client, ask, home):
    ref = client.submit(ask(leaves_a_child_and_no_log))
    assert wait_for_supervisor_exit(home, "job")
    assert "the supervisor failed" in client.get_job_outcome(ref).diagnosis.reason
    assert processes_of(ref.uid) == []


def test_child_processes_end_with_the_job(client, ask):
    ref = client.submit(ask(leaves_a_child))
    assert client.wait(ref).succeeded
    assert processes_of(ref.uid) == []


def test_a_node_that_ignores_sigterm_is_killed(client, running, gate):
    ref = running(ignores_sigterm, {"gate": gate})
    client.cancel(ref)
    assert client.get_job_outcome(ref).diagnosis.category == Category.DELETED
    assert processes_of(ref.uid) == []


def test_deleting_ends_every_process(client, running, home, gate):
    ref = running(keeps_children, {"gate": gate})
    processes = [*processes_of(ref.uid), supervisor_of(home, "job")]
    client.delete_job("job")
    assert processes_of(ref.uid) == []
    assert wait_until_dead(processes)
    assert list((home / "jobs").iterdir()) == []


def test_a_job_whose_supervisor_is_stopped_can_be_deleted(client, running, home, gate, monkeypatch):
    monkeypatch.setattr(local, "_CANCEL_SECONDS", 0.5)
    ref = running(keeps_children, {"gate": gate})
    supervisor = supervisor_of(home, "job")
    supervisor.send_signal(signal.SIGSTOP)
    client.delete_job("job")
    assert wait_until_dead([supervisor])
    assert processes_of(ref.uid) == []
    assert client.list_jobs() == []


def test_a_job_whose_supervisor_is_stopped_can_be_cancelled(client, running, home, gate, monkeypatch):
    monkeypatch.setattr(local, "_CANCEL_SECONDS", 0.5)
    ref = running(keeps_children, {"gate": gate})
    supervisor_of(home, "job").send_signal(signal.SIGSTOP)
    client.cancel("job")
    assert client.wait(ref, timeout=PATIENCE).status == "Failed"
    assert wait_until_dead(processes_of(ref.uid))


def test_a_suspended_job_has_no_process_except_its_supervisor(client, running, home, gate):
    ref = running(keeps_children, {"gate": gate})
    client.suspend(ref)
    wait_for_status(client, "job", "Suspended")
    assert processes_of(ref.uid) == []
    assert supervisor_of(home, "job").status() != psutil.STATUS_ZOMBIE


def test_a_supervisor_that_does_not_start_in_time_leaves_no_job(client, ask, tmp_path, monkeypatch):
    # However long the submitter is interrupted meanwhile, the supervisor does not answer.
    (tmp_path / "sitecustomize.py").write_text(HANGING_SUPERVISOR)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(supervisor, "_START_SECONDS", 0.001)
    with pytest.raises(BackendUnavailableError, match=r"it did not answer in 0.001 seconds; no job was created"):
        client.submit(ask())
    assert client.list_jobs() == []


def test_a_supervisor_that_hangs_after_it_has_created_the_job_is_no_failure(client, ask, monkeypatch):
    def start_and_hang(*args, **fields):
        supervisor.start_supervisor(*args, **fields)
        raise OSError("it did not answer")

    monkeypatch.setattr(local, "start_supervisor", start_and_hang)
    assert client.wait(client.submit(ask()), timeout=PATIENCE).succeeded


def test_concurrent_observers_of_a_finished_job_see_the_same_outcome(client, ask):
    ref = client.submit(ask())
    outcome = client.wait(ref)
    assert [client.get_job_outcome(ref) for _ in range(20)] == [outcome] * 20


@pytest.mark.parametrize("method", ["suspend", "resume", "cancel", "delete_job"])
def test_changing_a_job_whose_supervisor_was_killed_is_no_error(client, running, home, gate, method):
    running(waits_at, {"gate": gate})
    kill(supervisor_of(home, "job"))
    getattr(client, method)("job")


class Fails(runner.LocalJobRunner):
    """A runner whose steps fail at once; each has the place of its exit among those of all steps."""

    def __init__(self, places):
        self.places = places

    async def _run_step(self, step, variables):
        raise runner._StepFailedError(StepFacts(step["name"], exit_code=1), self.places[step["name"]])


async def test_of_several_steps_that_fail_the_first_to_exit_comes_first():
    steps = [{"name": name} for name in ("node-0", "node-1", "node-2")]
    with pytest.raises(runner._FailedError) as caught:
        await Fails({"node-0": 2, "node-1": 0, "node-2": 1})._run_steps(steps, {})
    assert [step.name for step in caught.value.facts.steps] == ["node-1", "node-2", "node-0"]


class Continues(runner.LocalJobRunner):
    """A runner with a long grace that runs again, sees a change that stops nothing, and whose steps end after it."""

    def __init__(self):
        self._plan = {"active_deadline_seconds": None, "grace_seconds": 600}
        self._record = SimpleNamespace(uid="no-process", restarts=None)
        self._folder = SimpleNamespace(read_desired=dict)
        self._desired_changed, self._interrupted = asyncio.Event(), False
        self._grace, self.graces = 600.0, []

    async def _run_all_steps(self):
        self.graces.append(self._grace)
        self._desired_changed.set()
        while self._desired_changed.is_set():
            await asyncio.sleep(0)
        self.graces.append(self._grace)


async def test_only_a_job_that_is_stopped_gives_its_nodes_the_grace_of_checkpoints():
    runs = Continues()
    await runs._run_plan()
    assert runs.graces == [runner._TERMINATION_GRACE_SECONDS] * 2
