"""Followers of backends without a watch: one poll of each job for all that wait for it in this process."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import subprocess
import sys
import threading
import time

import pytest
from clock import Clock

from trainer_core.backends import polling_follower
from trainer_core.backends.polling_follower import PollingFollower, PollInterval
from trainer_core.base.errors import BackendUnavailableError, JobNotFoundError
from trainer_core.model.jobs import Observation, TrainJobRef

REF = TrainJobRef("double", "default", "job", "1")
TIMEOUT = 300
RUNNING, COMPLETE = Observation("Running"), Observation("Complete")


class BackendDouble:
    """A backend with one job; counts the reads of its status and of its version.

    Attributes:
        status: What the next read returns, or raises.
        answers: Until it is set, each read hangs.
    """

    def __init__(self, status=RUNNING):
        self.status = status
        self.answers = threading.Event()
        self.answers.set()
        self.observations = self.versions = 0

    def observe(self, ref):
        self.observations += 1
        self.answers.wait(TIMEOUT)
        if isinstance(self.status, Exception):
            raise self.status
        return self.status

    def read_version(self):
        self.versions += 1
        return id(self.status)

    def read_versions(self, count):
        """Wait until the version was read some more times."""
        wanted = self.versions + count
        until(lambda: self.versions >= wanted)

    def follow(self, **arguments):
        return PollingFollower(self, REF, read_version=self.read_version, **arguments)


def until(condition):
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.fixture
def backend():
    backend = BackendDouble()
    yield backend
    until(lambda: backend not in polling_follower._pollers)


def test_a_job_is_read_once_for_all_that_wait_for_it(backend):
    async def wait():
        with backend.follow() as follower:
            await follower.next_observation_async(TIMEOUT)
            return await follower.next_observation_async(TIMEOUT)

    async def wait_for_end():
        waits = [asyncio.ensure_future(wait()) for _ in range(100)]
        await asyncio.to_thread(backend.read_versions, 3)
        backend.status = COMPLETE
        return await asyncio.gather(*waits)

    assert asyncio.run(wait_for_end()) == [COMPLETE] * 100
    assert backend.observations <= 3


def test_threads_share_the_poll_too(backend):
    seen = []

    def wait():
        with backend.follow() as follower:
            seen.append(follower.next_observation(TIMEOUT))
            seen.append(next_until(follower, COMPLETE))

    threads = [threading.Thread(target=wait) for _ in range(10)]
    for thread in threads:
        thread.start()
    until(lambda: len(seen) == 10)
    backend.status = COMPLETE
    for thread in threads:
        thread.join(TIMEOUT)

    assert seen.count(COMPLETE) == 10
    assert backend.observations <= 11


def test_an_unchanged_job_is_not_observed_again(backend):
    with backend.follow() as follower:
        follower.next_observation(0)
        observed = backend.observations
        backend.read_versions(10)

        assert follower.next_observation(0) is RUNNING
        assert backend.observations == observed


def test_with_progress_an_unchanged_job_is_observed_again_and_reported(backend, monkeypatch):
    with backend.follow(progress=True) as follower:
        follower.next_observation(0)
        # Reads that the follower requests itself would fail.
        monkeypatch.setattr(polling_follower, "_READ_SECONDS", 0.0)
        assert [follower.next_observation(TIMEOUT) for _ in range(3)] == [RUNNING] * 3

    assert backend.observations >= 4


def test_a_job_without_a_version_is_observed_at_each_poll(backend):
    with PollingFollower(backend, REF) as follower:
        follower.next_observation(0)
        until(lambda: backend.observations > 3)
        backend.status = COMPLETE

        assert follower.next_observation(TIMEOUT) is COMPLETE


def test_all_see_the_error_of_a_read_and_the_end_of_the_error(backend):
    with backend.follow() as one, backend.follow() as other:
        for follower in (one, other):
            follower.next_observation(0)
        backend.status = BackendUnavailableError("away")
        for follower in (one, other):
            with pytest.raises(BackendUnavailableError, match="away"):
                next_change(follower)
        backend.status = RUNNING  # With the version that was read before the error.
        assert next_until(one, RUNNING) is RUNNING
        backend.status = COMPLETE

        assert next_until(one, COMPLETE) is next_until(other, COMPLETE) is COMPLETE


def next_change(follower):
    while follower.next_observation(TIMEOUT) is RUNNING:
        pass


def next_until(follower, wanted, error=BackendUnavailableError):
    """Return the wanted observation, whatever errors come before."""
    end = time.monotonic() + TIMEOUT
    while True:
        assert time.monotonic() < end
        try:
            observation = follower.next_observation(TIMEOUT)
        except error:
            continue
        if observation is wanted:
            return observation


@pytest.mark.parametrize("read_version", [None, lambda: 1])
def test_an_error_that_no_backend_foresees_fails_its_own_wait_and_the_next_read_is_reported(backend, read_version):
    other = TrainJobRef("double", "default", "other", "2")
    with (
        PollingFollower(backend, REF, read_version=read_version) as broken,
        PollingFollower(BackendDouble(COMPLETE), other, scope=backend) as follower,
    ):
        backend.status = ZeroDivisionError("a bug")
        with pytest.raises(ZeroDivisionError, match="a bug"):
            broken.next_observation(TIMEOUT)
        # One thread reads both.
        assert follower.next_observation(0) is follower.next_observation(0) is COMPLETE
        backend.status = RUNNING
        assert next_until(broken, RUNNING, ZeroDivisionError) is RUNNING


def test_a_version_that_cannot_be_read_does_not_hide_the_observation(backend):
    with PollingFollower(backend, REF, read_version=lambda: 1 / 0) as follower:
        assert follower.next_observation(0) is RUNNING
        backend.status = COMPLETE
        assert follower.next_observation(TIMEOUT) is COMPLETE


def observe_in_loop(follower, timeout):
    return asyncio.run(follower.next_observation_async(timeout))


@pytest.mark.parametrize("observe", [PollingFollower.next_observation, observe_in_loop])
def test_a_read_that_hangs_is_an_error_in_time_and_the_wait_can_go_on(backend, observe, monkeypatch):
    monkeypatch.setattr(polling_follower, "_READ_SECONDS", 0.01)
    backend.answers.clear()
    with PollingFollower(backend, REF) as follower:
        for _ in range(2):  # The read of the subscription, and one that is requested later.
            with pytest.raises(BackendUnavailableError, match="'job' was not read within"):
                observe(follower, 0)
        monkeypatch.setattr(polling_follower, "_READ_SECONDS", TIMEOUT)
        backend.answers.set()

        assert observe(follower, 0) is RUNNING


def test_the_traceback_of_a_shared_error_does_not_grow(backend):
    backend.status = JobNotFoundError("deleted")
    depths = set()
    with backend.follow() as follower:
        for _ in range(5):
            with pytest.raises(JobNotFoundError) as raised:
                follower.next_observation(0)
            depths.add(len(raised.traceback))

    assert len(depths) == 1


def test_a_new_follower_gets_an_observation_that_is_newer_than_itself(backend):
    with backend.follow() as first:
        first.next_observation(0)
        backend.read_versions(1)
        for status in (COMPLETE, RUNNING) * 20:
            backend.status = status
            with backend.follow() as follower:
                assert follower.next_observation(0) is status


def test_an_observation_without_a_change_in_time_is_that_of_now(backend):
    with PollingFollower(backend, REF) as follower:
        follower.next_observation(0)
        until(lambda: backend.observations > 3)
        for status in (COMPLETE, RUNNING) * 20:
            backend.status = status
            assert follower.next_observation(0) is status


def test_a_requested_read_and_a_new_follower_do_not_wait_for_the_next_poll(backend, monkeypatch):
    an_hour = PollInterval(share=0.0, minimum=3600.0, maximum=3600.0, reads_per_second=1.0)
    monkeypatch.setattr(polling_follower, "_OBSERVATION_INTERVAL", an_hour)
    monkeypatch.setattr(polling_follower, "_VERSION_INTERVAL", an_hour)
    other = TrainJobRef("double", "default", "other", "2")
    with backend.follow() as follower:
        for status in (RUNNING, COMPLETE, RUNNING):
            backend.status = status
            assert follower.next_observation(0) is status
            until_idle(backend)
        for ref in (REF, other):
            with PollingFollower(backend, ref) as new:
                assert new.next_observation(0) is RUNNING
            until_idle(backend)


def until_idle(backend):
    """Wait until the thread waits."""
    wake = polling_follower._pollers[backend].wake
    until(lambda: wake._cond._waiters and not wake.is_set())


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(polling_follower, "time", clock)
    return clock


def poll_repeatedly(job, clock, count=200):
    """Poll a job when it is due; return the pauses."""
    pauses = []
    for _ in range(count):
        job.poll(1)
        pauses.append(job.due - clock.now)
        # It may be read earlier, together with another job.
        assert job.early - clock.now == pytest.approx(pauses[-1] / 2)
        clock.now = job.due
    return pauses


@pytest.mark.parametrize(("read_version", "shortest", "longest"), [(None, 0.1, 2.0), (lambda: 1, 0.01, 0.2)])
def test_a_job_is_polled_less_often_the_longer_its_status_does_not_change(
    backend, clock, read_version, shortest, longest
):
    job = polling_follower._PolledJob(lambda: backend.observe(REF), read_version)
    pauses = poll_repeatedly(job, clock)

    assert pauses == pytest.approx(sorted(pauses))
    assert (pauses[0], pauses[-1]) == pytest.approx((shortest, longest))


def test_a_change_of_the_status_makes_the_polls_frequent_again(backend, clock):
    job = polling_follower._PolledJob(lambda: backend.observe(REF), None)
    poll_repeatedly(job, clock)
    backend.status = COMPLETE

    assert poll_repeatedly(job, clock, 1) == pytest.approx([0.1])


def test_progress_is_observed_less_often_than_the_version_is_read(backend, clock):
    job = polling_follower._PolledJob(lambda: backend.observe(REF), lambda: 1, progress=True)
    poll_repeatedly(job, clock)

    assert 10 < backend.observations < 100


def test_a_change_that_comes_while_an_observation_is_taken_is_not_missed(backend, monkeypatch):
    with PollingFollower(backend, REF, read_version=lambda: 1) as follower:
        follower.next_observation(0)

        class ChangingJob:
            @property
            def result(self):
                follower.changed.set()
                return RUNNING

        with monkeypatch.context() as patch:
            patch.setattr(follower, "_job", ChangingJob())
            follower._take_observation(True)

        assert follower.changed.is_set


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_those_that_wait_for_a_thread_that_ended_wake_up_and_start_another_one(backend):
    ends = threading.Event()

    def read_version():
        if ends.is_set():
            ends.clear()
            raise SystemExit
        return id(backend.status)

    with PollingFollower(backend, REF, read_version=read_version) as follower:
        follower.next_observation(0)
        thread = polling_follower._pollers[backend].thread
        ends.set()
        assert follower.next_observation(TIMEOUT) is RUNNING
        thread.join()
        backend.status = COMPLETE

        assert follower.next_observation(0) is COMPLETE


def test_a_follower_that_is_not_closed_is_forgotten(backend):
    backend.follow().next_observation(0)
    gc.collect()

    until(lambda: backend not in polling_follower._pollers)


def test_a_closed_event_loop_does_not_disturb_the_others(backend):
    left = backend.follow()

    async def begin_to_wait():
        await left.next_observation_async(TIMEOUT)
        waiting = asyncio.ensure_future(left.next_observation_async(TIMEOUT))
        await asyncio.sleep(0)
        return waiting

    loop = asyncio.new_event_loop()
    waiting = loop.run_until_complete(begin_to_wait())
    loop.close()
    with backend.follow() as follower:
        follower.next_observation(0)
        backend.status = COMPLETE

        assert next_until(follower, COMPLETE) is COMPLETE
    left.close()
    # Without the loop it cannot be cancelled, and asyncio warns of it.
    waiting._log_destroy_pending = False
    waiting.get_coro().close()


def observe_in_child(follower, unused, results):
    unused.close()
    results.put(follower.next_observation(TIMEOUT).status)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_inherited_follower_works_in_a_forked_child_even_if_threads_of_the_parent_hold_locks(backend):
    with backend.follow() as follower, backend.follow() as unused:
        follower.next_observation(0)
        unused.next_observation(0)
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        child = context.Process(target=observe_in_child, args=(follower, unused, results))
        with polling_follower._lock, polling_follower._pollers[backend].wake._cond:
            child.start()
        try:
            assert results.get(timeout=TIMEOUT) == "Running"
            child.join(TIMEOUT)
            assert child.exitcode == 0
        finally:
            child.kill()
            child.join()


def test_an_open_follower_does_not_keep_the_program_alive():
    program = """
from trainer_core.backends.polling_follower import PollingFollower
from trainer_core.model.jobs import Observation, TrainJobRef
class Backend:
    def observe(self, ref):
        return Observation("Running")
follower = PollingFollower(Backend(), TrainJobRef("x", "x", "x", "x"))
print(follower.next_observation(0).status)
"""
    ended = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=300)

    assert (ended.stdout, ended.stderr, ended.returncode) == ("Running\n", "", 0)


def test_the_interval_grows_with_time_and_with_the_number_of_jobs():
    interval = PollInterval(share=0.1, minimum=0.01, maximum=2.0, reads_per_second=100)

    assert [interval.compute(seconds, jobs=1) for seconds in (0, 0.05, 1, 20, 1000)] == [0.01, 0.01, 0.1, 2.0, 2.0]
    assert [interval.compute(0, jobs) for jobs in (1, 10, 1000)] == [0.01, 0.1, 10.0]
