"""Async list and watch by aiohttp: the models of `kubernetes_asyncio` would cost each process 50 MB and a second."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from trainer_core.k8s import errors
from trainer_core.k8s.connection import CONNECT_SECONDS, READ_SECONDS, Connection
from trainer_core.k8s.errors import SilentWatchError, StreamInterruptedError
from trainer_core.k8s.resources import ApiResource

if TYPE_CHECKING:
    import aiohttp

#: Bytes of a page. Pages are parsed as a whole and a TrainJob has 5 to 500 kB, so the page size starts low and adapts.
_PAGE_BYTES = 2**20
_FIRST_PAGE_SIZE = 20
_MAX_PAGE_SIZE = 500
#: ``timeoutSeconds`` of a watch. A proxy may otherwise cut a long watch without closing it cleanly.
_WATCH_SECONDS = 300


@dataclass(frozen=True)
class ResourceCollection:
    """Objects to list and watch."""

    resource: ApiResource
    namespace: str
    #: Label selector; empty for all objects.
    label_selector: str = ""
    #: Field selector; empty for all objects.
    field_selector: str = ""

    def build_query(self, **parameters: str) -> dict[str, str]:
        """Return the query parameters of a request for these objects."""
        query = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector, **parameters}
        return {key: value for key, value in query.items() if value}

    def describe_task(self, verb: str) -> str:
        """Return what a request does, for error messages."""
        return f"{verb} {self.resource.plural} in namespace {self.namespace!r}"


async def list_pages(
    connection: Connection, session: aiohttp.ClientSession, collection: ResourceCollection
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the pages of a list as the server sends them."""
    token: str | None = ""
    page_size = _FIRST_PAGE_SIZE
    while token is not None:
        query = collection.build_query(limit=str(page_size), **{"continue": token})
        async with _open_response(connection, session, collection, "list", query, READ_SECONDS) as response:
            body = await response.read()
        page = _parse_object(body, collection.describe_task("list"))
        page_size = max(1, min(_MAX_PAGE_SIZE, _PAGE_BYTES * len(page.get("items") or ()) // len(body)))
        del body
        yield page
        token = page.get("metadata", {}).get("continue") or None


async def watch_events(
    connection: Connection,
    session: aiohttp.ClientSession,
    collection: ResourceCollection,
    version: str,
    silence_timeout: float,
    on_open: Callable[[], object],
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the events after a resourceVersion, including bookmarks, until the server ends the watch."""
    query = collection.build_query(
        watch="true", allowWatchBookmarks="true", resourceVersion=version, timeoutSeconds=str(_WATCH_SECONDS)
    )
    task = collection.describe_task("watch")
    async with _open_response(connection, session, collection, "watch", query, silence_timeout) as response:
        on_open()
        async for line in _read_lines(response, task):
            event = _parse_object(line, task)
            if event.get("type") == "ERROR":
                status = event.get("object") or {}
                code = int(status.get("code") or 500)
                raise errors.build_response_error(code, json.dumps(status).encode(), task, collection.resource)
            yield event


async def _read_lines(response: aiohttp.ClientResponse, task: str) -> AsyncIterator[bytes]:
    while True:
        try:
            line = await response.content.readline()
        except asyncio.TimeoutError:
            raise SilentWatchError(f"the server sent neither an event nor a bookmark: {task}; it is retried") from None
        if not line:
            return
        yield line


@asynccontextmanager
async def _open_response(
    connection: Connection,
    session: aiohttp.ClientSession,
    collection: ResourceCollection,
    verb: str,
    query: Mapping[str, str],
    read_timeout: float,
) -> AsyncIterator[aiohttp.ClientResponse]:
    import aiohttp

    task = collection.describe_task(verb)
    url = f"{connection.url}{collection.resource.build_path(collection.namespace)}?{urlencode(query)}"
    timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=read_timeout)
    try:
        response = await _send_get(connection, session, url, timeout)
        connection.read_server_time(response.headers)
        async with response:
            if response.status != 200:
                body = await response.read()
                raise errors.build_response_error(response.status, body, task, collection.resource, response.headers)
            try:
                yield response
            finally:
                _abort_connection(response)
    except aiohttp.ClientPayloadError as error:
        raise StreamInterruptedError(
            f"the connection to {connection.host} was closed while reading the response to: {task}; retry"
        ) from error
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
        raise errors.build_connection_error(task, connection.host, error) from error


def _abort_connection(response: aiohttp.ClientResponse) -> None:
    """Close the socket of a partly read response at once: a clean TLS shutdown may outlive the event loop."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


async def _send_get(
    connection: Connection, session: aiohttp.ClientSession, url: str, timeout: aiohttp.ClientTimeout
) -> aiohttp.ClientResponse:
    """Send a GET request; reload the credentials once if the server refuses them. A plugin may take seconds for it."""

    async def send_once() -> aiohttp.ClientResponse:
        headers = connection.build_headers()
        return await session.get(url, headers=headers, timeout=timeout, allow_redirects=False, **connection.route)

    generation = connection.credentials_generation
    response = await send_once()
    if response.status == 401 and connection.reload_credentials(generation):
        response.close()
        response = await send_once()
    return response


def _parse_object(text: bytes, task: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise StreamInterruptedError(f"the response to `{task}` ended within an object; retry") from error
    if not isinstance(parsed, dict):
        raise StreamInterruptedError(f"the response to `{task}` is not a JSON object; check the server's address")
    return parsed
