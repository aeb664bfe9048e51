"""Follower of a TrainJob on a backend without a watch. A thread reads each TrainJob once for all its followers.

1. The first observation of a follower adds its TrainJob to the poller of its scope, such as a state folder. A new
   poller starts its thread.
2. The thread reads the TrainJob at once, then at growing intervals, and wakes the followers after each change.
3. When a follower is closed, or collected as garbage, its TrainJob leaves the poller with the last one. The thread ends
   with its last TrainJob.

It does what `trainer_core.k8s.informer` does for Kubernetes.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from weakref import WeakSet

from trainer_core.backends.follower import Follower
from trainer_core.base.change_event import ChangeEvent
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.model.jobs import Observation, TrainJob, TrainJobRef
from trainer_core.model.logs import MAX_LOG_LINES, LogChunk

#: Seconds until a follower reports that a job was not read. One thread reads all jobs; a wait tolerates the error.
_READ_SECONDS = 60.0
_STOP_SECONDS = 1.0


@dataclass(frozen=True)
class PollInterval:
    """Time between two reads of a job. It grows while the job does not change, and with the number of jobs."""

    #: The interval as a share of the time since the last change.
    share: float
    minimum: float
    maximum: float
    #: Limit for all jobs of a scope together.
    reads_per_second: float

    def compute(self, unchanged: float, jobs: int) -> float:
        return max(min(self.maximum, max(self.minimum, self.share * unchanged)), jobs / self.reads_per_second)


#: For observations, which can take several requests.
_OBSERVATION_INTERVAL = PollInterval(share=0.2, minimum=0.1, maximum=2.0, reads_per_second=25)
#: For reads of the version of a job.
_VERSION_INTERVAL = PollInterval(share=0.05, minimum=0.01, maximum=0.2, reads_per_second=250)

#: Protects the registry, and the jobs of all pollers. Never held while a job is read.
_lock = threading.Lock()
#: The pollers of this process, by scope.
_pollers: dict[Hashable, _JobPoller] = {}


class _Backend(Protocol):
    def __hash__(self) -> int: ...

    def observe(self, ref: TrainJobRef) -> Observation: ...

    def get_job_by_ref(self, ref: TrainJobRef) -> TrainJob: ...

    def tail(self, ref: TrainJobRef, cursor: Mapping[str, Any], job_ended: bool, max_lines: int) -> LogChunk: ...


class PollingFollower(Follower):
    """Follower for a backend without a watch. Use it from one thread or event loop at a time.

    Args:
        backend: The backend, whose `observe` is called.
        ref: The TrainJob.
        progress: Whether the observations must have the latest progress, which the version does not cover.
        scope: What has one poller. None: the backend.
        read_version: Returns a value that changes whenever the status does, and costs much less to read than an
            observation; None if it cannot be read. Without it, the TrainJob is observed at each poll.
    """

    def __init__(
        self,
        backend: _Backend,
        ref: TrainJobRef,
        progress: bool = False,
        scope: Hashable = None,
        read_version: Callable[[], Hashable] | None = None,
    ) -> None:
        self._backend = backend
        self._ref = ref
        self._progress = progress
        self._scope = backend if scope is None else scope
        self._read_version = read_version
        self._changed = ChangeEvent()
        self._poller: _JobPoller | None = None
        self._job = self._create_job()

    @property
    def changed(self) -> ChangeEvent:
        self._join_poller()
        return self._changed

    def next_observation(self, timeout: float) -> Observation:
        if not self._join_poller() and not self._changed.wait(timeout):
            # Without a change, the observation is that of now.
            self._request_read()
        return self._take_observation(self._changed.wait(_READ_SECONDS))

    async def next_observation_async(self, timeout: float) -> Observation:
        if not self._join_poller() and not await self._changed.wait_async(timeout):
            self._request_read()
        return self._take_observation(await self._changed.wait_async(_READ_SECONDS))

    def get_job(self) -> TrainJob:
        return self._backend.get_job_by_ref(self._ref)

    def tail(self, cursor: Mapping[str, Any], job_ended: bool = False, max_lines: int = MAX_LOG_LINES) -> LogChunk:
        return self._backend.tail(self._ref, cursor, job_ended, max_lines)

    def close(self) -> None:
        with _lock:
            self._job.followers.discard(self)
            self._job.requests.discard(self)
            if self._poller is not None:
                self._poller.wake.set()

    def _create_job(self) -> _PolledJob:
        return _PolledJob(partial(self._backend.observe, self._ref), self._read_version, self._progress)

    def _join_poller(self) -> bool:
        """Add the job to a poller, and return True, if it has none: at first, and if its poller's thread has ended."""
        if self._poller is not None and not self._poller.has_ended:
            return False
        with _lock:
            poller = _pollers.get(self._scope)
            if poller is None:
                poller = _JobPoller(self._scope)
                poller.thread.start()
                _pollers[self._scope] = poller
            # Refs are equal without their host, which decides whether a missing job was deleted.
            key = (self._ref, self._ref.host, self._progress)
            self._job = poller.jobs.setdefault(key, self._create_job())
            self._poller = poller
            self._changed.clear()
            self._job.followers.add(self)
            self._job.requests.add(self)
            poller.wake.set()
        return True

    def _request_read(self) -> None:
        """Request a wake-up after a read that begins after this call."""
        with _lock:
            self._job.requests.add(self)
            if self._poller is not None:
                self._poller.wake.set()

    def _take_observation(self, is_read: bool) -> Observation:
        if not is_read:
            raise BackendUnavailableError(f"TrainJob {self._ref.name!r} was not read within {_READ_SECONDS:.0f} s")
        self._changed.clear()
        result = self._job.result
        if isinstance(result, Observation):
            return result
        # All followers raise the same error; a traceback would grow with each of them.
        raise result.with_traceback(None)


class _PolledJob:
    """A job that has followers, and its last observation or the error of its last read."""

    def __init__(
        self, observe: Callable[[], Observation], read_version: Callable[[], Hashable] | None, progress: bool = False
    ) -> None:
        #: Those that are not closed. One that the garbage collector has taken counts as closed.
        self.followers: WeakSet[PollingFollower] = WeakSet()
        #: Those that have requested a read.
        self.requests: WeakSet[PollingFollower] = WeakSet()
        #: When to read it next, and when it may be read together with another job, by the monotonic clock.
        self.due = self.early = 0.0
        self.result: Observation | Exception = BackendUnavailableError("the program ends before the TrainJob was read")
        self._observe = observe
        self._read_version = read_version
        self._progress = progress
        self._version: Hashable = None
        self._changed = 0.0
        self._observed = 0.0

    def poll(self, jobs: int) -> bool:
        """Read the job, and set when it is due again; return whether there is something to report."""
        # Read before the observation: a change in between gives another version at the next poll.
        version = self._find_version()
        now = time.monotonic()
        needs_progress = self._progress and now - self._observed >= _OBSERVATION_INTERVAL.compute(
            now - self._changed, jobs
        )
        must_observe = version is None or version != self._version or needs_progress
        has_news = must_observe and self._update_result(version, now)
        interval = _OBSERVATION_INTERVAL if version is None else _VERSION_INTERVAL
        pause, end = interval.compute(now - self._changed, jobs), time.monotonic()
        # Jobs that are read together need one wake-up of the thread.
        self.early, self.due = end + pause / 2, end + pause
        return has_news

    def _find_version(self) -> Hashable:
        try:
            return self._read_version() if self._read_version else None
        except Exception:  # noqa: BLE001 -- boundary of the thread: the observation raises it to the followers
            return None

    def _update_result(self, version: Hashable, now: float) -> bool:
        """Observe the job; return whether there is something to report."""
        before, self._observed = self.result, now
        try:
            self.result = self._observe()
        except Exception as error:  # noqa: BLE001 -- boundary of the thread: the followers raise it
            self.result, self._version = error, None
            return True
        self._version = version
        if not isinstance(before, Observation) or before.status != self.result.status:
            self._changed = now
        return self._progress or self.result != before


class _JobPoller:
    """Reads the jobs of one scope that have followers, in a thread."""

    def __init__(self, scope: Hashable) -> None:
        # A daemon thread: it must not keep a program alive that ends while a follower is open.
        self.thread = threading.Thread(target=self._run, name="trainjob-poll", daemon=True)
        #: Set when a follower is added or closed, or requests a read.
        self.wake = threading.Event()
        self.has_ended = False
        self.jobs: dict[Hashable, _PolledJob] = {}
        self._scope = scope

    def end(self) -> None:
        """End the thread after its current read, and wake all followers. Called with the lock held."""
        self.has_ended = True
        if _pollers.get(self._scope) is self:
            del _pollers[self._scope]
        for job in self.jobs.values():
            for follower in job.followers:
                follower._changed.set()
        self.wake.set()

    def _run(self) -> None:
        try:
            while not self.has_ended:
                self._poll_due_jobs()
                self._wait()
        finally:
            with _lock:
                self.end()

    def _poll_due_jobs(self) -> None:
        now = time.monotonic()
        with _lock:
            due = [job for job in self.jobs.values() if job.requests or job.early <= now]
            # A request that comes later needs a read that begins later.
            followers = [(list(job.followers), list(job.requests)) for job in due]
            for job in due:
                job.requests.clear()
            count = len(self.jobs)
        for job, (all_of_job, requests) in zip(due, followers, strict=True):
            for follower in all_of_job if job.poll(count) else requests:
                follower._changed.set()

    def _wait(self) -> None:
        """Wait until a job is due or a read is requested. Ends the poller if no job has a follower."""
        with _lock:
            self.jobs = {key: job for key, job in self.jobs.items() if job.followers}
            if not self.jobs:
                self.end()
                return
            due = min(0.0 if job.requests else job.due for job in self.jobs.values())
        if due:
            self.wake.wait(max(0.0, due - time.monotonic()))
        self.wake.clear()


def _stop_pollers() -> None:
    """Stop all pollers: a thread that runs while the interpreter shuts down can crash."""
    with _lock:
        pollers = list(_pollers.values())
        for poller in pollers:
            poller.end()
    for poller in pollers:
        poller.thread.join(_STOP_SECONDS)


def _reset_after_fork() -> None:
    """Drop all pollers in a forked child: threads do not survive a fork, and the lock may be held."""
    global _lock
    _lock = threading.Lock()
    for poller in _pollers.values():
        poller.has_ended = True
        poller.wake = threading.Event()  # Its lock may be held, too.
    _pollers.clear()


atexit.register(_stop_pollers)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
