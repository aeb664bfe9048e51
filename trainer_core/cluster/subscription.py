"""What whoever waits holds: the newest state of one job, or of all jobs with some labels, and a way to sleep."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer_core.cluster.known import JOBS, PODS, Entry
from trainer_core.errors import TrainerError

if TYPE_CHECKING:
    from typing_extensions import Self

    from trainer_core.cluster.watcher import JobWatcher

__all__ = ["GroupSubscription", "JobSubscription", "Snapshot", "Subscription"]


@dataclass(frozen=True)
class Snapshot:
    """What is known of a job.

    Attributes:
        job: What was distilled of it; None when it is gone (deleted, or its name has passed to another job).
        pods: What was distilled of its pods, sorted by name; None when the user may not see pods.
        error: Why nothing newer may be known: the watch has been broken for a while, or is not permitted. What else is
            here is then as it was last seen, and a job of None says nothing.
    """

    job: Any
    pods: tuple[Any, ...] | None
    error: TrainerError | None


class Subscription:
    """Somebody who waits. A context manager; from one thread or event loop at a time.

    The first news come when the state is known that is at least as new as the subscription itself; from then on, no
    change is missed, though several may come as one.
    """

    __slots__ = ("_news", "_wake", "_watcher", "missing")

    def __init__(self, watcher: JobWatcher) -> None:
        self._watcher = watcher
        self._news = False
        self._wake: Callable[[], object] | None = None
        #: Parts of the state that are not known yet; the watcher's own.
        self.missing = JOBS | PODS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait no longer. The last one who leaves ends the watch, a little later."""
        self._watcher.leave(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until there is something new since the last snapshot.

        Args:
            timeout: Seconds to sleep at most.

        Returns:
            Whether there is.
        """
        event = threading.Event()
        if not self._has_news(event.set):
            event.wait(timeout)
        return self._has_news(None)

    async def wait_async(self, timeout: float | None = None) -> bool:
        """Do the same without blocking the running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if self._has_news(partial(_wake_in, loop, future)):
            return self._has_news(None)
        timer = None if timeout is None else loop.call_later(timeout, _finish, future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
            news = self._has_news(None)
        return news

    def tell(self) -> None:
        """Say that there is something new. The watcher's own, with its lock held."""
        self._news = True
        if self._wake is not None:
            self._wake()

    def _has_news(self, wake: Callable[[], object] | None) -> bool:
        with self._watcher.lock:
            self._wake = wake
            return self._news

    def _snapshot(self, entry: Entry | None, uid: str) -> Snapshot:
        is_there = entry is not None and bool(entry.uid) and uid in ("", entry.uid)
        pods = None if self._watcher.sees_no_pods else entry.facts() if entry is not None and is_there else ()
        return Snapshot(entry.job if entry is not None and is_there else None, pods, self._watcher.error)


class JobSubscription(Subscription):
    """Somebody who waits for one job.

    Attributes:
        name: Its name.
        uid: Its uid; empty for whichever has the name.
    """

    __slots__ = ("name", "uid")

    def __init__(self, watcher: JobWatcher, name: str, uid: str) -> None:
        super().__init__(watcher)
        self.name = name
        self.uid = uid

    def snapshot(self) -> Snapshot | None:
        """Return what is known of the job now; None as long as nothing is."""
        with self._watcher.lock:
            self._news = False
            if self.missing and self._watcher.error is None:
                return None
            return self._snapshot(self._watcher.known.entries.get(self.name), self.uid)


class GroupSubscription(Subscription):
    """Somebody who waits for all jobs with some labels.

    Attributes:
        labels: What their labels have among them.
    """

    __slots__ = ("labels",)

    def __init__(self, watcher: JobWatcher, labels: Mapping[str, str]) -> None:
        super().__init__(watcher)
        self.labels = dict(labels)

    def snapshots(self) -> dict[str, Snapshot] | None:
        """Return what is known of each of the jobs, by name; None as long as nothing is. Who is gone is missing."""
        with self._watcher.lock:
            self._news = False
            if self.missing and self._watcher.error is None:
                return None
            entries = self._watcher.known.entries.items()
            return {name: self._snapshot(entry, "") for name, entry in entries if self.wants(entry)}

    def wants(self, entry: Entry) -> bool:
        """Say whether a job is one of them."""
        return entry.labels is not None and self.labels.items() <= entry.labels.items()


def _wake_in(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    # A loop that is closed has nobody who could be woken.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_finish, future)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
