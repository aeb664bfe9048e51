"""Shared informer of jobs: all who wait in one process share one watch per API server, namespace and resource.

    with informer.subscribe(connection, target, "job", uid) as subscription:
        while subscription.wait(30):              # or: await subscription.wait_async(30)
            snapshot = subscription.snapshot()    # .job, .pods, .error

An informer runs in its own daemon thread, where a reflector of jobs and one of pods fill its `WatchedJobs`. It ends a
while after its last subscription has been closed.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial

from trainer_core.base.errors import BackendUnavailableError
from trainer_core.k8s.cache import Stream, WatchTarget
from trainer_core.k8s.connection import Connection
from trainer_core.k8s.errors import ForbiddenError
from trainer_core.k8s.parsing import to_single_line
from trainer_core.k8s.reflector import Reflector, WatchTimings, retry_until_success
from trainer_core.k8s.watched_jobs import BOTH_STREAMS, Subscription, WatchedJobs

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
        subscription = Subscription(informer.jobs, name, uid)
        informer.jobs.add(subscription, shares_list)
        if is_new:
            informer.start()
    return subscription


def stop_informers(url: str = "") -> None:
    """Stop the informers of an API server, or all, silently: owners of subscriptions would subscribe again."""
    with _registry_lock:
        stopped = {key: each for key, each in _informers.items() if url in ("", each.url)}
        for key in stopped:
            del _informers[key]
    for informer in stopped.values():
        informer.stop(_STOP_SECONDS)


def _unregister(informer: JobInformer, only_if_idle: bool = False) -> bool:
    """Remove an informer that ends, so that the next subscription starts another one. Return whether it was removed."""
    with _registry_lock:
        if only_if_idle and not informer.jobs.is_idle:
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
        informer.jobs.detach_after_fork()


# An informer's thread that runs while the interpreter shuts down can crash.
atexit.register(stop_informers)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


class JobInformer:
    """Watches the jobs of one namespace that have subscriptions, in a thread. `url` is the API server's address."""

    def __init__(self, connection: Connection, target: WatchTarget, timings: WatchTimings) -> None:
        self.url = connection.url
        self.jobs = WatchedJobs(target, connection.namespace, timings.error_grace, self._wake)
        self._connection = connection
        self._target = target
        self._timings = timings
        self._has_new_subscriptions = asyncio.Event()
        #: Protects the three attributes below.
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        # A daemon thread: it must not keep a program alive that ends while a subscription is open.
        self._thread = threading.Thread(target=self._run_thread, name="trainjob-watch", daemon=True)

    # Called from any thread.

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End the thread; wait for it for up to `timeout` seconds."""
        with self._lock:
            # The thread may not have come to its loop.
            self._is_stopped = True
            if self._task is not None:
                self._call_in_loop(self._task.cancel)
        self._thread.join(timeout)

    def _wake(self) -> None:
        self._call_in_loop(self._handle_wake)

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
            text = to_single_line(f"{type(error).__name__}: {error}")
            self.jobs.end(
                BackendUnavailableError(f"the watch of {self.jobs.description} has ended ({text}); subscribe again")
            )

    async def _run(self) -> None:
        with self._lock:
            if self._is_stopped:
                return
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.current_task()
        self._schedule_idle_check()
        while True:
            await self._run_reflectors()

    async def _run_reflectors(self) -> None:
        """List and watch until the watch must grow: one job is watched alone, as a namespace may have thousands."""
        names = self.jobs.get_names()
        if not names:
            await self._has_new_subscriptions.wait()
            self._has_new_subscriptions.clear()
            return
        only_job = names.pop() if len(names) == 1 else None
        jobs, pods = (
            Reflector(self._connection, self._target, stream, only_job, self._timings, self.jobs)
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

    async def _list_for_new_subscriptions(self, only_job: str | None, jobs: Reflector, pods: Reflector) -> None:
        """List the jobs of new subscriptions. Return when one needs a wider watch than that of `only_job`."""
        while True:
            await self._has_new_subscriptions.wait()
            self._has_new_subscriptions.clear()
            if only_job is not None and not self.jobs.get_names() <= {only_job}:
                return
            if jobs.first_listed.is_set() and (pods.first_listed.is_set() or self.jobs.pods_forbidden):
                report_error = partial(self.jobs.report_error, BOTH_STREAMS)
                await retry_until_success(partial(self._list_waiting, jobs, pods), self._timings, report_error)
                self.jobs.clear_error(BOTH_STREAMS)

    async def _list_waiting(self, jobs: Reflector, pods: Reflector) -> None:
        async with self._connection.open_session() as session:
            for name in self.jobs.choose_lists(Stream.JOBS):
                await jobs.list_objects(session, name)
            try:
                for name in self.jobs.choose_lists(Stream.PODS):
                    await pods.list_objects(session, name)
            except ForbiddenError as error:
                self.jobs.report_error(Stream.PODS, error)

    def _handle_wake(self) -> None:
        if self.jobs.is_idle:
            self._schedule_idle_check()
        else:
            self._has_new_subscriptions.set()

    def _schedule_idle_check(self) -> None:
        asyncio.get_running_loop().call_later(self._timings.idle_timeout, self._stop_if_idle)

    def _stop_if_idle(self) -> None:
        if self.jobs.is_idle and self._task is not None and _unregister(self, only_if_idle=True):
            self._task.cancel()


async def _run_after(jobs: Reflector, pods: Reflector) -> None:
    """Run the reflector of pods after the first list of jobs: the pods are then at least as new as their job."""
    await jobs.first_listed.wait()
    await pods.run()
