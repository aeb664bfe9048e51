"""TrainJobs side by side: columns with the parameters, metrics and duration of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import chain
from typing import Any, TypeVar

from trainer_core.client import TrainerClient
from trainer_core.errors import InvalidRequestError, JobNotFoundError
from trainer_core.jobs import TrainJob

__all__ = [
    "ARTIFACT",
    "METRIC",
    "PARAM",
    "JobDetails",
    "build_row",
    "check_column",
    "compare_rows",
    "name_values",
    "needs_details",
    "read_details",
    "sort_rows",
]

#: Prefixes of the columns that are named after an argument, a metric and an artifact.
PARAM = "param."
METRIC = "metric."
ARTIFACT = "artifact."


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
        artifacts: URIs that it returned, by name.
    """

    job: TrainJob
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    dataset: str | None = None
    model: str | None = None
    resumed_from: int | None = None
    artifacts: Mapping[str, str] = field(default_factory=dict)


_Row = TypeVar("_Row", bound=Mapping[str, Any])

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
            ``reason``, ``dataset``, ``model``, ``resumed_from``, ``param.NAME``, ``metric.NAME`` or ``artifact.NAME``.

    Raises:
        InvalidRequestError: There is no such column.
    """
    is_prefixed = column.startswith((PARAM, METRIC, ARTIFACT)) and not column.endswith(".")
    if not is_prefixed and column not in _OF_JOB and column not in _OF_DETAILS:
        known = ", ".join([*_OF_JOB, *_OF_DETAILS, f"{PARAM}NAME", f"{METRIC}NAME", f"{ARTIFACT}NAME"])
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
        job,
        request.get_parameters(),
        dict(metrics),
        sources.get("dataset"),
        sources.get("model"),
        resumed_from,
        dict(outcome.artifacts) if outcome else {},
    )


def build_row(details: JobDetails) -> dict[str, Any]:
    """Return the columns of a TrainJob that have a value: text, number, `datetime` or `timedelta`.

    Args:
        details: The TrainJob.
    """
    fixed = {
        **{column: get(details.job) for column, get in _OF_JOB.items()},
        **{column: get(details) for column, get in _OF_DETAILS.items()},
    }
    named = {
        **name_values(PARAM, details.params),
        **name_values(METRIC, details.metrics),
        **name_values(ARTIFACT, details.artifacts),
    }
    return {column: value for column, value in {**fixed, **named}.items() if value is not None}


def name_values(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by their column.

    Args:
        prefix: `PARAM`, `METRIC` or `ARTIFACT`.
        values: The values by name.
    """
    return {f"{prefix}{name}": value for name, value in values.items()}


def sort_rows(rows: Sequence[_Row], column: str, descending: bool = False) -> list[_Row]:
    """Return rows by the values of a column; numbers before strings, and rows without a value last.

    Args:
        rows: What `build_row` returned.
        column: The column.
        descending: Whether the largest value comes first.
    """
    with_value = [row for row in rows if row.get(column) is not None]
    ordered = sorted(with_value, key=lambda row: _get_sort_key(row[column]), reverse=descending)
    return [*ordered, *(row for row in rows if row.get(column) is None)]


def compare_rows(rows: Sequence[Mapping[str, Any]], everything: bool = False) -> dict[str, list[Any]]:
    """Return the columns in which TrainJobs differ, with the value of each TrainJob, and every metric.

    Args:
        rows: What `build_row` returned for each TrainJob.
        everything: Whether columns with equal values are returned, too.
    """
    present = {column for row in rows for column in row} - _UNIQUE
    named = [sorted(column for column in present if column.startswith(prefix)) for prefix in (PARAM, METRIC, ARTIFACT)]
    fixed = [column for column in (*_OF_JOB, *_OF_DETAILS) if column in present]
    columns = {column: [row.get(column) for row in rows] for column in chain(fixed, *named)}
    return {
        column: values
        for column, values in columns.items()
        if everything or column.startswith(METRIC) or any(value != values[0] for value in values)
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
