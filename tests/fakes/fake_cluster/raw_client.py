"""The plainest of clients, for tests of the server itself: a method, a path, a body; a status and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import urllib3

from fake_cluster.gate import TOKEN

_MERGE = "application/merge-patch+json"
#: Seconds without an answer; a busy machine takes long.
_PATIENCE = 300.0


class RawClient:
    """Sends requests, once each. A context manager."""

    def __init__(self, url: str, token: str = TOKEN) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}
        self._pool = urllib3.PoolManager(retries=False)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.clear()

    def send(self, method: str, path: str, body: Any = None, media: str | None = None) -> urllib3.BaseHTTPResponse:
        media = media or (_MERGE if method == "PATCH" else "application/json")
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {**self._headers, "Content-Type": media}
        return self._pool.request(method, self._url + path, body=data, headers=headers, timeout=_PATIENCE)

    def ask(self, method: str, path: str, body: Any = None, media: str | None = None) -> tuple[int, Any]:
        answer = self.send(method, path, body, media)
        return answer.status, json.loads(answer.data)

    def stream(self, path: str) -> Iterator[bytes]:
        """Yield an answer piece by piece, as it comes."""
        address = self._url + path
        answer = self._pool.request("GET", address, headers=self._headers, preload_content=False, timeout=_PATIENCE)
        try:
            yield from answer.stream(65536)
        finally:
            answer.close()

    def watch(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield what a watch says, until it ends."""
        rest = b""
        for data in self.stream(path):
            *lines, rest = (rest + data).split(b"\n")
            yield from map(json.loads, lines)
