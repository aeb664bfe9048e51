"""JobWatcher: who waits for what, what they are told, and the thread in which a `Feed` brings the news."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain

from trainer_core.cluster.answers import ForbiddenError
from trainer_core.cluster.connect import Connection
from trainer_core.cluster.feed import Feed, Listing, Pace
from trainer_core.cluster.known import JOBS, PODS, Entry, Known, Watched
from trainer_core.cluster.raw import Raw, one_line
from trainer_core.cluster.subscription import GroupSubscription, JobSubscription, Subscription
from trainer_core.errors import BackendUnavailableError, TrainerError

__all__ = ["JobWatcher"]

_log = logging.getLogger(__name__)


class JobWatcher:
    """Keeps the state of the jobs that somebody waits for, and wakes who waits when it changes.

    Attributes:
        lock: Held by whoever reads or changes anything here.
        url: The server's address.
        known: The state of each job that is waited for.
        error: Why nothing newer may be known; None while the watch works.
        sees_no_pods: The user may not see pods: only jobs are watched.
    """

    def __init__(
        self, connection: Connection, watched: Watched, pace: Pace, retire: Callable[[JobWatcher, bool], bool]
    ) -> None:
        """Prepare it; nothing runs until `start`.

        Args:
            connection: The cluster, and the namespace to watch.
            watched: What to watch, and what to keep of it.
            pace: How patient to be.
            retire: Asked before it ends, with whether it must: takes it out of the register and returns True, or
                returns False where somebody has joined meanwhile.
        """
        self.lock = threading.Lock()
        self.url = connection.url
        self.known = Known(watched)
        self.error: TrainerError | None = None
        self.sees_no_pods = False
        self._pace = pace
        self._retire = retire
        self._what = f"{watched.kind.plural} in namespace {connection.namespace!r}"
        self._by_name: dict[str, list[JobSubscription]] = defaultdict(list)
        self._groups: list[GroupSubscription] = []
        #: Jobs kept for their labels, whose pods may have been shown before.
        self._adopted: set[str] = set()
        self._broken_since: dict[int, float] = {}
        self._feed = Feed(connection, watched, pace, self)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        # A daemon: a program that ends while somebody waits must not wait, too.
        self._thread = threading.Thread(target=self._run, name="trainjob-watch", daemon=True)

    # From any thread.

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def join(self, subscription: Subscription) -> None:
        """Tell somebody of what happens from now on."""
        with self.lock:
            if isinstance(subscription, JobSubscription):
                self._by_name[subscription.name].append(subscription)
                self.known.entries.setdefault(subscription.name, Entry())
            elif isinstance(subscription, GroupSubscription):
                self._groups.append(subscription)
                self.known.selectors.append(subscription.labels)
            subscription.missing = JOBS if self.sees_no_pods else JOBS | PODS
            self._in_loop(self._feed.newcomers.set)

    def leave(self, subscription: Subscription) -> None:
        """Tell somebody nothing more. Left already: this succeeds."""
        with self.lock:
            if isinstance(subscription, JobSubscription):
                left = [each for each in self._by_name.pop(subscription.name, []) if each is not subscription]
                if left:
                    self._by_name[subscription.name] = left
                self._forget([subscription.name])
            elif subscription in self._groups:
                self._groups = [each for each in self._groups if each is not subscription]
                self.known.selectors = [each.labels for each in self._groups]
                self._forget(list(self.known.entries))
            if self.is_idle:
                self._in_loop(self._end_soon)

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits."""
        return not self._by_name and not self._groups

    def stop(self, patience: float) -> None:
        """End, and wait so many seconds for it at most."""
        with self.lock:
            if self._task is not None:
                self._in_loop(self._task.cancel)
        self._thread.join(patience)

    def orphan(self) -> None:
        """Say to who has subscribed before a fork that nothing will come: the thread is the parent's."""
        self.lock = threading.Lock()
        self._loop = None
        self.error = BackendUnavailableError("the process has forked since it began to watch; subscribe again")
        for subscription in self._everybody():
            subscription.tell()

    # From the feed.

    def scope(self) -> str | None:
        """Return the name of the only job that is waited for; None if there are others, empty if there is none."""
        with self.lock:
            if len(self._by_name) > 1 or self._groups:
                return None
            return next(iter(self._by_name), "")

    def newcomers(self, part: int) -> set[str] | None:
        """Return the jobs of which somebody has not heard this part yet; None where that may be any job."""
        with self.lock:
            waiting = [each for each in self._everybody() if each.missing & part]
            if not all(isinstance(each, JobSubscription) for each in waiting):
                return None
            return {each.name for each in waiting if isinstance(each, JobSubscription)} | self._adopted_of(part)

    def take(self, part: int, event: str, raw: Raw) -> None:
        """Take in an object; from a watch, or from a list."""
        with self.lock:
            before = len(self.known.entries)
            name = self.known.take(part, event, raw)
            if name is None:
                return
            if len(self.known.entries) > before:
                self._adopted.add(name)
                self._feed.newcomers.set()
            self._tell_of(name)

    def begin_list(self, part: int, name: str | None) -> Listing:
        """Say what a list of one job, or of all, is of. What comes to be kept while it arrives, it may show in part."""
        with self.lock:
            kept = self.known.entries
            names = list(kept) if name is None else [name]
            waiting = [each for each in self._everybody() if each.missing & part]
            return Listing(
                part,
                {each: kept[each] for each in names if each in kept},
                [each for each in waiting if name is None or _is_for(each, name)],
            )

    def end_list(self, listing: Listing, seen: Mapping[str, Collection[str]], version: int) -> None:
        """Take in that a list is complete."""
        part = listing.part
        with self.lock:
            for name in self.known.end_list(part, seen, version, listing.entries):
                self._tell_of(name)
            if part == PODS and self.sees_no_pods:
                self.sees_no_pods = False
                self._tell_all()
            if part == PODS:
                self._adopted = self._adopted.intersection(self.known.entries).difference(listing.entries)
            self._has_heard(part, listing.waiting)
            if self._groups:
                self._forget(list(self.known.entries))

    def works(self, part: int) -> None:
        """Take in that a part is watched."""
        with self.lock:
            self._broken_since.pop(part, None)
            if not self._broken_since and self.error is not None:
                self.error = None
                self._tell_all()

    def fails(self, part: int, error: BaseException | None) -> None:
        """Take in that a part cannot be watched at the moment."""
        with self.lock:
            if part == PODS and isinstance(error, ForbiddenError):
                self.sees_no_pods = True
                self._adopted.clear()
                self._broken_since.pop(part, None)
                self._has_heard(part, self._everybody())
                self._tell_all()
                self._feed.newcomers.set()
                return
            since = self._broken_since.setdefault(part, time.monotonic())
            transient = not isinstance(error, BackendUnavailableError) or error.transient
            if isinstance(error, TrainerError) and not (transient and time.monotonic() - since < self._pace.patience):
                self._publish(error)

    # Below: with the lock held.

    def _publish(self, error: TrainerError) -> None:
        if str(error) != str(self.error):
            _log.warning("Watching %s does not work: %s", self._what, error)
            self.error = error
            self._tell_all()

    def _adopted_of(self, part: int) -> set[str]:
        return self._adopted if part == PODS else set()

    def _everybody(self) -> Iterator[Subscription]:
        return chain(self._groups, *self._by_name.values())

    def _tell_all(self) -> None:
        for subscription in self._everybody():
            subscription.tell()

    def _tell_of(self, name: str) -> None:
        # Whether the job was or is one of a group's is not worth finding out: a look costs little.
        for subscription in chain(self._by_name.get(name, ()), self._groups):
            if not subscription.missing:
                subscription.tell()

    def _has_heard(self, part: int, waiting: Iterable[Subscription]) -> None:
        for subscription in waiting:
            subscription.missing &= ~part
            if not subscription.missing:
                subscription.tell()

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._by_name:
                self.known.forget(name)

    def _in_loop(self, function: Callable[[], object]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # It has just ended.
                self._loop.call_soon_threadsafe(function)

    # In its own thread.

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 -- whoever waits must hear of it, whatever it is
            self._retire(self, True)
            with self.lock:
                text = one_line(f"{type(error).__name__}: {error}")
                self._publish(BackendUnavailableError(f"watching {self._what} has ended ({text}); subscribe again"))

    async def _main(self) -> None:
        with self.lock:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.current_task()
        self._end_soon()
        await self._feed.run()

    def _end_soon(self) -> None:
        asyncio.get_running_loop().call_later(self._pace.linger, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if self.is_idle and self._task is not None and self._retire(self, False):
            self._task.cancel()


def _is_for(subscription: Subscription, name: str) -> bool:
    return isinstance(subscription, JobSubscription) and subscription.name == name
