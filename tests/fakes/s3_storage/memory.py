"""S3 storage in memory: GET, HEAD, PUT and DELETE of whole objects, for signed requests only."""

from __future__ import annotations

import hashlib
import re

from aiohttp import web

_SIGNATURE = re.compile(r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/.* Signature=")


class MemoryStorage:
    """Buckets of any name."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        #: Access keys that have signed a request.
        self.signers: set[str] = set()
        #: Methods that are answered with AccessDenied.
        self.refused: set[str] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        path, method = request.match_info["path"], request.method
        self.requests.append((method, path))
        signed = _SIGNATURE.match(request.headers.get("Authorization", ""))
        if method in self.refused or signed is None:
            return _build_error(403, "AccessDenied")
        self.signers.add(signed["key"])
        if method == "PUT":
            if request.headers.get("If-None-Match") == "*" and path in self.objects:
                return _build_error(412, "PreconditionFailed")
            self.objects[path] = await request.read()
            return web.Response(headers=_build_etag(self.objects[path]))
        if method == "DELETE":
            self.objects.pop(path, None)
            return web.Response(status=204)
        if path not in self.objects:
            return _build_error(404, "NoSuchKey")
        return web.Response(body=self.objects[path], headers=_build_etag(self.objects[path]))


def _build_etag(content: bytes) -> dict[str, str]:
    return {"ETag": f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'}


def _build_error(status: int, code: str) -> web.Response:
    return web.Response(status=status, text=f"<Error><Code>{code}</Code></Error>", content_type="application/xml")
