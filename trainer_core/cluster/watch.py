"""Subscribing to jobs: whoever waits in this process shares one watch per cluster, namespace and kind.

with watch.subscribe(connection, WATCHED, "job", uid) as subscription:
    while subscription.wait(30):              # or: await subscription.wait_async(30)
        snapshot = subscription.snapshot()    # .job, .pods, .error
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from trainer_core.cluster.connect import Connection
from trainer_core.cluster.feed import Pace
from trainer_core.cluster.known import Watched
from trainer_core.cluster.subscription import GroupSubscription, JobSubscription, Snapshot, Subscription
from trainer_core.cluster.watcher import JobWatcher

__all__ = ["GroupSubscription", "JobSubscription", "Pace", "Snapshot", "Watched", "stop", "subscribe", "subscribe_all"]

_USUAL = Pace()
_EXIT_SECONDS = 1.0

_S = TypeVar("_S", bound=Subscription)


def subscribe(
    connection: Connection, watched: Watched, name: str, uid: str = "", pace: Pace = _USUAL
) -> JobSubscription:
    """Subscribe to one job. The server is asked by another thread: this returns at once.

    Args:
        connection: The cluster and the namespace. The first subscriber's is used for all with an equal one.
        watched: What to watch, and what to keep of it.
        name: The job.
        uid: Only while it is this very one; empty for whichever has the name.
        pace: How patient to be.
    """
    return _registry.subscribe(connection, watched, pace, lambda watcher: JobSubscription(watcher, name, uid))


def subscribe_all(
    connection: Connection, watched: Watched, labels: Mapping[str, str], pace: Pace = _USUAL
) -> GroupSubscription:
    """Subscribe to all jobs that have some labels; see `subscribe`."""
    return _registry.subscribe(connection, watched, pace, lambda watcher: GroupSubscription(watcher, labels))


def stop(url: str = "") -> None:
    """End what watches a server, or all servers: it is gone, or this program is about to be.

    Args:
        url: The server's address; empty for all.
    """
    _registry.stop(url)


class _Registry:
    """The watchers of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: dict[Hashable, JobWatcher] = {}

    def subscribe(self, connection: Connection, watched: Watched, pace: Pace, make: Callable[[JobWatcher], _S]) -> _S:
        key = (connection.identity, connection.namespace, watched, pace)
        with self._lock:
            watcher = self._watchers.get(key)
            is_new = watcher is None
            if watcher is None:
                watcher = self._watchers[key] = JobWatcher(connection, watched, pace, self._retire)
            subscription = make(watcher)
            watcher.join(subscription)
            if is_new:
                watcher.start()
        return subscription

    def stop(self, url: str) -> None:
        """End some, or all, so that no thread is caught by the end of the interpreter in the middle of something."""
        with self._lock:
            ended = [each for each in self._watchers.values() if url in ("", each.url)]
            self._watchers = {key: each for key, each in self._watchers.items() if each not in ended}
        for watcher in ended:
            watcher.stop(_EXIT_SECONDS)

    def after_fork(self) -> None:
        """Begin anew in a forked child: threads stay behind in the parent, and locks as they happened to be."""
        left, self._watchers, self._lock = self._watchers, {}, threading.Lock()
        for watcher in left.values():
            watcher.orphan()

    def _retire(self, watcher: JobWatcher, even_if_used: bool) -> bool:
        with self._lock:
            if not watcher.is_idle and not even_if_used:
                return False
            self._watchers = {key: each for key, each in self._watchers.items() if each is not watcher}
            return True


_registry = _Registry()
atexit.register(stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_registry.after_fork)
