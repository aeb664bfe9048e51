"""The watched jobs of one namespace: their cached state, their subscriptions, and why the cache may be out of date.

A reflector fills it from its thread: `begin_list`, then `apply_event` for each listed object, then `finish_list`; after
that `apply_event` for each watch event, or `report_error`. Each change wakes the subscriptions of its job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from trainer_core.base.change_event import ChangeEvent
from trainer_core.base.errors import BackendUnavailableError, TrainerError
from trainer_core.k8s.cache import CachedJob, JobCache, Stream, WatchTarget
from trainer_core.k8s.errors import ForbiddenError
from trainer_core.k8s.parsing import RawObject

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

BOTH_STREAMS = Stream.JOBS | Stream.PODS
#: With more new subscriptions than this, one list of all jobs replaces one list for each.
_MAX_SINGLE_LISTS = 10


@dataclass(frozen=True)
class JobSnapshot:
    """Cached state of a job."""

    #: Result of `WatchTarget.transform_job`; None if the job does not exist, or has another uid.
    job: Any
    #: Results of `WatchTarget.transform_pod`, sorted by pod name; None if RBAC denies access to pods.
    pods: tuple[Any, ...] | None
    #: Why the state may be out of date: the watch has failed for a while, or RBAC denies it. `job` and `pods` are then
    #: the last known state, and a `job` of None does not mean that the job does not exist.
    error: TrainerError | None


class Subscription:
    """Subscription to the cached state of one job. A context manager; use it from one thread or event loop at a time.

    The first notification comes when the cache is at least as new as the subscription. After that no change is lost,
    but one notification may stand for several changes.

    Attributes:
        uid: uid of the job; empty for any job of this name.
    """

    __slots__ = ("_jobs", "changed", "name", "uid", "unlisted_streams")

    def __init__(self, jobs: WatchedJobs, name: str, uid: str) -> None:
        self.name = name
        self.uid = uid
        #: The streams that the cache has not listed since this subscription began. Written by `WatchedJobs`.
        self.unlisted_streams = BOTH_STREAMS
        self.changed = ChangeEvent()
        self._jobs = jobs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription. Closing it twice is allowed."""
        self._jobs.remove(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the state has changed since the last snapshot."""
        return self.changed.wait(timeout)

    async def wait_async(self, timeout: float | None = None) -> bool:
        """Do the same without blocking the running event loop."""
        return await self.changed.wait_async(timeout)

    def snapshot(self) -> JobSnapshot | None:
        """Return the cached state; None if neither the state nor an error is known yet."""
        return self._jobs.get_snapshot(self)

    @property
    def has_ended(self) -> bool:
        """Whether the informer has ended, so that only a new subscription reports changes."""
        return self._jobs.has_ended


@dataclass(frozen=True)
class ListScope:
    """What a list covers, recorded when it begins: cached jobs, and subscriptions that it brings up to date."""

    stream: Stream
    #: Highest resourceVersion that was known when the list began: the list itself is not older.
    newest: int
    jobs: Mapping[str, CachedJob]
    subscriptions: Sequence[Subscription]


class WatchedJobs:
    """Caches the jobs that have subscriptions, and notifies the subscriptions. Safe to use from several threads.

    Attributes:
        wake: Called when a subscription was added or the last one removed, or new ones can be listed.
        waiting_for_list: The subscriptions that wait for their first list.
        pods_forbidden: RBAC denies access to pods: only jobs are watched.
        has_ended: The thread has died, or was left in the parent of a forked process: nothing will be reported again.
    """

    def __init__(self, target: WatchTarget, namespace: str, error_grace: float, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.waiting_for_list: set[Subscription] = set()
        self.pods_forbidden = False
        self.has_ended = False
        self.description = f"{target.resource.plural} in namespace {namespace!r}"
        self._lock = threading.Lock()
        self._cache = JobCache(target)
        self._subscriptions: dict[str, list[Subscription]] = defaultdict(list)
        self._error_grace = error_grace
        #: Why the cache may be out of date; None while the watch works.
        self._error: TrainerError | None = None
        self._failing_since: dict[Stream, float] = {}

    def add(self, subscription: Subscription, shares_list: bool) -> None:
        """Add a subscription. With `shares_list`, a cached state of its job will do, and no list is requested."""
        with self._lock:
            others = self._subscriptions[subscription.name]
            is_listed = shares_list and any(not each.unlisted_streams for each in others)
            others.append(subscription)
            self._cache.jobs.setdefault(subscription.name, CachedJob())
            if is_listed:
                subscription.unlisted_streams = Stream(0)
                subscription.changed.set()
                return
            subscription.unlisted_streams = Stream.JOBS if self.pods_forbidden else BOTH_STREAMS
            self.waiting_for_list.add(subscription)
            self.wake()

    def remove(self, subscription: Subscription) -> None:
        with self._lock:
            self.waiting_for_list.discard(subscription)
            others = [each for each in self._subscriptions.pop(subscription.name, []) if each is not subscription]
            if others:
                self._subscriptions[subscription.name] = others
            else:
                self._cache.jobs.pop(subscription.name, None)
            if not self._subscriptions:
                self.wake()

    @property
    def is_idle(self) -> bool:
        # With the lock: while a subscription is removed, others of its job are missing for a moment.
        with self._lock:
            return not self._subscriptions

    def get_names(self) -> set[str]:
        with self._lock:
            return set(self._subscriptions)

    def get_snapshot(self, subscription: Subscription) -> JobSnapshot | None:
        """Return the cached state of a subscription's job; None if neither the state nor an error is known yet."""
        with self._lock:
            subscription.changed.clear()
            if subscription.unlisted_streams and self._error is None:
                return None
            entry = self._cache.jobs.get(subscription.name)
            exists = entry is not None and bool(entry.uid) and subscription.uid in ("", entry.uid)
            pods = None if self.pods_forbidden else entry.list_pods() if entry is not None and exists else ()
            return JobSnapshot(entry.job if entry is not None and exists else None, pods, self._error)

    def detach_after_fork(self) -> None:
        """Report to inherited subscriptions in a forked child that the thread exists only in the parent."""
        self._lock = threading.Lock()
        self.wake = lambda: None
        self.has_ended = True
        self._error = BackendUnavailableError("the process was forked after it subscribed to the job; subscribe again")
        self._notify_all()

    def end(self, error: TrainerError) -> None:
        """Report that nothing will be reported again, and why."""
        with self._lock:
            self.has_ended = True
            self._publish_error(error)

    def apply_event(self, stream: Stream, event_type: str, raw: RawObject) -> None:
        """Put a watch event or a listed object into the cache."""
        with self._lock:
            name = self._cache.apply_event(stream, event_type, raw)
            if name is not None:
                self._notify_ready(name)

    def begin_list(self, stream: Stream, job_name: str | None) -> ListScope:
        with self._lock:
            jobs = self._cache.jobs
            names = list(jobs) if job_name is None else [job_name]
            pending = [
                each
                for each in self.waiting_for_list
                if each.unlisted_streams & stream and job_name in (None, each.name)
            ]
            newest = self._cache.get_newest_version(stream)
            return ListScope(stream, newest, {name: jobs[name] for name in names if name in jobs}, pending)

    def check_list_version(self, scope: ListScope, version: int) -> None:
        """Forget the versions in the cache if a list is older than they were when it began."""
        if 0 < version < scope.newest:
            _log.warning("The API server was restored from a backup: %s are listed again", self.description)
            with self._lock:
                self._cache.forget_versions(scope.stream)

    def finish_list(self, scope: ListScope, listed: Mapping[str, Collection[str]], version: int) -> None:
        """A list is complete: remove the objects in its scope that it does not contain."""
        with self._lock:
            for name in self._cache.finish_list(scope.stream, listed, version, scope.jobs):
                self._notify_ready(name)
            if scope.stream == Stream.PODS and self.pods_forbidden:
                self.pods_forbidden = False
                self._notify_all()
            self._mark_listed(scope.stream, scope.subscriptions)

    def choose_lists(self, stream: Stream) -> list[str | None]:
        """Return the jobs to list for new subscriptions, each by its own request; None for all by one request."""
        with self._lock:
            names = {each.name for each in self.waiting_for_list if each.unlisted_streams & stream}
        return [None] if len(names) > _MAX_SINGLE_LISTS else [*sorted(names)]

    def clear_error(self, stream: Stream) -> None:
        """A stream works, or the lists for new subscriptions (`BOTH_STREAMS`) do: forget its failures."""
        with self._lock:
            self._failing_since.pop(stream, None)
            if not self._failing_since and self._error is not None:
                self._error = None
                self._notify_all()

    def report_error(self, stream: Stream, error: BaseException | None) -> None:
        """Publish a failure that lasts. Lists for new subscriptions count as `BOTH_STREAMS`: the watches may work."""
        with self._lock:
            if stream == Stream.PODS and isinstance(error, ForbiddenError):
                self.pods_forbidden = True
                self._failing_since.pop(stream, None)
                self._mark_listed(stream, list(self.waiting_for_list))
                self._notify_all()
                self.wake()
                return
            since = self._failing_since.setdefault(stream, time.monotonic())
            transient = not isinstance(error, BackendUnavailableError) or error.transient
            in_grace = transient and time.monotonic() - since < self._error_grace
            if isinstance(error, TrainerError) and not in_grace:
                self._publish_error(error)

    def _publish_error(self, error: TrainerError) -> None:
        if str(error) != str(self._error):
            _log.warning("The watch of %s fails and is retried: %s", self.description, error)
            self._error = error
            self._notify_all()

    def _notify_all(self) -> None:
        for subscription in chain.from_iterable(self._subscriptions.values()):
            subscription.changed.set()

    def _notify_ready(self, name: str) -> None:
        for subscription in self._subscriptions.get(name, ()):
            if not subscription.unlisted_streams:
                subscription.changed.set()

    def _mark_listed(self, stream: Stream, subscriptions: Iterable[Subscription]) -> None:
        for subscription in subscriptions:
            subscription.unlisted_streams &= ~stream
            if not subscription.unlisted_streams:
                self.waiting_for_list.discard(subscription)
                subscription.changed.set()
