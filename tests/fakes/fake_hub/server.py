"""The HTTP side: information, listings in pages, and files; large ones are served by another origin, as on the Hub."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from aiohttp import web
from aiohttp_shutdown import stop_server

from fake_hub.faults import Fault
from fake_hub.repositories import NOT_FOUND, UNKNOWN_OR_PRIVATE, Access, Blob, Repository

_PIECE = 65_536
#: Seconds to wait for a thread, and to hold a body whose gate is not opened: a test may be slow to get there.
_SECONDS = 600


@dataclass(frozen=True)
class Seen:
    """A request as it came."""

    method: str
    path: str
    token: str | None
    range: str | None
    origin: str


class Hub:
    """Serves repositories from a separate thread, between `start` and `stop`.

    Args:
        host: The address to listen at.
        reached_as: The name by which clients know it; containers know it by another.
        page: Entries of a listing's page.
    """

    def __init__(self, host: str = "127.0.0.1", reached_as: str = "127.0.0.1", page: int = 1000) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.tokens: set[str] = set()
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.page = page
        self._host, self._name = host, reached_as
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-hub", daemon=True)
        self._ports: dict[str, int] = {}

    def publish(self, name: str, files: dict[str, bytes], kind: str = "model", **facts: Any) -> Repository:
        """Make a repository with one commit on ``main``."""
        repository = Repository(name, kind, **facts)
        repository.commit(files)
        self.repositories[kind, name] = repository
        return repository

    @property
    def endpoint(self) -> str:
        """What ``HF_ENDPOINT`` is set to."""
        return f"http://{self._name}:{self._ports['hub']}"

    def asked(self, part: str, method: str | None = None) -> list[Seen]:
        """Return the requests whose path has a given part."""
        return [seen for seen in self.seen if part in seen.path and method in (None, seen.method)]

    def __enter__(self) -> Hub:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Hub:
        self._thread.start()
        self._runner = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_SECONDS)
        return self

    def stop(self) -> None:
        """Release the requests that are held, and stop."""
        for fault in self.faults:
            if fault.gate is not None:
                fault.gate.set()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SECONDS)
        self._loop.close()

    async def _end(self) -> None:
        for runner in self._runner:
            await stop_server(runner)

    async def _listen(self) -> list[web.AppRunner]:
        return [await self._site("hub", self._hub), await self._site("large", self._storage)]

    async def _site(self, origin: str, handler: Any) -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, self._host, 0)
        await site.start()
        self._ports[origin] = runner.addresses[0][1]
        return runner

    def _note(self, request: web.Request, origin: str) -> str | None:
        _, _, token = request.headers.get("Authorization", "").partition("Bearer ")
        self.seen.append(Seen(request.method, request.path, token or None, request.headers.get("Range"), origin))
        return token or None

    async def _hub(self, request: web.Request) -> web.StreamResponse:
        token = self._note(request, "hub")
        fault = self._fault(request, refuses=True)
        if fault is not None:
            return web.json_response({"error": "it was made to fail"}, status=fault.status or 0, headers=fault.headers)
        path = request.rel_url.raw_path.strip("/")
        if path.startswith("api/"):
            return self._api(request, unquote(path.removeprefix("api/")), token)
        kind = "dataset" if path.startswith("datasets/") else "model"
        name, _, rest = path.removeprefix("datasets/").partition("/resolve/")
        return await self._file(request, self.repositories.get((kind, name)), rest, token)

    def _fault(self, request: web.Request, refuses: bool) -> Fault | None:
        fitting = [fault for fault in self.faults if (fault.status is not None) == refuses]
        return next((fault for fault in fitting if fault.meets(request.method, request.path)), None)

    def _api(self, request: web.Request, path: str, token: str | None) -> web.Response:
        kinds, _, rest = path.partition("/")
        kind = kinds.removesuffix("s")
        found = next((r for (k, name), r in self.repositories.items() if k == kind and _is_of(rest, name)), None)
        if found is None:
            return _refusal(NOT_FOUND if token in self.tokens else UNKNOWN_OR_PRIVATE)
        verb, _, revision = rest.removeprefix(found.name).strip("/").partition("/")
        access = found.access(token, self.tokens, files=verb == "auth-check")
        if access.status is not None:
            return _refusal(access)
        if verb == "auth-check":
            return web.json_response({})
        sha = found.find(revision or "main")
        if sha is None:
            return _refusal(Access(404, "RevisionNotFound", f"Invalid rev id: {revision}"))
        return self._tree(request, found, sha) if verb == "tree" else web.json_response(_information(found, sha))

    def _tree(self, request: web.Request, repository: Repository, sha: str) -> web.Response:
        entries = [blob.entry(path, repository.xet) for path, blob in repository.commits[sha].items()]
        folders = {path.rpartition("/")[0] for path in repository.commits[sha]} - {""}
        entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": path} for path in sorted(folders)]
        first = int(request.query.get("cursor", "0"))
        last = first + self.page
        following = f"{self.endpoint}{request.path}?recursive=True&cursor={last}"
        links = {"Link": f'<{following}>; rel="next"'} if last < len(entries) else {}
        return web.json_response(entries[first:last], headers=links)

    async def _file(
        self, request: web.Request, found: Repository | None, rest: str, token: str | None
    ) -> web.StreamResponse:
        if found is None:
            return _refusal(NOT_FOUND if token in self.tokens else UNKNOWN_OR_PRIVATE)
        access = found.access(token, self.tokens, files=True)
        if access.status is not None:
            return _refusal(access)
        # Before they are unquoted: a revision such as refs/pr/1 has its slashes quoted.
        revision, path = (unquote(part) for part in rest.split("/", 1))
        sha = found.find(revision)
        blob = found.commits[sha].get(path) if sha else None
        if sha is None or blob is None:
            return _refusal(Access(404, "EntryNotFound" if sha else "RevisionNotFound", "Entry not found"))
        headers = {"X-Repo-Commit": sha, "ETag": f'"{blob.etag}"'}
        if not blob.is_large:
            return await self._body(request, blob, headers)
        large = {"X-Linked-Etag": f'"{blob.etag}"', "X-Linked-Size": str(len(blob.content))}
        place = f"http://{self._name}:{self._ports['large']}/{found.kind}/{found.name}/{sha}/{quote(path)}?signature=0"
        return web.Response(status=302, headers={**headers, **large, "Location": place})

    async def _storage(self, request: web.Request) -> web.StreamResponse:
        self._note(request, "large")
        fault = self._fault(request, refuses=True)
        if fault is not None:
            return web.Response(status=fault.status or 0, headers=fault.headers)
        kind, owner, name, sha, path = unquote(request.rel_url.raw_path).strip("/").split("/", 4)
        blob = self.repositories[kind, f"{owner}/{name}"].commits[sha][path]
        return await self._body(request, blob, {"ETag": f'"{blob.etag}"'})

    async def _body(self, request: web.Request, blob: Blob, headers: dict[str, str]) -> web.StreamResponse:
        fault = self._fault(request, refuses=False) if request.method == "GET" else None
        return await _body(request, blob, headers, fault)


def _is_of(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}/")


def _information(repository: Repository, sha: str) -> dict[str, Any]:
    siblings = [{"rfilename": path} for path in repository.commits[sha]]
    facts = {"private": repository.private, "gated": "manual" if repository.gated else False, "disabled": False}
    return {"id": repository.name, "sha": sha, **facts, "tags": [], "downloads": 0, "likes": 0, "siblings": siblings}


def _refusal(access: Access) -> web.Response:
    headers = {"X-Error-Message": access.message, **({"X-Error-Code": access.code} if access.code else {})}
    return web.json_response({"error": access.message}, status=access.status or 500, headers=headers)


async def _body(request: web.Request, blob: Blob, headers: dict[str, str], fault: Fault | None) -> web.StreamResponse:
    """Send a file or the range of it that was asked for, as far as the fault lets it come."""
    whole = len(blob.content)
    start = request.http_range.start or 0
    if start >= whole > 0:
        return web.Response(status=416, headers={"Content-Range": f"bytes */{whole}"})
    response = web.StreamResponse(status=206 if start else 200, headers={**headers, "Accept-Ranges": "bytes"})
    response.content_length = whole - start
    if start:
        response.headers["Content-Range"] = f"bytes {start}-{whole - 1}/{whole}"
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    content = bytes(whole) if fault is not None and fault.spoils else blob.content
    until = whole if fault is None or fault.spoils else min(whole, start + fault.after)
    for piece in _pieces(content[start:until]):
        await response.write(piece)
    if fault is not None and not fault.spoils and not await _goes_on(fault, request):
        return response
    for piece in _pieces(blob.content[until:]):
        await response.write(piece)
    return response


async def _goes_on(fault: Fault, request: web.Request) -> bool:
    fault.reached.set()
    if fault.gate is not None:
        await asyncio.to_thread(fault.gate.wait, _SECONDS)
        return True
    if request.transport is not None:
        # Not abort: a client that is slow to read would lose what was sent before.
        request.transport.close()
    return False


def _pieces(content: bytes) -> Iterator[bytes]:
    return (content[at : at + _PIECE] for at in range(0, len(content), _PIECE))
