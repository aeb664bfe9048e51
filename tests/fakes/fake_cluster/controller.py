"""Runs controllers: each reconciles an object when it, or an object that it owns, has changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from fake_cluster.history import Change, Record
from fake_cluster.resource_kinds import stored_as
from fake_cluster.store import Store
from trainer_core.k8s.resources import ApiResource

#: Brings the world nearer to what an object asks for; returns seconds after which to look again, or None.
Reconcile = Callable[[Record], float | None]
_Key = tuple[ApiResource, str, str]


class Controllers:
    """A queue of objects to reconcile, and its worker."""

    def __init__(self, store: Store, reconcile: Mapping[ApiResource, Reconcile]) -> None:
        self._store = store
        self._reconcile = dict(reconcile)
        self._by_stored = {stored_as(kind): kind for kind in reconcile}
        self._queue: dict[_Key, None] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        store.listeners.append(self._on_change)

    def start(self) -> None:
        """Begin with the existing objects; must be called in the event loop."""
        for kind in self._reconcile:
            for record in self._store.listed(kind):
                self._add((kind, *record.key))
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop; raises the error of a reconciliation."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def look(self, kind: ApiResource, namespace: str, name: str) -> None:
        """Queue an object for reconciliation."""
        self._add((kind, namespace, name))

    def _add(self, key: _Key) -> None:
        self._queue[key] = None
        self._wake.set()

    def _on_change(self, change: Change) -> None:
        if kind := self._by_stored.get(change.stored_as):
            self._add((kind, *change.new.key))
        for owner in change.new.metadata.get("ownerReferences") or ():
            for kind in self._reconcile:
                if (kind.api_version, kind.kind) == (owner["apiVersion"], owner["kind"]):
                    self._add((kind, change.new.key[0], owner["name"]))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                key = next(iter(self._queue))
                del self._queue[key]
                kind, namespace, name = key
                record = self._store.find(kind, namespace, name)
                again = self._reconcile[kind](record) if record is not None else None
                if again is not None:
                    loop.call_later(again, self._add, key)
                # Requests are answered in between, as they are on a cluster.
                await asyncio.sleep(0)
