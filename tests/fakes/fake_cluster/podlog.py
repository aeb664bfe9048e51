"""Logs of containers: kept line by line for each run of a container, read as a kubelet shows them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from aiohttp import web

from fake_cluster.answers import RefusedError, bad_request
from fake_cluster.faults import OF_REQUEST
from fake_cluster.history import Change, Record
from fake_cluster.resource_kinds import stored_as
from trainer_core.k8s.resources import PODS

_SECOND = 1_000_000_000
_BATCH = 256


def stamp(nanoseconds: int) -> str:
    """Return a time as kubelets write it: RFC 3339 with nanoseconds."""
    seconds, rest = divmod(nanoseconds, _SECOND)
    moment = datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    return f"{moment}{fraction}Z"


class Log:
    """What one run of a container has printed."""

    def __init__(self, lines: Sequence[tuple[int, bytes]] | None = None, ended: bool = False) -> None:
        #: Time in nanoseconds, and the line without its end; any sequence, so that a test may make up a long one.
        self.lines: Sequence[tuple[int, bytes]] = [] if lines is None else lines
        self.ended = ended
        self._changed = asyncio.Event()

    def write(self, line: bytes, when: int | None = None) -> None:
        assert isinstance(self.lines, list)
        self.lines.append((time.time_ns() if when is None else when, line))
        self._tell()

    def end(self) -> None:
        self.ended = True
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def batches(self, first: int, since: int, follow: bool) -> AsyncIterator[list[tuple[int, bytes]]]:
        """Yield the lines from one on that are not older than a time; wait for more if they are followed."""
        position = first
        while True:
            changed = self._changed
            while position < len(self.lines):
                batch = self.lines[position : position + _BATCH]
                position += len(batch)
                yield [(when, line) for when, line in batch if when >= since]
            if self.ended or not follow:
                return
            await changed.wait()


class Logs:
    """Logs of all containers: of each run, oldest first, by uid of the pod and name of the container."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], list[Log]] = {}

    def start(self, uid: str, container: str, log: Log | None = None) -> Log:
        """Begin the log of another run of a container."""
        log = log or Log()
        self._runs.setdefault((uid, container), []).append(log)
        return log

    def current(self, uid: str, container: str) -> Log | None:
        runs = self._runs.get((uid, container))
        return runs[-1] if runs else None

    def previous(self, uid: str, container: str) -> Log | None:
        runs = self._runs.get((uid, container), [])
        return runs[-2] if len(runs) > 1 else None

    def on_change(self, change: Change) -> None:
        """Forget the logs of a pod that is gone; who follows them is done."""
        if change.type == "DELETED" and change.stored_as == stored_as(PODS):
            for key in [key for key in self._runs if key[0] == change.new.metadata["uid"]]:
                for log in self._runs.pop(key):
                    log.end()

    async def serve(self, request: web.Request, pod: Record, query: Mapping[str, str]) -> web.StreamResponse:
        """Answer ``GET …/pods/<name>/log``."""
        container = _container(pod, query.get("container"))
        log = self._wanted(pod, container, _yes(query, "previous"))
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        fault = request.get(OF_REQUEST)
        rest = int(query["limitBytes"]) if query.get("limitBytes") else None
        first = max(0, len(log.lines) - int(query["tailLines"])) if query.get("tailLines") else 0
        async for batch in log.batches(first, _since(query), _yes(query, "follow")):
            data = _text(batch, _yes(query, "timestamps"))
            if fault is not None and fault.truncate and data:
                await response.write(data[: len(data) // 2])
                assert request.transport is not None
                request.transport.abort()
                return response
            if rest is not None:
                data, rest = data[:rest], rest - len(data[:rest])
            await response.write(data)
            if rest == 0:
                break
        return response

    def _wanted(self, pod: Record, container: str, previous: bool) -> Log:
        uid, name = pod.metadata["uid"], pod.metadata["name"]
        log = self.previous(uid, container) if previous else self.current(uid, container)
        if log is not None:
            return log
        if previous:
            raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
        raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: {_waiting(pod, container)}')


def _container(pod: Record, asked: str | None) -> str:
    spec = pod.raw["spec"]
    names = [container["name"] for container in spec.get("containers", [])]
    inits = [container["name"] for container in spec.get("initContainers", [])]
    if asked is None and len(names) != 1:
        choice = f"choose one of: [{' '.join(names)}]" + (
            f" or one of the init containers: [{' '.join(inits)}]" * bool(inits)
        )
        raise bad_request(f"a container name must be specified for pod {pod.metadata['name']}, {choice}")
    if asked is not None and asked not in (*names, *inits):
        raise bad_request(f"container {asked} is not valid for pod {pod.metadata['name']}")
    return asked or names[0]


def _waiting(pod: Record, container: str) -> str:
    for status in pod.raw.get("status", {}).get("containerStatuses", []):
        reason = status.get("state", {}).get("waiting", {}).get("reason")
        if status["name"] == container and reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName"):
            return "trying and failing to pull image" if reason != "InvalidImageName" else reason
        if status["name"] == container and reason:
            return reason
    return "ContainerCreating"


def _yes(query: Mapping[str, str], name: str) -> bool:
    return query.get(name) in ("true", "True", "1")


def _since(query: Mapping[str, str]) -> int:
    if query.get("sinceSeconds"):
        return time.time_ns() - int(query["sinceSeconds"]) * _SECOND
    if not query.get("sinceTime"):
        return 0
    try:
        # A metav1.Time: what is smaller than a second is dropped.
        whole = re.sub(r"\.\d+", "", query["sinceTime"]).replace("Z", "+00:00")
        moment = datetime.fromisoformat(whole)
    except ValueError:
        raise RefusedError(400, f"invalid sinceTime {query['sinceTime']}") from None
    return int(moment.timestamp()) * _SECOND


def _text(batch: Sequence[tuple[int, bytes]], timestamps: bool) -> bytes:
    if timestamps:
        return b"".join(stamp(when).encode() + b" " + line + b"\n" for when, line in batch)
    return b"".join(line + b"\n" for _, line in batch)


def lines_of(text: str | Sequence[Any]) -> list[bytes]:
    return [str(line).encode() for line in (text.splitlines() if isinstance(text, str) else text)]
