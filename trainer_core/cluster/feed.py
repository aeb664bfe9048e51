"""Feed: lists and watches jobs and their pods, again and again whatever breaks, and hands on what it sees.

Forever: list, watch from the list's version, watch on from the last version when the connection breaks or falls silent,
list anew when that version is no longer kept. Attempts that fail are repeated with a growing, random pause.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import tenacity

from trainer_core.cluster import aio, kinds
from trainer_core.cluster.answers import BrokenOffError, ForbiddenError, GoneError
from trainer_core.cluster.connect import Connection
from trainer_core.cluster.known import JOBS, PODS, Entry, Watched, number
from trainer_core.cluster.raw import Raw
from trainer_core.errors import BackendUnavailableError, TrainerError

if TYPE_CHECKING:
    import aiohttp

    from trainer_core.cluster.subscription import Subscription

__all__ = ["Feed", "Listing", "Pace"]

#: More newcomers than this are served by one list of all jobs instead of one each.
_FEW = 10
#: What fails when newcomers cannot be told: neither of the watches, which may well go on.
_WELCOME = JOBS | PODS
#: Seconds that a watch must live to count as one that works.
_ALIVE = 1.0
_LONGEST_PAUSE = 10.0


@dataclass(frozen=True)
class Pace:
    """How patient a watcher is, in seconds.

    Attributes:
        linger: How long it goes on after the last subscriber has left.
        patience: How long a watch may be broken until subscribers hear of it.
        quiet: How long a watch may be silent until it is opened anew.
        forbidden: After how long to try again what a role does not allow.
    """

    linger: float = 10.0
    patience: float = 20.0
    quiet: float = 100.0
    forbidden: float = 60.0


@dataclass(frozen=True)
class Listing:
    """A list as it begins: what it will have shown whole, and who will have heard of it, when it is complete.

    Attributes:
        part: `JOBS` or `PODS`.
        entries: The jobs that it is a list of, as they are kept now.
        waiting: Who waits for these, and for nothing else.
    """

    part: int
    entries: Mapping[str, Entry]
    waiting: Sequence[Subscription]


class Board(Protocol):
    """Where a feed hands on what it sees; see `JobWatcher`."""

    @property
    def sees_no_pods(self) -> bool: ...
    def scope(self) -> str | None: ...
    def newcomers(self, part: int) -> set[str] | None: ...
    def take(self, part: int, event: str, raw: Raw) -> None: ...
    def begin_list(self, part: int, name: str | None) -> Listing: ...
    def end_list(self, listing: Listing, seen: Mapping[str, Collection[str]], version: int) -> None: ...
    def works(self, part: int) -> None: ...
    def fails(self, part: int, error: BaseException | None) -> None: ...


class _Part:
    """Jobs, or pods: of which job to watch them, None for all, and how far they are known; None for not at all."""

    def __init__(self, bit: int, name: str | None) -> None:
        self.bit = bit
        self.name = name
        self.version: str | None = None
        self.listed = asyncio.Event()


class Feed:
    """Brings the news of one namespace.

    Attributes:
        newcomers: Set when somebody has subscribed.
    """

    def __init__(self, connection: Connection, watched: Watched, pace: Pace, board: Board) -> None:
        self.newcomers = asyncio.Event()
        self._connection = connection
        self._watched = watched
        self._pace = pace
        self._board = board

    async def run(self) -> None:
        """Go on until cancelled.

        As long as only one job is waited for, nothing else is asked for: a namespace may hold thousands.
        """
        while True:
            scope = self._board.scope()
            jobs, pods = _Part(JOBS, scope or None), _Part(PODS, scope or None)
            tasks = [
                asyncio.ensure_future(each)
                for each in (self._follow(jobs), self._follow(pods, jobs), self._welcome(scope, jobs, pods))
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, part: _Part, first: _Part | None = None) -> None:
        if first is not None:
            # Pods are kept for the jobs that are known.
            await first.listed.wait()
        while True:
            await self._until_it_works(part.bit, partial(self._list_and_watch, part))

    async def _list_and_watch(self, part: _Part) -> None:
        """Return when the watch has worked for a while; what ends sooner is an error."""
        async with self._connection.session() as session:
            if part.version is None:
                part.version = await self._list(part.bit, part.name, session)
                self._board.works(part.bit)
                part.listed.set()
                self.newcomers.set()
            began = time.monotonic()
            try:
                await self._watch(part, session, part.version)
            except GoneError:
                part.version = None
                if time.monotonic() - began < _ALIVE:
                    raise
            except BackendUnavailableError as error:
                if not error.transient or time.monotonic() - began < _ALIVE:
                    raise

    async def _watch(self, part: _Part, session: aiohttp.ClientSession, version: str) -> None:
        began = time.monotonic()
        collection = self._collection(part.bit, part.name)
        events = aio.watch(
            self._connection,
            session,
            collection,
            version,
            quiet=self._pace.quiet,
            opened=lambda: self._board.works(part.bit),
        )
        async with aclosing(events):
            async for event in events:
                raw = event.get("object") or {}
                if event.get("type") != "BOOKMARK":
                    self._board.take(part.bit, str(event.get("type")), raw)
                part.version = (raw.get("metadata") or {}).get("resourceVersion") or part.version
        if time.monotonic() - began < _ALIVE:
            raise BrokenOffError(f"the server ends at once whatever is to {collection.task('watch')}")

    async def _list(self, bit: int, name: str | None, session: aiohttp.ClientSession) -> str:
        """List a part of one job, or of all; return the version of the list."""
        listing = self._board.begin_list(bit, name)
        seen: dict[str, set[str]] = defaultdict(set)
        version = "0"
        pages = aio.list_pages(self._connection, session, self._collection(bit, name))
        async with aclosing(pages):
            async for page in pages:
                version = str(page["metadata"]["resourceVersion"])
                for raw in page.get("items") or ():
                    self._see(bit, raw, seen)
        self._board.end_list(listing, seen, number(version))
        return version

    def _see(self, bit: int, raw: Raw, seen: dict[str, set[str]]) -> None:
        metadata = raw["metadata"]
        if bit == JOBS:
            seen[metadata["name"]] = set()
        else:
            job = (metadata.get("labels") or {}).get(self._watched.pod_label)
            seen[str(job)].add(metadata["name"])
        self._board.take(bit, "ADDED", raw)

    async def _welcome(self, scope: str | None, jobs: _Part, pods: _Part) -> None:
        """Give newcomers the state as of now; return when they need a wider watch."""
        while True:
            await self.newcomers.wait()
            self.newcomers.clear()
            if scope is not None and self._board.scope() not in (scope, ""):
                return
            if jobs.listed.is_set() and (pods.listed.is_set() or self._board.sees_no_pods):
                await self._until_it_works(_WELCOME, self._list_for_newcomers)
                self._board.works(_WELCOME)

    async def _list_for_newcomers(self) -> None:
        async with self._connection.session() as session:
            await self._list_of_newcomers(JOBS, session)
            try:
                await self._list_of_newcomers(PODS, session)
            except ForbiddenError as error:
                self._board.fails(PODS, error)

    async def _list_of_newcomers(self, bit: int, session: aiohttp.ClientSession) -> None:
        """List a part for who waits for it: each job alone where they are few."""
        names = self._board.newcomers(bit)
        if names is None or len(names) > _FEW:
            await self._list(bit, None, session)
            return
        for name in sorted(names):
            await self._list(bit, name, session)

    def _collection(self, bit: int, name: str | None) -> aio.Collection:
        """What there is of a part: of one job, or of all."""
        namespace, label = self._connection.namespace, self._watched.pod_label
        if bit == JOBS:
            return aio.Collection(self._watched.kind, namespace, fields=f"metadata.name={name}" if name else "")
        return aio.Collection(kinds.PODS, namespace, labels=f"{label}={name}" if name else label)

    async def _until_it_works(self, part: int, action: Callable[[], Awaitable[None]]) -> None:
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(TrainerError),
            wait=self._pause,
            before_sleep=lambda state: self._board.fails(part, _error(state)),
        )
        await attempts(action)

    def _pause(self, state: tenacity.RetryCallState) -> float:
        error = _error(state)
        if isinstance(error, ForbiddenError):
            return self._pace.forbidden
        pause = tenacity.wait_random_exponential(multiplier=0.1, max=_LONGEST_PAUSE)(state)
        return max(pause, min(getattr(error, "retry_after", 0.0), _LONGEST_PAUSE))


def _error(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None
