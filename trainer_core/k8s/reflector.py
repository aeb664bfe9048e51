"""Reflector: the list-watch loop of one resource, with retries. It forwards objects and errors to `WatchedJobs`.

List; watch from the list's resourceVersion; watch again from the last version when the connection is closed. List again
when the server no longer has that version (410), or when a watch is silent or counts from an earlier version, because
the server was restored from a backup. Failed attempts are repeated with exponential backoff.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from trainer_core.base.errors import BackendUnavailableError, TrainerError
from trainer_core.k8s import async_client, resources
from trainer_core.k8s.cache import Stream, WatchTarget, parse_resource_version
from trainer_core.k8s.connection import Connection
from trainer_core.k8s.errors import ForbiddenError, ResourceExpiredError, SilentWatchError, StreamInterruptedError
from trainer_core.k8s.parsing import RawObject
from trainer_core.k8s.watched_jobs import WatchedJobs

if TYPE_CHECKING:
    import aiohttp

#: A watch that ends sooner, in seconds, counts as failed, and is retried with backoff.
_MIN_WATCH_SECONDS = 1.0
_MAX_BACKOFF_SECONDS = 10.0


@dataclass(frozen=True)
class WatchTimings:
    """Timings of an informer, in seconds."""

    #: Time from the end of the last subscription to the end of the informer.
    idle_timeout: float = 10.0
    #: Time for which a watch may fail before subscribers see the error.
    error_grace: float = 20.0
    #: Time without an event or bookmark after which a watch is opened again.
    silence_timeout: float = 100.0
    #: Time between attempts that RBAC denies.
    forbidden_retry: float = 60.0


class Reflector:
    """Lists and watches jobs or pods of a namespace for `WatchedJobs`. `first_listed`: the first list is complete."""

    def __init__(
        self,
        connection: Connection,
        target: WatchTarget,
        stream: Stream,
        job_name: str | None,
        timings: WatchTimings,
        jobs: WatchedJobs,
    ) -> None:
        self.first_listed = asyncio.Event()
        self._connection = connection
        self._target = target
        self._stream = stream
        self._job_name = job_name
        self._timings = timings
        self._jobs = jobs
        self._version: str | None = None
        #: When the server accepted the last watch; infinite before it did.
        self._opened = math.inf

    async def run(self) -> None:
        """List and watch until cancelled."""
        report_error = partial(self._jobs.report_error, self._stream)
        while True:
            await retry_until_success(self._list_and_watch, self._timings, report_error)

    async def list_objects(self, session: aiohttp.ClientSession, job_name: str | None) -> str:
        """List the objects of one job, or of all, into the cache; return the resourceVersion of the list."""
        scope = self._jobs.begin_list(self._stream, job_name)
        listed: dict[str, set[str]] = defaultdict(set)
        version = "0"
        pages = async_client.list_pages(self._connection, session, self._select(job_name))
        async with aclosing(pages):
            async for page in pages:
                version = str(page["metadata"]["resourceVersion"])
                self._jobs.check_list_version(scope, parse_resource_version(version))
                for raw in page.get("items") or ():
                    self._add_listed(raw, listed)
                    self._jobs.apply_event(self._stream, "ADDED", raw)
        self._jobs.finish_list(scope, listed, parse_resource_version(version))
        return version

    def _add_listed(self, raw: RawObject, listed: dict[str, set[str]]) -> None:
        metadata = raw["metadata"]
        if self._stream == Stream.JOBS:
            listed[metadata["name"]] = set()
        else:
            job = (metadata.get("labels") or {}).get(self._target.pod_label)
            listed[str(job)].add(metadata["name"])

    async def _list_and_watch(self) -> None:
        """List if necessary and watch once; a watch that is refused or too short raises, so that the next one waits."""
        async with self._connection.open_session() as session:
            if self._version is None:
                self._version = await self.list_objects(session, self._job_name)
                self.first_listed.set()
                self._jobs.clear_error(self._stream)
                self._jobs.wake()  # New subscriptions can be listed.
            self._opened = math.inf
            error: TrainerError
            try:
                await self._watch(session, self._version)
                task = self._select(self._job_name).describe_task("watch")
                error = StreamInterruptedError(f"the server ended the request at once: {task}; it is retried")
            except (ResourceExpiredError, SilentWatchError) as caught:
                self._version, error = None, caught
            except BackendUnavailableError as caught:
                if not caught.transient:
                    raise
                error = caught
            if time.monotonic() - self._opened < _MIN_WATCH_SECONDS:
                raise error

    async def _watch(self, session: aiohttp.ClientSession, since: str) -> None:
        events = async_client.watch_events(
            self._connection,
            session,
            self._select(self._job_name),
            since,
            silence_timeout=self._timings.silence_timeout,
            on_open=self._handle_open,
        )
        async with aclosing(events):
            async for event in events:
                raw = event.get("object") or {}
                version = (raw.get("metadata") or {}).get("resourceVersion") or self._version
                if parse_resource_version(version) < parse_resource_version(self._version):
                    raise ResourceExpiredError("the API server counts from an earlier resourceVersion")
                if event.get("type") != "BOOKMARK":
                    self._jobs.apply_event(self._stream, str(event.get("type")), raw)
                self._version = version

    def _handle_open(self) -> None:
        self._opened = time.monotonic()
        self._jobs.clear_error(self._stream)

    def _select(self, job_name: str | None) -> async_client.ResourceCollection:
        namespace, label = self._connection.namespace, self._target.pod_label
        if self._stream == Stream.JOBS:
            field_selector = f"metadata.name={job_name}" if job_name else ""
            return async_client.ResourceCollection(self._target.resource, namespace, field_selector=field_selector)
        label_selector = f"{label}={job_name}" if job_name else label
        return async_client.ResourceCollection(resources.PODS, namespace, label_selector=label_selector)


async def retry_until_success(
    action: Callable[[], Awaitable[None]], timings: WatchTimings, on_error: Callable[[BaseException], None]
) -> None:
    """Run an action until it succeeds, with exponential backoff, and call `on_error` after each failure."""
    for failures in itertools.count():
        try:
            await action()
            return
        except TrainerError as error:
            on_error(error)
            pause = _compute_pause(error, failures, timings)
        await asyncio.sleep(pause)


def _compute_pause(error: TrainerError, failures: int, timings: WatchTimings) -> float:
    if isinstance(error, ForbiddenError):
        return timings.forbidden_retry
    backoff = min(0.1 * 2 ** min(failures, 10), _MAX_BACKOFF_SECONDS)
    pause = random.uniform(0, backoff)  # noqa: S311 -- no secret
    return max(pause, min(getattr(error, "retry_after", 0.0), _MAX_BACKOFF_SECONDS))
