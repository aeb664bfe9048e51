"""WATCH: changes as JSON lines, for as long as the client listens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from fake_cluster.answers import RefusedError
from fake_cluster.event_forms import shown
from fake_cluster.faults import OF_REQUEST
from fake_cluster.history import Change
from fake_cluster.resource_kinds import Address, stored_as
from fake_cluster.selectors import selector
from fake_cluster.store import Store
from trainer_core.k8s.resources import ApiResource

_LONGEST = 3600.0


class Watches:
    """All open watches."""

    def __init__(self, store: Store, bookmark_interval: float = 1.0) -> None:
        #: Seconds between bookmarks; a real server leaves about a minute.
        self.bookmark_interval = bookmark_interval
        self._store = store
        self._open: set[asyncio.Transport] = set()

    def __len__(self) -> int:
        return len(self._open)

    def cut(self) -> None:
        for transport in self._open:
            transport.abort()

    async def serve(self, request: web.Request, address: Address, query: Mapping[str, str]) -> web.StreamResponse:
        """Answer with changes until the client has enough, or ``timeoutSeconds`` are over."""
        chosen = selector(query.get("labelSelector"), query.get("fieldSelector"))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        stream = _Stream(request, response, self._store, address, chosen)
        transport = request.transport
        if transport is None:
            return response
        self._open.add(transport)
        try:
            await self._follow(stream, query)
        except ConnectionError:
            pass  # The client has gone.
        finally:
            self._open.discard(transport)
        return response

    async def _follow(self, stream: _Stream, query: Mapping[str, str]) -> None:
        end = time.monotonic() + float(query.get("timeoutSeconds") or _LONGEST)
        bookmarks = query.get("allowWatchBookmarks") in ("true", "1", "True")
        start = query.get("resourceVersion") or "0"
        revision = await stream.show_all() if start == "0" else int(start)
        asked = revision
        next_bookmark = time.monotonic() + self.bookmark_interval
        while True:
            # Before anything is written: a slow reader lets changes happen meanwhile, and they are still to be shown.
            newest = max(asked, self._store.history.revision)
            if not await stream.show_since(revision):
                return
            revision = newest
            rest = end - time.monotonic()
            if bookmarks and (time.monotonic() >= next_bookmark or rest <= 0):
                # A client that asked for a later revision gets nothing before that: it had it before a restore.
                if revision <= self._store.history.revision:
                    await stream.bookmark(revision)
                next_bookmark = time.monotonic() + self.bookmark_interval
            if rest <= 0:
                return
            patience = min(rest, next_bookmark - time.monotonic()) if bookmarks else rest
            if revision >= self._store.history.revision:
                await self._store.history.wait(max(patience, 0.001))


class _Stream:
    """One watch: turns changes into lines."""

    def __init__(
        self, request: web.Request, response: web.StreamResponse, store: Store, address: Address, chosen: Any
    ) -> None:
        self._request = request
        self._response = response
        self._store = store
        self._address = address
        self._chosen = chosen

    async def show_all(self) -> int:
        """Send the existing objects as added; return the revision."""
        revision = self._store.history.revision
        records = self._store.listed(self._address.kind, self._address.namespace)
        await self._write([_line("ADDED", shown(self._address.kind, r)) for r in records if self._chosen(r.raw)])
        return revision

    async def show_since(self, revision: int) -> bool:
        """Show what has changed; return False where that is no longer known."""
        fault = self._request.get(OF_REQUEST)
        try:
            if fault is not None and fault.gone:
                raise RefusedError(410, f"too old resource version: {revision} ({self._store.history.revision})")
            changes = self._store.history.since(revision)
        except RefusedError as error:
            await self._write([_line("ERROR", json.dumps(error.body).encode())])
            return False
        lines = [line for change in changes if (line := self._of(change))]
        if lines and fault is not None and fault.truncate:
            await self._response.write(lines[0][: len(lines[0]) // 2])
            assert self._request.transport is not None
            self._request.transport.abort()
            return False
        await self._write(lines)
        return True

    async def bookmark(self, revision: int) -> None:
        """Send a BOOKMARK event with the resourceVersion up to which the client has all events."""
        kind = self._address.kind
        metadata = {"resourceVersion": str(revision), "creationTimestamp": None}
        content = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
        await self._write([_line("BOOKMARK", json.dumps(content).encode())])

    def _of(self, change: Change) -> bytes | None:
        kind, namespace = self._address.kind, self._address.namespace
        if change.stored_as != stored_as(kind) or namespace not in (None, change.new.key[0]):
            return None
        return _line_of(kind, change, self._seen(change), self._chosen(change.new.raw))

    def _seen(self, change: Change) -> bool:
        return change.old is not None and self._chosen(change.old.raw)

    async def _write(self, lines: list[bytes]) -> None:
        fault = self._request.get(OF_REQUEST)
        if lines and fault is not None and fault.drip:
            for byte in b"".join(lines):
                await self._response.write(bytes([byte]))
                await asyncio.sleep(fault.drip)
        elif lines:
            await self._response.write(b"".join(lines))


def _line_of(kind: ApiResource, change: Change, seen: bool, chosen: bool) -> bytes | None:
    """Return the line of a change: what moves into a selection is added to it, what moves out is deleted from it."""
    content = shown(kind, change.new)
    if change.type == "DELETED":
        return _line("DELETED", content) if seen else None
    if chosen:
        return _line("MODIFIED" if seen else "ADDED", content)
    return _line("DELETED", content) if seen else None


def _line(event: str, content: bytes) -> bytes:
    return b'{"type":"' + event.encode() + b'","object":' + content + b"}\n"
