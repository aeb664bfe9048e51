"""TrainJobs side by side: columns with the parameters, metrics and duration of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import unquote

from trainer_core.base.errors import InvalidRequestError
from trainer_core.client import TrainerClient
from trainer_core.lifecycle import restart_policy
from trainer_core.lifecycle.attempt_memory import get_attempt_memory
from trainer_core.model.jobs import Diagnosis, Observation, Outcome, Progress, Restarts, TrainJob, describe_status
from trainer_core.model.logs import find_last_progress
from trainer_core.model.request import TrainJobRequest
from trainer_core.node.requirement import strip_options

#: Prefixes of the columns that are named after an argument, a metric and an artifact.
PARAM = "param."
METRIC = "metric."
ARTIFACT = "artifact."
_NOT_READ = Observation("Unknown")


@dataclass(frozen=True)
class JobDetails:
    """What a TrainJob was given and what it gave."""

    job: TrainJob
    #: Arguments of the training function, nested ones with dots (``optimizer.lr``), as text.
    params: Mapping[str, str]
    #: Final metrics; the last reported ones while it runs, and after a failure.
    metrics: Mapping[str, float]
    #: Step of the checkpoint from which it was resumed. None if it began from the start.
    resumed_from: int | None = None
    #: URIs that it returned, by name.
    artifacts: Mapping[str, str] = field(default_factory=dict)
    request: TrainJobRequest | None = None
    progress: Progress | None = None
    #: Its state; `_NOT_READ` where only the TrainJob was read.
    observation: Observation = _NOT_READ
    restarts: Restarts | None = None

    @property
    def outcome(self) -> Outcome | None:
        """How it ended. None before."""
        return self.observation.outcome


_Row = TypeVar("_Row", bound=Mapping[str, Any])

#: Columns that need nothing but the TrainJob.
_OF_JOB: dict[str, Callable[[TrainJob], Any]] = {
    "name": lambda job: job.name,
    "status": lambda job: describe_status(job.status, job.reason),
    "runtime": lambda job: job.runtime.name,
    "nodes": lambda job: job.num_nodes,
    "created": lambda job: job.creation_timestamp,
    "started": lambda job: job.started,
    "finished": lambda job: job.finished,
    "duration": lambda job: _get_duration(job),
    "reason": lambda job: job.reason,
    "partition": lambda job: job.partition,
}
_OF_DETAILS: dict[str, Callable[[JobDetails], Any]] = {
    "resumed_from": lambda details: details.resumed_from,
    "step": lambda details: _describe_step(details.progress) if details.progress else None,
    "silent": lambda details: details.progress.silent if details.progress and not details.outcome else None,
    "restarts": lambda details: _describe_restarts(details),
}
_OF_REQUEST: dict[str, Callable[[TrainJobRequest], Any]] = {
    "function": lambda request: request.work.trainer and request.work.trainer.code and request.work.trainer.code.entry,
    "dag": lambda request: _get_task(request).get("dag"),
    "run": lambda request: _get_task(request).get("run"),
    "task": lambda request: _get_task(request).get("task"),
    "dataset": lambda request: _get_source(request, "dataset"),
    "model": lambda request: _get_source(request, "model"),
    "code": lambda request: _get_code_digest(request),
    "image": lambda request: request.work.trainer and request.work.trainer.image,
    "processes": lambda request: request.work.trainer and request.work.trainer.num_proc_per_node,
    "packages": lambda request: (
        ", ".join(map(strip_options, request.work.trainer.packages)) if request.work.trainer else None
    ),
    "memory": lambda request: str(get_attempt_memory(request) or ""),
    "variables": lambda request: ", ".join(sorted(request.work.trainer.env)) if request.work.trainer else None,
}
_FIXED = (*_OF_JOB, *_OF_DETAILS, *_OF_REQUEST)
#: Columns that differ between any two jobs, so that a comparison leaves them out.
_UNIQUE = frozenset({"name", "created", "started", "finished"})
#: Parts of the key of an Airflow task; see `airflow_provider.task_owner`.
_TASK_PARTS = ("dag", "run", "task", "map_index")
#: Characters of a digest that tell two versions of the code apart, as in git.
_DIGEST_LENGTH = 12


def check_column(column: str) -> str:
    """Return the name of a column."""
    is_prefixed = column.startswith((PARAM, METRIC, ARTIFACT)) and not column.endswith(".")
    if not is_prefixed and column not in _FIXED:
        known = ", ".join([*_FIXED, f"{PARAM}NAME", f"{METRIC}NAME", f"{ARTIFACT}NAME"])
        raise InvalidRequestError(f"column {column[:100]!r} is unknown; known are {known}")
    return column


def needs_details(columns: Iterable[str]) -> bool:
    """Return whether a column needs more than the TrainJob, which costs three requests for each job."""
    return any(column not in _OF_JOB for column in columns)


def read_details(client: TrainerClient, name: str) -> JobDetails:
    """Read a TrainJob with its request and outcome."""
    job, observation, request = client.backend.observe_job(name)
    outcome, diagnosis = observation.outcome, get_diagnosis(observation)
    tail = reversed(diagnosis.log_tail) if diagnosis else ()
    progress = observation.progress or job.progress or find_last_progress(tail)
    # What the outcome has wins over what was reported while the job ran.
    reached = outcome or progress
    measured = outcome if outcome and outcome.succeeded else progress
    ended = outcome or observation
    return JobDetails(
        job,
        params=request.get_parameters() if request else {},
        metrics=dict(measured.metrics) if measured else {},
        resumed_from=reached.resumed_from if reached else None,
        artifacts=dict(outcome.artifacts) if outcome else {},
        request=request,
        progress=progress,
        observation=observation,
        restarts=ended.restarts or (request.context.attempt_restarts if request else None),
    )


def get_diagnosis(observation: Observation) -> Diagnosis | None:
    """Return why a TrainJob has failed, or is about to."""
    if observation.outcome is not None:
        return observation.outcome.diagnosis
    return observation.pending_failure.diagnosis if observation.pending_failure else None


def build_row(details: JobDetails) -> dict[str, Any]:
    """Return the columns of a TrainJob that have a value: text, number, `datetime` or `timedelta`."""
    row = {column: get(details.job) for column, get in _OF_JOB.items()}
    row.update({column: get(details) for column, get in _OF_DETAILS.items()})
    if details.request:
        row.update({column: get(details.request) for column, get in _OF_REQUEST.items()})
    row.update(name_values(PARAM, details.params))
    row.update(name_values(METRIC, details.metrics))
    row.update(name_values(ARTIFACT, details.artifacts))
    return {column: value for column, value in row.items() if value not in (None, "")}


def name_values(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by their column: ``{"param.lr": 0.1}`` for ``{"lr": 0.1}``."""
    return {f"{prefix}{name}": value for name, value in values.items()}


def sort_rows(rows: Sequence[_Row], column: str, descending: bool = False) -> list[_Row]:
    """Return rows by the values of a column; numbers before strings, and rows without a value last."""
    with_value = [row for row in rows if row.get(column) is not None]
    ordered = sorted(with_value, key=lambda row: _get_sort_key(row[column]), reverse=descending)
    return [*ordered, *(row for row in rows if row.get(column) is None)]


def compare_files(details: Sequence[JobDetails]) -> dict[str, list[str | None]]:
    """Return the files that differ, as ``file.PATH``: the digest of each, or None. Empty if a request has no files."""
    from trainer_core.packaging.project import read_files  # Loads the packaging code, which nothing else here needs.

    projects = [each.request.project for each in details if each.request and each.request.project]
    if len(projects) < len(details) or not all(project.archive for project in projects):
        return {}
    digests = [_digest_files(read_files({"archive": project.archive})) for project in projects]
    rows = {}
    for path in sorted(set().union(*digests)):
        row = [each.get(path) for each in digests]
        if len(set(row)) > 1:
            rows[f"file.{path}"] = row
    return rows


def _digest_files(files: Mapping[str, bytes]) -> dict[str, str]:
    return {path: sha256(content).hexdigest()[:_DIGEST_LENGTH] for path, content in files.items()}


def compare_rows(rows: Sequence[Mapping[str, Any]], everything: bool = False) -> dict[str, list[Any]]:
    """Return the columns in which TrainJobs differ, with the value of each TrainJob, and every metric."""
    present = set().union(*rows) - _UNIQUE
    columns = [column for column in _FIXED if column in present]
    for prefix in (PARAM, METRIC, ARTIFACT):
        columns += sorted(column for column in present if column.startswith(prefix))
    compared = {}
    for column in columns:
        values = [row.get(column) for row in rows]
        if everything or column.startswith(METRIC) or any(value != values[0] for value in values):
            compared[column] = values
    return compared


def _describe_step(progress: Progress) -> str | None:
    """Return how far a training came: ``19 of 60``."""
    steps = [f"{number:.15g}" for number in (progress.step, progress.total) if number is not None]
    return " of ".join(steps) or None


def _describe_restarts(details: JobDetails) -> str | None:
    """Return the restarts before the last start: ``2 of 3 (NodeLost; 1 more was free)``."""
    rules = details.request.policy.restart_policy if details.request else None
    return restart_policy.describe(rules, details.restarts) if rules and details.restarts else None


def _get_task(request: TrainJobRequest) -> dict[str, str]:
    """Return the parts of the key of an Airflow task; empty for a TrainJob of another owner."""
    parts = request.context.owner.key.split("/") if request.context.owner else []
    if len(parts) != len(_TASK_PARTS):
        return {}
    return dict(zip(_TASK_PARTS, map(unquote, parts), strict=True))


def _get_source(request: TrainJobRequest, role: str) -> str | None:
    return next((source.storage_uri for name, source in request.initializer_sources() if name == role), None)


def _get_code_digest(request: TrainJobRequest) -> str | None:
    code = request.work.trainer.code if request.work.trainer else None
    digest = code and (code.project.digest if code.project else code.digest)
    return digest[:_DIGEST_LENGTH] if digest else None


def _get_duration(job: TrainJob) -> timedelta | None:
    """Return how long a job has trained, in whole seconds."""
    if job.started is None:
        return None
    duration = (job.finished or datetime.now(timezone.utc)) - job.started
    return timedelta(seconds=int(duration.total_seconds()))


def _get_sort_key(value: Any) -> tuple[int, Any]:
    if isinstance(value, str):
        try:
            return 0, float(value)
        except ValueError:
            return 1, value
    return 0, value
