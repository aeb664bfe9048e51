"""Polls TrainJobs for all that wait in this process: each is read once, however many wait for it.

    subscription = job_poller.subscribe(scope, key, reader)
    while subscription.wait(30):              # or: await subscription.wait_async(30)
        observation = subscription.get_observation()
    subscription.close()

It does for a backend without a watch what `trainer_core.k8s.informer` does for Kubernetes. There is a thread for each
scope, such as a state folder. It ends when nothing waits there.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from weakref import WeakSet

from trainer_core.change_event import ChangeEvent
from trainer_core.errors import BackendUnavailableError
from trainer_core.jobs import Observation


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
        """Return the interval."""
        return max(min(self.maximum, max(self.minimum, self.share * unchanged)), jobs / self.reads_per_second)


#: For observations, which can take several requests.
_OBSERVATION_INTERVAL = PollInterval(share=0.2, minimum=0.1, maximum=2.0, reads_per_second=25)
#: For reads of the version of a job.
_VERSION_INTERVAL = PollInterval(share=0.05, minimum=0.01, maximum=0.2, reads_per_second=250)
_STOP_SECONDS = 1.0


@dataclass(frozen=True)
class JobReader:
    """Reads one job."""

    observe: Callable[[], Observation]
    #: Returns a value that changes whenever the status does, and costs much less to read; None if it cannot be read.
    #: Without this function, the job is observed at each poll.
    read_version: Callable[[], Hashable] | None = None
    #: Whether the observations must have the latest progress, which the version does not cover.
    progress: bool = False


#: Protects the registry, and the jobs of all pollers. Never held while a job is read.
_lock = threading.Lock()
#: The pollers of this process, by scope.
_pollers: dict[Hashable, _JobPoller] = {}


def subscribe(scope: Hashable, key: Hashable, reader: JobReader) -> Subscription:
    """Subscribe to a job and request a read. Returns at once; the thread of the scope reads the job."""
    with _lock:
        poller = _pollers.get(scope)
        is_new = poller is None
        if poller is None:
            poller = _JobPoller(scope)
        subscription = poller.add(key, reader)
        if is_new:
            poller.start()
            _pollers[scope] = poller
    return subscription


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


class Subscription:
    """Subscription to the observations of one job. Use it from one thread or event loop at a time.

    Notifications come after each change of what is observed, after each read that failed, after each observation if the
    progress is read, and after a requested read.
    """

    __slots__ = ("__weakref__", "_job", "_poller", "changed")

    def __init__(self, poller: _JobPoller, job: _PolledJob) -> None:
        self._poller = poller
        self._job = job
        self.changed = ChangeEvent()

    def close(self) -> None:
        """End the subscription. Closing it twice is allowed."""
        with _lock:
            self._job.subscriptions.discard(self)
            self._job.requests.discard(self)
            self._poller.wake.set()

    def request_read(self) -> None:
        """Request a notification after a read that begins after this call. Returns at once."""
        with _lock:
            self._job.requests.add(self)
            self._poller.wake.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until there is a notification since the last call of `get_observation`."""
        return self.changed.wait(timeout)

    async def wait_async(self, timeout: float | None = None) -> bool:
        """Do the same without blocking the running event loop."""
        return await self.changed.wait_async(timeout)

    def get_observation(self) -> Observation:
        """Return the last observation."""
        self.changed.clear()
        result = self._job.result
        if isinstance(result, Observation):
            return result
        # All subscriptions raise the same error; a traceback would grow with each of them.
        raise result.with_traceback(None)

    @property
    def has_ended(self) -> bool:
        """Whether nothing will be reported again: the thread was left in the parent of a forked process."""
        return self._poller.has_ended

    def notify(self) -> None:
        """Wake the subscriber. Called by the poller."""
        self.changed.set()


class _PolledJob:
    """A job that has subscriptions.

    Attributes:
        subscriptions: Those that are not closed. One that the garbage collector has taken counts as closed.
        requests: Those that have requested a read.
        due: When to read it next, in seconds of the monotonic clock.
        early: When it may be read together with a job that is due.
        result: The last observation, or the error of the last read.
    """

    def __init__(self, reader: JobReader) -> None:
        self.subscriptions: WeakSet[Subscription] = WeakSet()
        self.requests: WeakSet[Subscription] = WeakSet()
        self.due = self.early = 0.0
        self.result: Observation | Exception = BackendUnavailableError("the program ends before the TrainJob was read")
        self._reader = reader
        self._version: Hashable = None
        self._changed = 0.0
        self._observed = 0.0

    def poll(self, jobs: int) -> bool:
        """Read the job, and set when it is due again; return whether there is something to report."""
        # Read before the observation: a change in between gives another version at the next poll.
        version = self._read_version()
        now = time.monotonic()
        must_observe = version is None or version != self._version or self._needs_progress(now, jobs)
        has_news = must_observe and self._observe(version, now)
        interval = _OBSERVATION_INTERVAL if version is None else _VERSION_INTERVAL
        pause, end = interval.compute(now - self._changed, jobs), time.monotonic()
        # Jobs that are read together need one wake-up of the thread.
        self.early, self.due = end + pause / 2, end + pause
        return has_news

    def _read_version(self) -> Hashable:
        try:
            return self._reader.read_version() if self._reader.read_version else None
        except Exception:  # noqa: BLE001 -- boundary of the thread: the observation raises it to the subscribers
            return None

    def _needs_progress(self, now: float, jobs: int) -> bool:
        interval = _OBSERVATION_INTERVAL.compute(now - self._changed, jobs)
        return self._reader.progress and now - self._observed >= interval

    def _observe(self, version: Hashable, now: float) -> bool:
        """Observe the job; return whether there is something to report."""
        before, self._observed = self.result, now
        try:
            self.result = self._reader.observe()
        except Exception as error:  # noqa: BLE001 -- boundary of the thread: the subscribers raise it
            self.result, self._version = error, None
            return True
        self._version = version
        if not isinstance(before, Observation) or before.status != self.result.status:
            self._changed = now
        return self._reader.progress or self.result != before


class _JobPoller:
    """Reads the jobs of one scope that have subscriptions, in a thread.

    Attributes:
        wake: Set when a subscription is added or closed, or requests a read.
        has_ended: Whether it has stopped reading.
    """

    def __init__(self, scope: Hashable) -> None:
        # A daemon thread: it must not keep a program alive that ends while a subscription is open.
        self.thread = threading.Thread(target=self._run, name="trainjob-poll", daemon=True)
        self.wake = threading.Event()
        self.has_ended = False
        self._scope = scope
        self._jobs: dict[Hashable, _PolledJob] = {}

    # Called with the lock held.

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def add(self, key: Hashable, reader: JobReader) -> Subscription:
        """Add a subscription."""
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _PolledJob(reader)
        subscription = Subscription(self, job)
        job.subscriptions.add(subscription)
        job.requests.add(subscription)
        self.wake.set()
        return subscription

    def end(self) -> None:
        """End the thread after its current read, and wake all subscribers."""
        self.has_ended = True
        if _pollers.get(self._scope) is self:
            del _pollers[self._scope]
        for job in self._jobs.values():
            for subscription in job.subscriptions:
                subscription.notify()
        self.wake.set()

    # Called in the thread.

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
            due = [job for job in self._jobs.values() if job.requests or job.early <= now]
            # A request that comes later needs a read that begins later.
            subscriptions = [(list(job.subscriptions), list(job.requests)) for job in due]
            for job in due:
                job.requests.clear()
            count = len(self._jobs)
        for job, (all_of_job, requests) in zip(due, subscriptions, strict=True):
            for subscription in all_of_job if job.poll(count) else requests:
                subscription.notify()

    def _wait(self) -> None:
        """Wait until a job is due or a read is requested. Ends the poller if no job has a subscription."""
        with _lock:
            self._jobs = {key: job for key, job in self._jobs.items() if job.subscriptions}
            if not self._jobs:
                self.end()
                return
            due = min(0.0 if job.requests else job.due for job in self._jobs.values())
        if due:
            self.wake.wait(max(0.0, due - time.monotonic()))
        self.wake.clear()
