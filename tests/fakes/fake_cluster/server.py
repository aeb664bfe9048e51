"""The HTTP face of a cluster: every request is logged, spoilt if it must be, let in, and answered."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

from aiohttp import web
from aiohttp_shutdown import stop_server

from fake_cluster import clock, discovery, reading
from fake_cluster.answers import RefusedError
from fake_cluster.fault_injection import spoil, spoilt
from fake_cluster.faults import Faults
from fake_cluster.gate import Gate
from fake_cluster.podlog import Logs
from fake_cluster.resource_kinds import Address
from fake_cluster.store import Store
from fake_cluster.watching import Watches
from fake_cluster.writing import Writer
from trainer_core.k8s.resources import CRDS, PODS

_LARGEST_BODY = 3 * 1024 * 1024
_REMEMBERED = 100_000
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Request:
    """A request as it came in."""

    method: str
    #: Without the query.
    path: str
    #: The last value of each parameter.
    query: dict[str, str]
    #: When, by the monotonic clock.
    time: float
    agent: str
    #: ``get``, ``list``, ``watch``, ``create`` …; empty for what is about no object.
    verb: str
    type: str = ""


class Server:
    """The server."""

    def __init__(self, store: Store, gate: Gate, faults: Faults, logs: Logs) -> None:
        #: The newest requests, oldest first.
        self.requests: deque[Request] = deque(maxlen=_REMEMBERED)
        #: How many requests there were, by verb and plural: ``list pods``.
        self.counts: Counter[str] = Counter()
        self.watches = Watches(store)
        self.writer = Writer(store, gate)
        self._store = store
        self._gate = gate
        self._faults = faults
        self._logs = logs
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> str:
        """Listen on the loopback interface; return the URL."""
        app = web.Application(client_max_size=_LARGEST_BODY, middlewares=[self._refusals])
        app.router.add_route("*", "/{path:.*}", self._serve)
        app.on_response_prepare.append(_set_date)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def stop(self) -> None:
        """Stop listening, and cut what is open."""
        self.watches.cut()
        if self._runner is not None:
            await stop_server(self._runner)

    @web.middleware
    async def _refusals(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except RefusedError as refused:
            return web.json_response(refused.body, status=refused.code, headers=refused.headers)
        except web.HTTPRequestEntityTooLarge:
            return web.json_response(
                RefusedError(413, f"limit is {_LARGEST_BODY}", "RequestEntityTooLarge").body, status=413
            )

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        address = self._store.registry.address(request.path)
        verb = _verb(request, address) if address else ""
        self._note(request, address, verb)
        fault = self._faults.of(request.method, request.path_qs, verb == "watch")
        if fault is not None and not fault.after:
            await spoil(request, fault)
        self._gate.authenticate(request.headers)
        response = await self._answer(request, address, verb)
        if fault is not None and fault.after:
            await spoil(request, fault)
        return await spoilt(request, response)

    def _note(self, request: web.Request, address: Address | None, verb: str) -> None:
        agent = request.headers.get("User-Agent", "")
        query = dict(request.query)
        sent = Request(request.method, request.path, query, time.monotonic(), agent, verb, request.content_type)
        self.requests.append(sent)
        self.counts[f"{verb} {address.kind.plural}" if address else request.path] += 1

    async def _answer(self, request: web.Request, address: Address | None, verb: str) -> web.StreamResponse:
        if address is None:
            return self._about(request.path.strip("/").split("/"))
        self._gate.authorize(verb, address)
        if request.method == "GET":
            return await self._read(request, address, verb)
        if request.method == "POST" and (address.kind, address.part) == (PODS, "eviction"):
            return await self.writer.evict(request, address)
        acts = self._of_object() if address.name else self._of_collection()
        if request.method not in acts:
            raise RefusedError(405)
        return await acts[request.method](request, address)

    def _of_object(self) -> dict[str, Callable[..., Awaitable[web.Response]]]:
        return {"PUT": self.writer.replace, "PATCH": self.writer.patch, "DELETE": self.writer.delete}

    def _of_collection(self) -> dict[str, Callable[..., Awaitable[web.Response]]]:
        return {"POST": self.writer.create, "DELETE": self.writer.delete}

    async def _read(self, request: web.Request, address: Address, verb: str) -> web.StreamResponse:
        if verb == "watch":
            return await self.watches.serve(request, address, request.query)
        if address.name is None:
            return reading.list_page(self._store, address, request.query)
        if address.part == "log" and address.kind == PODS:
            pod = self._store.get(PODS, address.namespace, address.name)
            return await self._logs.serve(request, pod, request.query)
        if address.part not in (None, "status"):
            raise RefusedError(404)
        return reading.get(self._store, address)

    def _about(self, parts: list[str]) -> web.Response:
        found = self._page(parts)
        if found is None:
            return web.Response(text="404 page not found\n", status=404)
        return web.json_response(found)

    def _page(self, parts: list[str]) -> dict[str, Any] | None:
        registry = self._store.registry
        match parts:
            case ["version"]:
                return discovery.VERSION
            case ["api"]:
                return discovery.core()
            case ["apis"]:
                return discovery.groups(registry)
            case ["api", version]:
                return discovery.resources(registry, "", version)
            case ["apis", group]:
                return discovery.group(registry, group)
            case ["apis", group, version]:
                return discovery.resources(registry, group, version)
            case ["openapi", "v3"]:
                return discovery.openapi_index(registry)
            case ["openapi", "v3", "apis", group, version]:
                definitions = [record.raw for record in self._store.listed(CRDS)]
                return discovery.openapi(definitions, group, version)
        return None


async def _set_date(request: web.Request, response: web.StreamResponse) -> None:
    del request
    response.headers["Date"] = formatdate(clock.read(), usegmt=True)


def _verb(request: web.Request, address: Address) -> str:
    if request.method != "GET":
        several = request.method == "DELETE" and address.name is None
        return "deletecollection" if several else _VERBS.get(request.method, request.method.lower())
    if request.query.get("watch") in ("true", "True", "1"):
        return "watch"
    return "get" if address.name else "list"
