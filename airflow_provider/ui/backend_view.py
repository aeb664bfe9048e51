"""Reads TrainJobs from their backends, where the API server can reach them.

An XCom is only a claim: a DAG could push the ref of another DAG's job. Every access to a backend therefore goes through
`connect`, which accepts the claim only if the job's owner is that task.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from airflow_provider.compat import AirflowException
from airflow_provider.hooks.trainjob import TrainJobHook
from airflow_provider.links import CONN_ID_KEY
from airflow_provider.xcom import PARAMETERS_KEY
from trainer_core.base import naming
from trainer_core.base.errors import BackendUnavailableError, JobNotFoundError, TrainerError
from trainer_core.client import TrainerClient
from trainer_core.frontend import job_table
from trainer_core.model.backend_names import is_backend
from trainer_core.model.config import LocalProcessBackendConfig, config_class, config_from_dict
from trainer_core.model.jobs import COMPLETE, FAILED, Event, TrainJob, TrainJobRef
from trainer_core.model.logs import LogChunk, LogLine, parse_progress
from trainer_core.model.resource_use import parse_resource_report, strip_resource_report

if TYPE_CHECKING:
    from airflow_provider.ui.xcom_queries import SubmittedJob
    from trainer_core.lifecycle.adoption import ExistingJob
    from trainer_core.model.request import TrainJobRequest
    from trainer_core.search.snapshot import SearchSnapshot

#: Largest number of log lines in a response; of a longer log, the last lines.
MAX_LINES = 500
#: Number of characters after which reading for one response stops, and number of lines to read at a time.
_MAX_READ, _CHUNK_LINES = 16_000_000, 5_000
#: Largest number of characters of these lines, and of one line: the rest of a longer one is left out.
_MAX_CHARACTERS, _MAX_LINE = 500_000, 10_000
#: Largest number of progress points in a response.
_MAX_POINTS = 1000
#: Largest number of attempts in a response, of many the last ones: each takes several requests.
_MAX_ATTEMPTS = 10


class UnreachableError(Exception):
    """The API server cannot read the job; the page shows the message."""


class InvalidCursorError(Exception):
    """The cursor is not one of the job's backend."""


@dataclass(frozen=True)
class LogPart:
    """Part of a step's log."""

    #: The lines, without those of `progress` and of the use of resources.
    lines: list[str]
    #: When each of them was written, in milliseconds since 1970; None if the backend does not know it.
    times: list[int | None]
    points: list[dict[str, Any]]
    #: Reports of the use of resources: time ``t`` in milliseconds since 1970, ``cpu`` in percent, ``memory`` and
    #: ``memory_limit`` in bytes, and ``gpus``.
    resources: list[dict[str, Any]]
    #: Position after this part.
    cursor: dict[str, Any]
    left_out: int
    #: True if there were no further lines when it was read.
    complete: bool


def connect(job: SubmittedJob) -> TrainerClient:
    """Return a client for the job, after checking that the job belongs to the task."""
    if job.ref.reused:  # Of a DAG that the user may not be allowed to see.
        raise UnreachableError(f"TrainJob {job.ref.name!r} belongs to another run, and this task reused its result")
    try:
        naming.validate_name(job.ref.name)
        client = _create_client(job)
        request = client.get_job_request(job.ref)
    except (TrainerError, ValueError, AirflowException) as error:
        raise UnreachableError(str(error)) from error
    if not belongs_to(job.task.owner_key, request):
        raise UnreachableError(f"TrainJob {job.ref.name!r} belongs to another task")
    return client


def belongs_to(owner_key: str, request: TrainJobRequest) -> bool:
    """Return whether the request is that of a task's job, or of a trial of its search."""
    owner, search = request.context.owner, request.context.search
    if owner is None or search is None:
        return owner is not None and owner.key == owner_key
    return search.key == owner_key and owner.key == f"{search.key}/{search.entry}"


def find_attempt(job: SubmittedJob, name: str) -> SubmittedJob:
    """Return another attempt of a task's job, or a trial of its search, by name.

    `connect` checks that it belongs to the task, too.
    """
    if name == job.ref.name and job.search is None:
        return job
    try:
        client = connect(job)
        ref = client.get_job_ref(naming.validate_name(name))
        trial = client.get_job_request(ref).context.search if job.search else None
    except (TrainerError, ValueError) as error:
        raise UnreachableError(str(error)) from error
    # Other XComs are about the last attempt, or about the search.
    kept = (CONN_ID_KEY,) if trial else (CONN_ID_KEY, PARAMETERS_KEY)
    xcoms = {key: value for key, value in job.xcoms.items() if key in kept}
    if trial:
        xcoms[PARAMETERS_KEY] = {parameter: str(value) for parameter, value in trial.parameters.items()}
    return replace(job, ref=ref, xcoms=xcoms, search=None)


def read_attempts(client: TrainerClient, ref: TrainJobRef) -> list[tuple[ExistingJob, job_table.JobDetails]]:
    """Read the attempts of a job's owner, the first one first."""
    existing = sorted(client.find_jobs(client.get_job_request(ref)), key=lambda each: each.attempt)
    attempts = []
    for each in existing[-_MAX_ATTEMPTS:]:
        with suppress(JobNotFoundError):  # Deleted since it was listed.
            attempts.append((each, job_table.read_details(client, each.name)))
    return attempts


def read_job(client: TrainerClient, ref: TrainJobRef) -> tuple[job_table.JobDetails, list[Event]]:
    """Read a job and its events."""
    try:
        return job_table.read_details(client, ref.name), client.get_job_events(ref)
    except TrainerError as error:
        raise UnreachableError(str(error)) from error


def read_search(job: SubmittedJob) -> SearchSnapshot:
    """Read a search: one list of its trials."""
    from trainer_core.search.snapshot import read_search as read  # Only where there is a search.

    try:
        return read(_create_client(job), job.task.owner_key, (job.search or {}).get("generation"))
    except (TrainerError, ValueError, AirflowException) as error:
        raise UnreachableError(str(error)) from error


def read_unfinished(
    jobs: Iterable[SubmittedJob], limit: int
) -> Iterator[tuple[SubmittedJob, TrainJob | SearchSnapshot | None]]:
    """Yield the jobs and searches with what the backend has of those that have not ended according to their XComs.

    A backend that is unavailable is requested once, not once for each job.
    """
    unavailable = set()
    for job in jobs:
        backend = (job.conn_id, job.ref.backend, job.ref.namespace)
        if job.xcoms.get("status") in (COMPLETE, FAILED) or backend in unavailable:
            yield job, None
            continue
        if limit == 0:
            return
        limit -= 1
        try:
            yield job, read_search(job) if job.search else connect(job).get_job(job.ref.name)
        except (UnreachableError, TrainerError) as error:
            if isinstance(error.__cause__ or error, BackendUnavailableError):
                unavailable.add(backend)
            yield job, None


def read_details(job: SubmittedJob) -> job_table.JobDetails | None:
    """Read what a comparison shows of a job; None if the API server cannot reach it."""
    try:
        return job_table.read_details(connect(job), job.ref.name)
    except (UnreachableError, TrainerError):
        return None


def read_log(
    client: TrainerClient,
    ref: TrainJobRef,
    step: str,
    cursor: Mapping[str, Any],
    job_ended: bool = False,
    text: str = "",
    max_lines: int = MAX_LINES,
) -> LogPart:
    """Read the lines of a step after a cursor.

    Every backend of this package but the debug backend, whose jobs no API server has, continues at the cursor without
    reading what is before it. A long log is returned in several parts.
    """
    lines: deque[tuple[str, int | None]] = deque()
    points: deque[dict[str, Any]] = deque(maxlen=_MAX_POINTS)
    resources: deque[dict[str, Any]] = deque(maxlen=_MAX_POINTS)
    line_count = size = read = 0
    wanted, complete = text.casefold(), False
    while not complete and read < _MAX_READ:
        chunk = _tail(client, ref, step, cursor, job_ended)
        # A line that is still being written does not count, and a backend can wait for the end of it.
        complete = chunk.complete or not chunk.lines
        cursor = chunk.cursor
        for _, raw in chunk.lines:
            read += len(raw) + 1
            point = parse_progress(raw) if len(raw) <= _MAX_LINE else None
            if point:
                point.pop("last", None)  # They are metrics of earlier points.
                points.append(point)
                continue
            line = strip_resource_report(raw)
            report = parse_resource_report(raw) if line != raw else None
            if report:
                resources.append(report)
            if line is None or wanted not in line.casefold():
                continue
            line_count += 1
            line = line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}…"
            lines.append((line, int(raw.time * 1000) if isinstance(raw, LogLine) else None))
            size += len(line)
            while len(lines) > max_lines or size > _MAX_CHARACTERS:
                size -= len(lines.popleft()[0])
    left_out = line_count - len(lines)
    texts, times = [line for line, _ in lines], [written for _, written in lines]
    return LogPart(texts, times, list(points), list(resources), dict(cursor), left_out, complete)


def _tail(client: TrainerClient, ref: TrainJobRef, step: str, cursor: Mapping[str, Any], job_ended: bool) -> LogChunk:
    try:
        return client.tail_job_logs(ref, cursor, job_ended, _CHUNK_LINES, step)
    except TrainerError:
        raise
    except (AttributeError, KeyError, OSError, TypeError, ValueError, OverflowError) as error:
        # The browser sent the cursor, and only the backend knows its form.
        raise InvalidCursorError(f"The cursor does not belong to the log of step {step!r}.") from error


def _create_client(job: SubmittedJob) -> TrainerClient:
    """Return a client of the task's connection; without a connection, a client of this machine's local jobs."""
    ref = job.ref
    known = config_class(ref.backend).model_fields if is_backend(ref.backend) else {}
    hook = TrainJobHook(job.conn_id, ref.backend, {"namespace": ref.namespace} if "namespace" in known else None)
    if isinstance(hook.config, LocalProcessBackendConfig):
        client = hook.client
        # The namespace of a local ref is a folder; a DAG must not make this server read an arbitrary one.
        if client.get_job_ref(ref.name) != ref:
            raise UnreachableError(f"TrainJob {ref.name!r} is not in the state folder of the API server")
        return client
    if job.conn_id is None:
        raise UnreachableError(f"the task of TrainJob {ref.name!r} uses no connection")
    TrainJobHook.get_connection(job.conn_id)
    return _get_cached_client(ref.backend, hook.config.model_dump_json(exclude_unset=True))


@lru_cache(maxsize=64)
def _get_cached_client(backend: str, settings: str) -> TrainerClient:
    """Return a client, cached by its settings because connecting takes several requests."""
    return TrainerClient(config_from_dict(backend, json.loads(settings)))
