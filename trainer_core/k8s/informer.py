"""Shared informer of jobs: all who wait in one process share one watch per API server, namespace and resource.

    with informer.subscribe(connection, target, "job", uid) as subscription:
        while subscription.wait(30):              # or: await subscription.wait_async(30)
            snapshot = subscription.snapshot()    # .job, .pods, .error

An informer runs in its own daemon thread. It ends a while after its last subscription has been closed.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from trainer_core.change_event import ChangeEvent
from trainer_core.errors import BackendUnavailableError, TrainerError
from trainer_core.k8s.cache import CachedJob, JobCache, Stream, WatchTarget
from trainer_core.k8s.connection import Connection
from trainer_core.k8s.errors import ForbiddenError
from trainer_core.k8s.parsing import RawObject, to_single_line
from trainer_core.k8s.reflector import Reflector, WatchTimings, retry_until_success

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

_BOTH_STREAMS = Stream.JOBS | Stream.PODS
#: With more new subscriptions than this, one list of all jobs replaces one list for each.
_MAX_SINGLE_LISTS = 10
_STOP_SECONDS = 1.0
_DEFAULT_TIMINGS = WatchTimings()


_registry_lock = threading.Lock()
#: The informers of this process, by connection, namespace, target and timings.
_informers: dict[Hashable, JobInformer] = {}


def subscribe(
    connection: Connection,
    target: WatchTarget,
    name: str,
    uid: str = "",
    timings: WatchTimings | None = None,
    shares_list: bool = False,
) -> Subscription:
    """Subscribe to one job. Returns at once; the informer's thread sends the requests."""
    timings = timings or _DEFAULT_TIMINGS
    key = (connection.identity, connection.namespace, target, timings)
    with _registry_lock:
        informer = _informers.get(key)
        is_new = informer is None
        if informer is None:
            informer = _informers[key] = JobInformer(connection, target, timings)
        subscription = Subscription(informer, name, uid)
        informer.add(subscription, shares_list)
        if is_new:
            informer.start()
    return subscription


def stop_informers(url: str = "") -> None:
    """Stop the informers of an API server, or all: the server, or this program, is about to end.

    Open subscriptions are not notified: their owners would subscribe again.
    """
    with _registry_lock:
        stopped = {key: each for key, each in _informers.items() if url in ("", each.url)}
        for key in stopped:
            del _informers[key]
    for informer in stopped.values():
        informer.stop(_STOP_SECONDS)


def _unregister(informer: JobInformer, only_if_idle: bool = False) -> bool:
    """Remove an informer that ends, so that the next subscription starts another one. Return whether it was removed."""
    # With the informer's lock: while a subscription is removed, others of its job are missing for a moment.
    with _registry_lock, informer.lock:
        if only_if_idle and not informer.is_idle:
            return False
        for key in [key for key, each in _informers.items() if each is informer]:
            del _informers[key]
        return True


def _reset_after_fork() -> None:
    """Drop all informers in a forked child: threads do not survive a fork, and locks may be held."""
    global _registry_lock
    _registry_lock = threading.Lock()
    inherited = list(_informers.values())
    _informers.clear()
    for informer in inherited:
        informer.detach_after_fork()


# An informer's thread that runs while the interpreter shuts down can crash.
atexit.register(stop_informers)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


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

    __slots__ = ("_informer", "changed", "name", "uid", "unlisted_streams")

    def __init__(self, informer: JobInformer, name: str, uid: str) -> None:
        self.name = name
        self.uid = uid
        #: The streams that the cache has not listed since this subscription began. Written by the informer.
        self.unlisted_streams = _BOTH_STREAMS
        self._informer = informer
        self.changed = ChangeEvent()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription. Closing it twice is allowed."""
        self._informer.remove(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the state has changed since the last snapshot."""
        return self.changed.wait(timeout)

    async def wait_async(self, timeout: float | None = None) -> bool:
        """Do the same without blocking the running event loop."""
        return await self.changed.wait_async(timeout)

    def snapshot(self) -> JobSnapshot | None:
        """Return the cached state; None if neither the state nor an error is known yet."""
        informer = self._informer
        with informer.lock:
            self.changed.clear()
            if self.unlisted_streams and informer.error is None:
                return None
            entry = informer.cache.jobs.get(self.name)
            exists = entry is not None and bool(entry.uid) and self.uid in ("", entry.uid)
            pods = None if informer.pods_forbidden else entry.list_pods() if entry is not None and exists else ()
            return JobSnapshot(entry.job if entry is not None and exists else None, pods, informer.error)

    @property
    def has_ended(self) -> bool:
        """Whether the informer has ended, so that only a new subscription reports changes."""
        return self._informer.has_ended

    def notify(self) -> None:
        """Wake the subscriber. Called by the informer, which holds its lock."""
        self.changed.set()


@dataclass(frozen=True)
class ListScope:
    """What a list covers, recorded when it begins: cached jobs, and subscriptions that it brings up to date."""

    stream: Stream
    #: Highest resourceVersion that was known when the list began: the list itself is not older.
    newest: int
    jobs: Mapping[str, CachedJob]
    subscriptions: Sequence[Subscription]


class JobInformer:
    """Watches the jobs of one namespace that have subscriptions, caches them, and notifies the subscriptions.

    Attributes:
        lock: Protects all attributes.
        url: The API server's address.
        cache: The jobs that have subscriptions.
        error: Why the cache may be out of date; None while the watch works.
        pods_forbidden: RBAC denies access to pods: only jobs are watched.
        has_ended: The thread has died, or was left in the parent of a forked process: nothing will be reported again.
    """

    def __init__(self, connection: Connection, target: WatchTarget, timings: WatchTimings) -> None:
        self.lock = threading.Lock()
        self.url = connection.url
        self.cache = JobCache(target)
        self.error: TrainerError | None = None
        self.pods_forbidden = False
        self.has_ended = False
        self._connection = connection
        self._target = target
        self._timings = timings
        self._description = f"{target.resource.plural} in namespace {connection.namespace!r}"
        self._subscriptions: dict[str, list[Subscription]] = defaultdict(list)
        self._waiting_for_list: set[Subscription] = set()
        self._failing_since: dict[Stream, float] = {}
        self._has_new_subscriptions = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        # A daemon thread: it must not keep a program alive that ends while a subscription is open.
        self._thread = threading.Thread(target=self._run_thread, name="trainjob-watch", daemon=True)

    # Called from any thread.

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, subscription: Subscription, shares_list: bool) -> None:
        """Add a subscription."""
        with self.lock:
            others = self._subscriptions[subscription.name]
            is_listed = shares_list and any(not each.unlisted_streams for each in others)
            others.append(subscription)
            self.cache.jobs.setdefault(subscription.name, CachedJob())
            if is_listed:
                subscription.unlisted_streams = Stream(0)
                subscription.notify()
                return
            subscription.unlisted_streams = Stream.JOBS if self.pods_forbidden else _BOTH_STREAMS
            self._waiting_for_list.add(subscription)
            self._call_in_loop(self._has_new_subscriptions.set)

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription. If it has been removed, this succeeds."""
        with self.lock:
            self._waiting_for_list.discard(subscription)
            others = [each for each in self._subscriptions.pop(subscription.name, []) if each is not subscription]
            if others:
                self._subscriptions[subscription.name] = others
            else:
                self.cache.jobs.pop(subscription.name, None)
            if self.is_idle:
                self._call_in_loop(self._schedule_idle_check)

    @property
    def is_idle(self) -> bool:
        """Whether there are no subscriptions."""
        return not self._subscriptions

    def stop(self, timeout: float) -> None:
        """End the thread; wait for it for up to `timeout` seconds."""
        with self.lock:
            # The thread may not have come to its loop.
            self._is_stopped = True
            if self._task is not None:
                self._call_in_loop(self._task.cancel)
        self._thread.join(timeout)

    def detach_after_fork(self) -> None:
        """Report to inherited subscriptions in a forked child that the thread exists only in the parent."""
        self.lock = threading.Lock()
        self._loop = None
        self.has_ended = True
        self.error = BackendUnavailableError("the process was forked after it subscribed to the job; subscribe again")
        self._notify_all()

    # Called by the reflectors.

    def apply_event(self, stream: Stream, event_type: str, raw: RawObject) -> None:
        """Put a watch event or a listed object into the cache."""
        with self.lock:
            name = self.cache.apply_event(stream, event_type, raw)
            if name is not None:
                self._notify_ready(name)

    def begin_list(self, stream: Stream, job_name: str | None) -> ListScope:
        """Record the scope of a list that begins, of one job or of all."""
        with self.lock:
            jobs = self.cache.jobs
            names = list(jobs) if job_name is None else [job_name]
            pending = [
                each
                for each in self._waiting_for_list
                if each.unlisted_streams & stream and job_name in (None, each.name)
            ]
            newest = self.cache.get_newest_version(stream)
            return ListScope(stream, newest, {name: jobs[name] for name in names if name in jobs}, pending)

    def check_list_version(self, scope: ListScope, version: int) -> None:
        """Forget the versions in the cache if a list is older than they were when it began."""
        if 0 < version < scope.newest:
            _log.warning("The API server was restored from a backup: %s are listed again", self._description)
            with self.lock:
                self.cache.forget_versions(scope.stream)

    def finish_list(self, scope: ListScope, listed: Mapping[str, Collection[str]], version: int) -> None:
        """A list is complete: remove the objects in its scope that it does not contain."""
        with self.lock:
            for name in self.cache.finish_list(scope.stream, listed, version, scope.jobs):
                self._notify_ready(name)
            if scope.stream == Stream.PODS and self.pods_forbidden:
                self.pods_forbidden = False
                self._notify_all()
            self._mark_listed(scope.stream, scope.subscriptions)

    def handle_first_list(self, stream: Stream) -> None:
        """The first list of a stream is complete: the stream works, and new subscriptions can be listed."""
        self.clear_error(stream)
        self._has_new_subscriptions.set()

    def clear_error(self, stream: Stream) -> None:
        """A stream works, or the lists for new subscriptions (`_BOTH_STREAMS`) do: forget its failures."""
        with self.lock:
            self._failing_since.pop(stream, None)
            if not self._failing_since and self.error is not None:
                self.error = None
                self._notify_all()

    def report_error(self, stream: Stream, error: BaseException | None) -> None:
        """An attempt to list or watch a stream has failed and will be retried: publish it if that lasts.

        Failed lists for new subscriptions are counted apart, as `_BOTH_STREAMS`: the two watches may still work.
        """
        with self.lock:
            if stream == Stream.PODS and isinstance(error, ForbiddenError):
                self.pods_forbidden = True
                self._failing_since.pop(stream, None)
                self._mark_listed(stream, list(self._waiting_for_list))
                self._notify_all()
                self._has_new_subscriptions.set()
                return
            since = self._failing_since.setdefault(stream, time.monotonic())
            transient = not isinstance(error, BackendUnavailableError) or error.transient
            in_grace = transient and time.monotonic() - since < self._timings.error_grace
            if isinstance(error, TrainerError) and not in_grace:
                self._publish_error(error)

    # Called with the lock held.

    def _publish_error(self, error: TrainerError) -> None:
        if str(error) != str(self.error):
            _log.warning("The watch of %s fails and is retried: %s", self._description, error)
            self.error = error
            self._notify_all()

    def _notify_all(self) -> None:
        for subscription in chain.from_iterable(self._subscriptions.values()):
            subscription.notify()

    def _notify_ready(self, name: str) -> None:
        for subscription in self._subscriptions.get(name, ()):
            if not subscription.unlisted_streams:
                subscription.notify()

    def _mark_listed(self, stream: Stream, subscriptions: Iterable[Subscription]) -> None:
        for subscription in subscriptions:
            subscription.unlisted_streams &= ~stream
            if not subscription.unlisted_streams:
                self._waiting_for_list.discard(subscription)
                subscription.notify()

    def _call_in_loop(self, function: Callable[[], object]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop has just been closed.
                self._loop.call_soon_threadsafe(function)

    # Called in the informer's thread.

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._run())
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 -- the end of a thread: subscribers must see every error
            _unregister(self)
            with self.lock:
                self.has_ended = True
                text = to_single_line(f"{type(error).__name__}: {error}")
                self._publish_error(
                    BackendUnavailableError(f"the watch of {self._description} has ended ({text}); subscribe again")
                )

    async def _run(self) -> None:
        with self.lock:
            if self._is_stopped:
                return
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.current_task()
        self._schedule_idle_check()
        while True:
            await self._run_reflectors()

    async def _run_reflectors(self) -> None:
        """List and watch until the scope of the watch must grow.

        While there is only one job to watch, no other object is requested: a namespace may have thousands.
        """
        names = self._get_job_names()
        if not names:
            await self._has_new_subscriptions.wait()
            self._has_new_subscriptions.clear()
            return
        only_job = names.pop() if len(names) == 1 else None
        jobs, pods = (
            Reflector(self._connection, self._target, stream, only_job, self._timings, self)
            for stream in (Stream.JOBS, Stream.PODS)
        )
        tasks = [
            asyncio.ensure_future(each)
            for each in (jobs.run(), _run_after(jobs, pods), self._list_for_new_subscriptions(only_job, jobs, pods))
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _get_job_names(self) -> set[str]:
        """Return the names of the jobs that have subscriptions."""
        with self.lock:
            return set(self._subscriptions)

    async def _list_for_new_subscriptions(self, only_job: str | None, jobs: Reflector, pods: Reflector) -> None:
        """List the jobs of new subscriptions. Return when one needs a wider watch than that of `only_job`."""
        while True:
            await self._has_new_subscriptions.wait()
            self._has_new_subscriptions.clear()
            if only_job is not None and not self._get_job_names() <= {only_job}:
                return
            if jobs.first_listed.is_set() and (pods.first_listed.is_set() or self.pods_forbidden):
                report_error = partial(self.report_error, _BOTH_STREAMS)
                await retry_until_success(partial(self._list_waiting, jobs, pods), self._timings, report_error)
                self.clear_error(_BOTH_STREAMS)

    async def _list_waiting(self, jobs: Reflector, pods: Reflector) -> None:
        async with self._connection.open_session() as session:
            for name in self._choose_lists(Stream.JOBS):
                await jobs.list_objects(session, name)
            try:
                for name in self._choose_lists(Stream.PODS):
                    await pods.list_objects(session, name)
            except ForbiddenError as error:
                self.report_error(Stream.PODS, error)

    def _choose_lists(self, stream: Stream) -> list[str | None]:
        """Return the jobs to list for new subscriptions, each by its own request; None for all by one request."""
        with self.lock:
            names = {each.name for each in self._waiting_for_list if each.unlisted_streams & stream}
        return [None] if len(names) > _MAX_SINGLE_LISTS else [*sorted(names)]

    def _schedule_idle_check(self) -> None:
        asyncio.get_running_loop().call_later(self._timings.idle_timeout, self._stop_if_idle)

    def _stop_if_idle(self) -> None:
        if self.is_idle and self._task is not None and _unregister(self, only_if_idle=True):
            self._task.cancel()


async def _run_after(jobs: Reflector, pods: Reflector) -> None:
    """Run the reflector of pods after the first list of jobs: the pods are then at least as new as their job."""
    await jobs.first_listed.wait()
    await pods.run()
