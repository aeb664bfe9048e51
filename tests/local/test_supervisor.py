"""Whatever happens to a supervisor or a node, the job ends at once, says why, and leaves no process behind."""

from __future__ import annotations

import signal

import psutil
import pytest
from local_jobs import (
    PATIENCE,
    fails_at_rank,
    gone,
    ignores_being_told_to_stop,
    keeps_children,
    kill,
    leaves_a_child,
    leaves_a_child_and_no_log,
    left,
    processes_of,
    supervisor_of,
    waits_at,
)

from trainer_core import Category, Suspend
from trainer_core.backends.local import backend as local
from trainer_core.testing.case import reached


def test_a_killed_supervisor_is_seen_at_once_and_takes_every_process_along(client, running, home, gate):
    ref = running(keeps_children, {"gate": gate})
    processes = processes_of(ref.uid)
    kill(supervisor_of(home, "job"))
    outcome = client.wait(ref, timeout=PATIENCE)
    assert (outcome.status, outcome.diagnosis.category) == ("Failed", Category.INFRASTRUCTURE)
    assert outcome.diagnosis.retryable
    assert "its supervisor" in outcome.diagnosis.reason
    assert len(processes) == 3
    assert gone(processes)


def test_a_killed_supervisor_of_a_suspended_job_is_seen_too(client, ask, home):
    client.submit(ask(options=[Suspend()]))
    reached(client, "job", "Suspended")
    kill(supervisor_of(home, "job"))
    assert client.wait("job", timeout=PATIENCE).diagnosis.category == Category.INFRASTRUCTURE


def test_a_job_whose_supervisor_was_killed_can_be_deleted_and_made_anew(client, ask, running, home, gate):
    running(waits_at, {"gate": gate})
    kill(supervisor_of(home, "job"))
    client.delete_job("job")
    assert client.wait(client.submit(ask())).succeeded


def test_a_supervisor_that_is_told_to_stop_ends_its_job_as_worth_a_retry(client, running, home, gate):
    ref = running(keeps_children, {"gate": gate})
    supervisor_of(home, "job").terminate()
    outcome = client.wait(ref)
    assert (outcome.diagnosis.category, outcome.diagnosis.retryable) == (Category.INFRASTRUCTURE, True)
    assert processes_of(ref.uid) == []


def test_a_killed_node_fails_the_job_as_worth_a_retry(client, running, home, gate):
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
    assert diagnosis.reason == "ValueError: rank 1 has enough"
    assert processes_of(ref.uid) == []


def test_a_job_whose_supervisor_cannot_go_on_leaves_no_process_behind(client, ask, home):
    ref = client.submit(ask(leaves_a_child_and_no_log))
    assert left(home, "job")
    assert "its supervisor could not go on" in client.outcome(ref).diagnosis.reason
    assert processes_of(ref.uid) == []


def test_a_job_that_ends_leaves_no_process_behind(client, ask):
    ref = client.submit(ask(leaves_a_child))
    assert client.wait(ref).succeeded
    assert processes_of(ref.uid) == []


def test_a_node_that_does_not_listen_is_ended_all_the_same(client, running, gate):
    ref = running(ignores_being_told_to_stop, {"gate": gate})
    client.cancel(ref)
    assert client.outcome(ref).diagnosis.category == Category.DELETED
    assert processes_of(ref.uid) == []


def test_deleting_ends_every_process(client, running, home, gate):
    ref = running(keeps_children, {"gate": gate})
    processes = [*processes_of(ref.uid), supervisor_of(home, "job")]
    client.delete_job("job")
    assert processes_of(ref.uid) == []
    assert gone(processes)
    assert list((home / "jobs").iterdir()) == []


def test_deleting_does_not_depend_on_a_supervisor_that_answers(client, running, home, gate, monkeypatch):
    monkeypatch.setattr(local, "_CANCEL_SECONDS", 0.5)
    ref = running(keeps_children, {"gate": gate})
    supervisor = supervisor_of(home, "job")
    supervisor.send_signal(signal.SIGSTOP)
    client.delete_job("job")
    assert gone([supervisor])
    assert processes_of(ref.uid) == []
    assert client.list_jobs() == []


def test_cancelling_does_not_depend_on_a_supervisor_that_answers(client, running, home, gate, monkeypatch):
    monkeypatch.setattr(local, "_CANCEL_SECONDS", 0.5)
    ref = running(keeps_children, {"gate": gate})
    supervisor_of(home, "job").send_signal(signal.SIGSTOP)
    client.cancel("job")
    assert client.wait(ref, timeout=PATIENCE).status == "Failed"
    assert gone(processes_of(ref.uid))


def test_a_suspended_job_keeps_no_process_but_its_supervisor(client, running, home, gate):
    ref = running(keeps_children, {"gate": gate})
    client.suspend(ref)
    reached(client, "job", "Suspended")
    assert processes_of(ref.uid) == []
    assert supervisor_of(home, "job").status() != psutil.STATUS_ZOMBIE


def test_a_lock_that_nobody_holds_is_not_taken_for_a_supervisor_by_many_observers(client, ask):
    ref = client.submit(ask())
    outcome = client.wait(ref)
    assert [client.outcome(ref) for _ in range(20)] == [outcome] * 20


@pytest.mark.parametrize("say", ["suspend", "resume", "cancel", "delete_job"])
def test_a_supervisor_that_died_meanwhile_hears_nothing_and_that_is_no_error(client, running, home, gate, say):
    running(waits_at, {"gate": gate})
    kill(supervisor_of(home, "job"))
    getattr(client, say)("job")
