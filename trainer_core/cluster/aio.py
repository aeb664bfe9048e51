"""Async streams from a cluster: pages of a list, events of a watch; the same refusals as the sync requests have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from trainer_core.cluster import answers
from trainer_core.cluster.answers import BrokenOffError
from trainer_core.cluster.connect import CONNECT_SECONDS, READ_SECONDS, Connection
from trainer_core.cluster.kinds import Kind

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Collection", "list_pages", "watch"]

#: A page is parsed as a whole, and a TrainJob can be 5 kB or 500: as many as fit into so many bytes, from a few on.
_PAGE_BYTES = 2**20
_FIRST_PAGE = 20
_LARGEST_PAGE = 500
#: Seconds after which the server is to end a watch: a proxy in between ends it less politely.
_WATCH_SECONDS = 300


@dataclass(frozen=True)
class Collection:
    """Objects to list and watch.

    Attributes:
        kind: Their kind.
        namespace: Where they are.
        labels: Label selector.
        fields: Field selector.
    """

    kind: Kind
    namespace: str
    labels: str = ""
    fields: str = ""

    def query(self, **asked: str) -> dict[str, str]:
        """Return the parameters of a request for them."""
        selected = {"labelSelector": self.labels, "fieldSelector": self.fields, **asked}
        return {key: value for key, value in selected.items() if value}

    def task(self, verb: str) -> str:
        """Say what is done to them."""
        return f"{verb} {self.kind.plural} in namespace {self.namespace!r}"


async def list_pages(
    connection: Connection, session: aiohttp.ClientSession, collection: Collection
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the pages of a list, each as the server sends it.

    Raises:
        GoneError: The server has forgotten the next page: begin again.
        TrainerError: Any of `answers`.
    """
    token: str | None = ""
    size = _FIRST_PAGE
    while token is not None:
        query = collection.query(limit=str(size), **{"continue": token})
        async with _answer(connection, session, collection, "list", query, READ_SECONDS) as response:
            body = await response.read()
        page = _object(body, collection.task("list"))
        size = max(1, min(_LARGEST_PAGE, _PAGE_BYTES * len(page.get("items") or ()) // len(body)))
        del body
        yield page
        token = page.get("metadata", {}).get("continue") or None


async def watch(
    connection: Connection,
    session: aiohttp.ClientSession,
    collection: Collection,
    version: str,
    quiet: float,
    opened: Callable[[], object],
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield what happens after a version, bookmarks among it, until the server ends the watch or falls silent.

    Args:
        connection: The cluster.
        session: The client.
        collection: What to watch.
        version: The resourceVersion of a list, an object or a bookmark.
        quiet: Seconds of silence after which to end; servers send a bookmark about every minute.
        opened: Called when the server has taken the watch on.

    Raises:
        GoneError: The server has forgotten what came after the version: list again.
        BrokenOffError: The stream ended within an event: watch on from the last version.
        TrainerError: Any of `answers`.
    """
    query = collection.query(
        watch="true", allowWatchBookmarks="true", resourceVersion=version, timeoutSeconds=str(_WATCH_SECONDS)
    )
    task = collection.task("watch")
    async with _answer(connection, session, collection, "watch", query, quiet) as response:
        opened()
        async for line in _lines(response):
            event = _object(line, task)
            if event.get("type") == "ERROR":
                status = event.get("object") or {}
                raise answers.error(int(status.get("code") or 500), json.dumps(status).encode(), task, collection.kind)
            yield event


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    while True:
        try:
            line = await response.content.readline()
        except asyncio.TimeoutError:
            # No error: whoever watches goes on from the version it has.
            return
        if not line:
            return
        yield line


@asynccontextmanager
async def _answer(
    connection: Connection,
    session: aiohttp.ClientSession,
    collection: Collection,
    verb: str,
    query: Mapping[str, str],
    quiet: float,
) -> AsyncIterator[aiohttp.ClientResponse]:
    import aiohttp

    task = collection.task(verb)
    url = f"{connection.url}{collection.kind.path(collection.namespace)}?{urlencode(query)}"
    timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=quiet)
    try:
        response = await _get(connection, session, url, timeout)
        async with response:
            if response.status != 200:
                body = await response.read()
                raise answers.error(response.status, body, task, collection.kind, response.headers)
            try:
                yield response
            finally:
                _hang_up(response)
    except aiohttp.ClientPayloadError as error:
        raise BrokenOffError(f"the connection to {connection.host} broke off while it was to {task}") from error
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
        raise answers.unreachable(task, connection.host, error) from error


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """End the connection of an answer that was not read to its end: TLS's long goodbye may outlive the event loop."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


async def _get(
    connection: Connection, session: aiohttp.ClientSession, url: str, timeout: aiohttp.ClientTimeout
) -> aiohttp.ClientResponse:
    """Credentials may take a plugin seconds: the event loop is the watcher's own, and has nothing else to do."""

    async def get() -> aiohttp.ClientResponse:
        headers = connection.headers()
        return await session.get(url, headers=headers, timeout=timeout, allow_redirects=False, **connection.route)

    turn = connection.turn
    response = await get()
    if response.status == 401 and connection.renew(turn):
        response.close()
        response = await get()
    return response


def _object(text: bytes, task: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BrokenOffError(f"the answer to {task} broke off within an object") from error
    if not isinstance(found, dict):
        raise BrokenOffError(f"the answer to {task} is no object")
    return found
