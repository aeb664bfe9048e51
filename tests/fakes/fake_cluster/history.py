"""Every change in the order in which it happened, until it is compacted away."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from fake_cluster.answers import expired

StoredAs = tuple[str, str]


@dataclass(frozen=True)
class Record:
    """One version of an object. It is never modified: a change creates another one."""

    raw: dict[str, Any]

    @cached_property
    def encoded(self) -> bytes:
        """The object as JSON; made once, however many lists and watches show it."""
        return json.dumps(self.raw, separators=(",", ":")).encode()

    @property
    def metadata(self) -> dict[str, Any]:
        return self.raw["metadata"]

    @property
    def key(self) -> tuple[str, str]:
        return self.metadata.get("namespace", ""), self.metadata["name"]


@dataclass(frozen=True)
class Change:
    """What happened to one object."""

    revision: int
    stored_as: StoredAs
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    old: Record | None
    new: Record


class History:
    """Changes by revision."""

    def __init__(self, keep: int) -> None:
        #: Of the newest change.
        self.revision = 1
        #: The revision up to which changes are forgotten.
        self.compacted = 1
        self._keep = keep
        self._changes: deque[Change] = deque()
        self._changed = asyncio.Event()

    def append(self, change: Change) -> None:
        """Record a change, and wake all watches."""
        self.revision = change.revision
        self._changes.append(change)
        if len(self._changes) > self._keep:
            self.compacted = self._changes.popleft().revision
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def compact(self) -> None:
        """Forget all changes: a watch from an earlier resourceVersion gets 410, and has to list again."""
        self._changes.clear()
        self.compacted = self.revision

    def since(self, revision: int) -> list[Change]:
        """Return the changes after a revision."""
        if revision < self.compacted:
            raise expired(f"too old resource version: {revision} ({self.compacted})")
        newest_first = itertools.takewhile(lambda change: change.revision > revision, reversed(self._changes))
        return [*newest_first][::-1]

    def undo(self, revision: int) -> Iterator[Change]:
        """Yield the changes after a revision, newest first."""
        yield from reversed(self.since(revision))

    async def wait(self, timeout: float | None) -> bool:
        """Return True after the next change, or False when the time is over."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except asyncio.TimeoutError:
            return False
        return True
