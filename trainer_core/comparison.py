"""TrainJobs side by side: columns with the parameters, metrics and duration of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from trainer_core.client import TrainerClient
from trainer_core.errors import InvalidRequestError, JobNotFoundError
from trainer_core.jobs import TrainJob

__all__ = [
    "JobDetails",
    "check_column",
    "compare_jobs",
    "get_value",
    "needs_details",
    "read_details",
    "sort_jobs",
]

_PARAM = "param."
_METRIC = "metric."


@dataclass(frozen=True)
class JobDetails:
    """What a TrainJob was given and what it gave.

    Attributes:
        job: The TrainJob.
        params: Arguments of the training function, nested ones with dots (``optimizer.lr``), as text.
        metrics: Final metrics; the last reported ones while it runs.
        dataset: URI of its dataset. None without an initializer.
        model: URI of its model. None without an initializer.
        resumed_from: Step of the checkpoint from which it was resumed. None if it began from the start.
    """

    job: TrainJob
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    dataset: str | None = None
    model: str | None = None
    resumed_from: float | None = None


#: Columns that need nothing but the TrainJob.
_OF_JOB: dict[str, Callable[[TrainJob], Any]] = {
    "name": lambda job: job.name,
    "status": lambda job: job.status,
    "runtime": lambda job: job.runtime.name,
    "nodes": lambda job: job.num_nodes,
    "created": lambda job: job.creation_timestamp,
    "started": lambda job: job.started,
    "finished": lambda job: job.finished,
    "duration": lambda job: _get_duration(job),
    "reason": lambda job: job.reason,
}
_OF_DETAILS: dict[str, Callable[[JobDetails], Any]] = {
    "dataset": lambda details: details.dataset,
    "model": lambda details: details.model,
    "resumed_from": lambda details: details.resumed_from,
}
#: Columns that differ between any two jobs, so that a comparison leaves them out.
_UNIQUE = frozenset({"name", "created", "started", "finished"})


def check_column(column: str) -> str:
    """Return the name of a column.

    Args:
        column: ``name``, ``status``, ``runtime``, ``nodes``, ``created``, ``started``, ``finished``, ``duration``,
            ``reason``, ``dataset``, ``model``, ``resumed_from``, ``param.NAME`` or ``metric.NAME``.

    Raises:
        InvalidRequestError: There is no such column.
    """
    is_prefixed = column.startswith((_PARAM, _METRIC)) and not column.endswith(".")
    if not is_prefixed and column not in _OF_JOB and column not in _OF_DETAILS:
        known = ", ".join([*_OF_JOB, *_OF_DETAILS, f"{_PARAM}NAME", f"{_METRIC}NAME"])
        raise InvalidRequestError(f"column {column[:100]!r} is unknown; known are {known}")
    return column


def needs_details(columns: Iterable[str]) -> bool:
    """Return whether a column needs more than the TrainJob, which costs two requests for each job."""
    return any(column not in _OF_JOB for column in columns)


def read_details(client: TrainerClient, job: TrainJob) -> JobDetails:
    """Read the request and the outcome of a TrainJob. One that was deleted since has no parameters.

    Args:
        client: The client.
        job: The TrainJob.
    """
    try:
        request = client.get_job_request(job.name)
        observation = client.observe(job.name)
    except JobNotFoundError:
        return JobDetails(job, {}, {})
    outcome = observation.outcome
    progress = observation.progress or job.progress
    metrics = outcome.metrics if outcome else progress.metrics if progress else {}
    sources = {role: source.storage_uri for role, source in request.initializer_sources()}
    resumed_from = outcome.resumed_from if outcome else progress.resumed_from if progress else None
    return JobDetails(
        job, request.get_parameters(), dict(metrics), sources.get("dataset"), sources.get("model"), resumed_from
    )


def get_value(column: str, details: JobDetails) -> Any:
    """Return the value of a column: text, number, `datetime` or `timedelta`; None without a value."""
    if column in _OF_JOB:
        return _OF_JOB[column](details.job)
    if column in _OF_DETAILS:
        return _OF_DETAILS[column](details)
    kind, _, name = column.partition(".")
    return details.params.get(name) if kind == "param" else details.metrics.get(name)


def sort_jobs(jobs: Sequence[JobDetails], column: str, descending: bool = False) -> list[JobDetails]:
    """Return the jobs by the values of a column; numbers before strings, and jobs without a value last.

    Args:
        jobs: The jobs.
        column: The column.
        descending: Whether the largest value comes first.
    """
    with_value = [each for each in jobs if get_value(column, each) is not None]
    ordered = sorted(with_value, key=lambda each: _get_sort_key(get_value(column, each)), reverse=descending)
    return [*ordered, *(each for each in jobs if get_value(column, each) is None)]


def compare_jobs(jobs: Sequence[JobDetails], everything: bool = False) -> dict[str, list[Any]]:
    """Return the columns in which jobs differ, with the value of each job, and every metric.

    Args:
        jobs: The jobs.
        everything: Whether columns with equal values are returned, too.
    """
    params = sorted({f"{_PARAM}{name}" for each in jobs for name in each.params})
    metrics = sorted({f"{_METRIC}{name}" for each in jobs for name in each.metrics})
    fixed = [column for column in (*_OF_JOB, *_OF_DETAILS) if column not in _UNIQUE]
    rows = {column: [get_value(column, each) for each in jobs] for column in (*fixed, *params, *metrics)}
    return {
        column: values
        for column, values in rows.items()
        if any(value is not None for value in values)
        and (everything or column.startswith(_METRIC) or any(value != values[0] for value in values))
    }


def _get_duration(job: TrainJob) -> timedelta | None:
    """Return how long a job has trained, in whole seconds."""
    if job.started is None:
        return None
    return timedelta(seconds=int(((job.finished or datetime.now(timezone.utc)) - job.started).total_seconds()))


def _get_sort_key(value: Any) -> tuple[int, Any]:
    if isinstance(value, str):
        try:
            return 0, float(value)
        except ValueError:
            return 1, value
    return 0, value
