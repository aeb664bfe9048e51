"""The queue of local jobs: at most max_parallel run, first come, first served, also after kills and suspensions."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from local_jobs import PATIENCE, kill, returns, supervisor_of, wait_for_supervisor_exit, waits_at

from trainer_core import ActiveDeadlineSeconds, Category, LocalProcessBackendConfig, StartWithin, TrainerClient
from trainer_core.backends.base import NameTakenError
from trainer_core.backends.local import gc
from trainer_core.backends.local.job_queue import JobQueue
from trainer_core.backends.local.job_store import StateFolder
from trainer_core.testing.case import wait_for_status

NEXT = "queued: next to start; at most 1 runs at the same time (max_parallel=1)"
BEHIND_ONE = "queued: 1 queued TrainJob ahead; at most 1 runs at the same time (max_parallel=1)"


@pytest.fixture
def single(home, client):
    """A client that runs one job at a time. The fixture `client` removes the jobs."""
    return TrainerClient(LocalProcessBackendConfig(home=home, max_parallel=1))


@pytest.fixture
def submit(single, ask, tmp_path):
    """Submits a job that waits until `let_end` is called."""

    def submit(name, **more):
        os.mkfifo(tmp_path / name)
        return single.submit(ask(waits_at, {"gate": str(tmp_path / name)}, name=name, **more))

    return submit


@pytest.fixture
def let_end(single, tmp_path):
    def let_end(name):
        (tmp_path / name).write_text("go")
        assert single.wait(name, timeout=PATIENCE).result == "go"

    return let_end


def wait_until_queued(client, name, text):
    end = time.monotonic() + PATIENCE
    while (seen := client.observe(name)).queued != text and time.monotonic() < end:
        time.sleep(0.02)
    assert (seen.status, seen.queued) == ("Created", text)


def test_jobs_beyond_the_limit_start_in_the_order_of_their_submission(single, submit, let_end):
    for name in ("a", "b", "c"):
        submit(name)
    wait_for_status(single, "a", "Running")
    wait_until_queued(single, "b", NEXT)
    wait_until_queued(single, "c", BEHIND_ONE)
    assert single.get_job("c").reason == BEHIND_ONE
    assert "Queued" in [event.reason for event in single.get_job_events("c")]
    let_end("a")
    wait_for_status(single, "b", "Running")
    assert (single.observe("b").queued, single.get_job("b").reason) == (None, None)
    wait_until_queued(single, "c", NEXT)
    let_end("b")
    let_end("c")


def test_a_job_without_a_limit_starts_at_once_and_counts_for_the_others(single, client, ask, submit, let_end, tmp_path):
    os.mkfifo(tmp_path / "free")
    client.submit(ask(waits_at, {"gate": str(tmp_path / "free")}, name="free"))
    submit("limited")
    wait_for_status(client, "free", "Running")
    wait_until_queued(single, "limited", NEXT)
    let_end("free")
    let_end("limited")


def test_killed_supervisors_block_no_job(single, submit, let_end, home):
    for name in ("running", "queued", "last"):
        submit(name)
    wait_for_status(single, "running", "Running")
    wait_until_queued(single, "last", BEHIND_ONE)
    kill(supervisor_of(home, "queued"))
    wait_until_queued(single, "last", NEXT)
    assert single.wait("queued").diagnosis.category == Category.INFRASTRUCTURE
    kill(supervisor_of(home, "running"))
    let_end("last")


def test_a_queued_job_that_is_cancelled_leaves_the_queue(single, submit, let_end):
    for name in ("running", "cancelled", "last"):
        submit(name)
    wait_until_queued(single, "last", BEHIND_ONE)
    single.cancel("cancelled")
    assert single.get_job_outcome("cancelled").diagnosis.category == Category.DELETED
    assert single.observe("cancelled").queued is None
    wait_until_queued(single, "last", NEXT)
    let_end("running")
    let_end("last")


def test_a_suspended_job_gives_up_its_place_and_joins_the_end_of_the_queue(single, submit, let_end):
    submit("first")
    wait_for_status(single, "first", "Running")
    submit("second")
    single.suspend("first")
    wait_for_status(single, "second", "Running")
    single.resume("first")
    wait_until_queued(single, "first", NEXT)
    single.suspend("first")
    wait_for_status(single, "first", "Suspended")
    single.resume("first")
    let_end("second")
    let_end("first")


def test_time_in_the_queue_does_not_count_for_the_deadline(single, ask, submit, let_end):
    submit("running")
    single.submit(ask(returns, name="brief", options=[ActiveDeadlineSeconds(60)]))
    wait_until_queued(single, "brief", NEXT)
    let_end("running")
    outcome = single.wait("brief", timeout=PATIENCE)
    assert outcome.succeeded
    # Both in milliseconds: the next job may start in the one in which the job before it ended.
    assert outcome.started_at >= single.get_job_outcome("running").finished_at


def test_a_job_that_waits_in_the_queue_for_longer_than_it_may_fails_and_can_be_retried(single, ask, submit, let_end):
    submit("running")
    ref = single.submit(ask(returns, name="late", options=[StartWithin(0.2)]))
    patient = single.submit(ask(returns, name="patient", options=[StartWithin("1h")]))
    diagnosis = single.wait(ref, timeout=PATIENCE).diagnosis
    assert (diagnosis.category, diagnosis.retryable) == (Category.SCHEDULING, True)
    assert diagnosis.reason == f"it did not start within 0.2s: {NEXT}"
    let_end("running")
    assert single.wait(patient, timeout=PATIENCE).succeeded


def test_the_limit_of_the_queue_is_no_limit_of_a_job_that_runs(single, submit, let_end):
    submit("running", options=[StartWithin(0.01)])
    wait_for_status(single, "running", "Running")
    let_end("running")


def test_a_job_that_ended_and_a_submission_whose_name_is_taken_leave_no_place_behind(single, ask, home):
    ref = single.submit(ask(returns))
    with pytest.raises(NameTakenError):
        single.backend.create(single.backend.check(ask(returns)))
    single.wait(ref)
    assert wait_for_supervisor_exit(home, "job")
    queue = JobQueue(StateFolder(home).queue)
    assert [path.name for path in queue.path.iterdir()] == ["lock"]


def test_concurrent_jobs_get_different_places(tmp_path):
    queue = JobQueue(tmp_path)
    with ThreadPoolExecutor(16) as threads:
        tickets = list(threads.map(lambda _: queue.join(), range(64)))
    assert sorted(ticket.number for ticket in tickets) == list(range(1, 65))
    assert sorted(queue.count_ahead(ticket, 4) for ticket in tickets) == list(range(64))
    for ticket in tickets:
        ticket.release()


def test_a_place_is_never_given_ahead_of_a_job_that_may_run(tmp_path):
    queue = JobQueue(tmp_path)
    first, second = queue.join(), queue.join()
    first.release()
    third = queue.join()
    assert (queue.count_ahead(second, 1), queue.count_ahead(third, 1)) == (0, 1)
    second.release()
    third.release()


def test_queues_that_a_reboot_left_are_removed_with_old_jobs(tmp_path):
    state = StateFolder(tmp_path)
    state.create_folders()
    for name, age in (("boot-1", 2), ("boot-2", 0)):
        folder = state.queue / name
        folder.mkdir(parents=True)
        os.utime(folder, (time.time() - age * 86_400,) * 2)
    ticket = JobQueue(state.queue).join()
    own = JobQueue(state.queue).path
    os.utime(own, (0, 0))
    gc.remove_old_jobs(state, keep=1, keep_days=1)
    assert {path.name for path in state.queue.iterdir()} == {"boot-2", own.name}
    ticket.release()


@pytest.mark.parametrize("value", [0, -1, True, "many"])
def test_a_limit_that_is_no_positive_number_is_refused(value):
    with pytest.raises(ValueError, match="LocalProcessBackendConfig: max_parallel: "):
        LocalProcessBackendConfig(max_parallel=value)


def test_the_folder_of_the_queue_is_private(single, ask, home):
    single.wait(single.submit(ask(returns)))
    queue = home / "queue"
    assert {path.stat().st_mode & 0o777 for path in (queue, *queue.rglob("*"))} == {0o700, 0o600}
