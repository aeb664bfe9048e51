"""A proxy in front of S3 storage with faults that a test sets: it refuses, resets, damages and delays."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import ClientSession, web
from yarl import URL

_HOP = {"host", "connection", "transfer-encoding", "content-length", "content-encoding", "date", "server"}
_LARGE = 2**20
Act = Callable[["Proxy", web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Fault:
    """What happens to some requests."""

    #: Answers in the storage's place.
    act: Act
    #: Which: those whose path ends with this; empty for every listing.
    key: str = ""
    #: To how many of them; the others pass.
    left: int = 1_000_000

    def hits(self, request: web.Request) -> bool:
        """Return whether the fault applies to a request; none applies to HEAD requests."""
        if request.method == "HEAD" or self.left < 1:
            return False
        listing = "list-type" in request.query
        mine = not listing and request.path.endswith(self.key) if self.key else listing
        self.left -= mine
        return mine


@dataclass
class Proxy:
    """The proxy."""

    upstream: str
    faults: list[Fault] = field(default_factory=list)
    #: Method, path and headers of each request.
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**30)
        app.cleanup_ctx.append(self._session)
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    def gets(self, key: str) -> int:
        return sum(method == "GET" and path.endswith(key) for method, path, _ in self.seen)

    async def forward(self, request: web.Request) -> web.Response:
        url = URL(f"{self.upstream}{request.raw_path}", encoded=True)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        body = await request.read()
        # aiohttp warns about large bodies that are not read from a file.
        data = io.BytesIO(body) if len(body) > _LARGE else body
        async with self.session.request(
            request.method, url, headers=headers, data=data, allow_redirects=False
        ) as answer:
            body = await answer.read()
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
            if request.method == "HEAD":
                kept["Content-Length"] = answer.headers.get("Content-Length", "0")
            return web.Response(status=answer.status, headers=kept, body=None if request.method == "HEAD" else body)

    async def _session(self, app: web.Application) -> AsyncIterator[None]:
        async with ClientSession(auto_decompress=False) as self.session:
            yield

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.method, request.path, dict(request.headers)))
        fault = next((fault for fault in self.faults if fault.hits(request)), None)
        return await (fault.act(self, request) if fault else self.forward(request))


def says(status: int, code: str) -> Act:
    """Refuse with an error of S3's."""

    async def act(proxy: Proxy, request: web.Request) -> web.Response:
        text = f"<Error><Code>{code}</Code><Message>No.</Message></Error>"
        # STS, which is asked by POST, wraps it.
        text = f"<ErrorResponse>{text}</ErrorResponse>" if request.method == "POST" else text
        return web.Response(status=status, text=text, content_type="application/xml")

    return act


def cut(status: int) -> Act:
    """Refuse, and break the connection before the reason has been sent."""

    async def act(proxy: Proxy, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(status=status)
        answer.content_length = 100
        await answer.prepare(request)
        await answer.write(b"<Error><Code>Slow")
        request.transport.abort()
        return answer

    return act


def reset(after: int) -> Act:
    """Break the connection after so many bytes of a body."""

    async def act(proxy: Proxy, request: web.Request) -> web.StreamResponse:
        whole = await proxy.forward(request)
        answer = web.StreamResponse(status=whole.status, headers=whole.headers)
        answer.content_length = len(whole.body)
        await answer.prepare(request)
        await answer.write(whole.body[:after])
        request.transport.abort()
        return answer

    return act


async def spoil(proxy: Proxy, request: web.Request) -> web.Response:
    """Turn a bit around."""
    answer = await proxy.forward(request)
    answer.body = bytes([answer.body[0] ^ 1]) + answer.body[1:]
    return answer


def after(change: Callable[[], object]) -> Act:
    """Let something happen to the storage first."""

    async def act(proxy: Proxy, request: web.Request) -> web.Response:
        await asyncio.to_thread(change)
        return await proxy.forward(request)

    return act


def held(at: threading.Event, until: threading.Event) -> Act:
    """Signal that a request has arrived, and hold it until the test is ready, however slow it is."""

    async def act(proxy: Proxy, request: web.Request) -> web.Response:
        at.set()
        await asyncio.to_thread(until.wait, 600)
        return await proxy.forward(request)

    return act


async def lose_answer(proxy: Proxy, request: web.Request) -> web.Response:
    """Carry the request out, and break the connection instead of answering."""
    await proxy.forward(request)
    request.transport.abort()
    return web.Response()
