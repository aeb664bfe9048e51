"""A job's folder → what an observer sees. Read-only, so any number of observers may look at once."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from trainer_core.backends.local import runtimes
from trainer_core.backends.local.files import Home, JobFolder, read_json
from trainer_core.backends.local.left import last_progress
from trainer_core.backends.local.record import DAMAGED, Record, StepRecord, lost_outcome
from trainer_core.errors import BackendUnavailableError, InvalidRequestError, JobNotFoundError, RuntimeNotFoundError
from trainer_core.jobs import Event, Step, TrainJob
from trainer_core.observation import FAILED, RUNNING, Observation
from trainer_core.outcome import Outcome
from trainer_core.ref import TrainJobRef
from trainer_core.request import Metadata, TrainJobRequest
from trainer_core.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType

__all__ = ["check_is", "events", "no_such_job", "observe", "read", "request", "train_job"]


def read(folder: JobFolder) -> Record:
    """Return the record of a job.

    A status that cannot be read, which no supervisor of ours writes, is that of a damaged job: what it was made as
    is known from its lock, how far it got is not.

    Raises:
        JobNotFoundError: There is no such job.
        BackendUnavailableError: Its folder cannot be read.
    """
    try:
        return Record.from_dict(read_json(folder.status))
    except FileNotFoundError as error:
        raise no_such_job(folder.name, folder.path.parent) from error
    except OSError as error:
        raise BackendUnavailableError(f"{folder.status} cannot be read: {error.strerror}") from error
    except ValueError:
        return _damaged(folder)


def no_such_job(name: str, jobs: Path) -> JobNotFoundError:
    """Return the error for a job that is not there."""
    return JobNotFoundError(f"no TrainJob {name!r} in {jobs}; `trainjob list` shows those there are")


def check_is(folder: JobFolder, ref: TrainJobRef) -> Record:
    """Return the record if the folder still holds the job of the ref.

    Raises:
        JobNotFoundError: The job is gone, or its name has passed to another.
    """
    record = read(folder)
    if record.uid not in (ref.uid, _UNKNOWN):
        raise JobNotFoundError(f"TrainJob {ref.name!r} ({ref.uid[:8]}) is gone; its name belongs to another job now")
    return record


def observe(folder: JobFolder, ref: TrainJobRef) -> Observation:
    """Take one look at a job.

    Raises:
        JobNotFoundError: The job is gone.
    """
    record = check_is(folder, ref)
    if not record.ended and not folder.supervised():
        # It may have ended between the two looks.
        record = check_is(folder, ref)
        if not record.ended:
            return Observation(FAILED, outcome=lost_outcome(record, ref, str(folder.supervisor_log)))
    outcome = Outcome.from_dict(record.outcome) if record.outcome else None
    progress = last_progress(folder.log(_telling(record))) if record.status != FAILED else None
    return Observation(RUNNING if record.status == DAMAGED else record.status, progress=progress, outcome=outcome)


def _telling(record: Record) -> str:
    """The step whose progress is the job's: an initializer while it fetches, else the first node."""
    fetching = (step.name for step in record.steps if step.status == RUNNING and not step.name.startswith("node-"))
    return next(fetching, "node-0")


def request(folder: JobFolder) -> TrainJobRequest:
    """Return the request a job was made from.

    Raises:
        InvalidRequestError: It is damaged.
    """
    try:
        return TrainJobRequest.parse(read_json(folder.request))
    except (OSError, ValueError) as error:
        raise InvalidRequestError(
            f"{folder.request} cannot be read ({error}); delete the job: `trainjob delete {folder.name}`"
        ) from error


def train_job(folder: JobFolder, ref: TrainJobRef) -> TrainJob:
    """Return a job as the API reference knows it.

    Raises:
        JobNotFoundError: The job is gone.
    """
    seen = observe(folder, ref)
    record = read(folder)
    metadata = _metadata(folder)
    nodes = [step for step in record.steps if step.name.startswith("node-")]
    return TrainJob(
        name=ref.name,
        runtime=_runtime(folder, record.runtime),
        steps=[_step(step, seen.status) for step in record.steps],
        num_nodes=len(nodes),
        creation_timestamp=datetime.fromisoformat(record.created),
        status=seen.status,
        uid=ref.uid,
        namespace=ref.namespace,
        labels=dict(metadata.labels),
        annotations=dict(metadata.annotations),
        started=_time(record.started),
        finished=_time(record.finished),
        progress=seen.progress,
        reason=str(seen.outcome.diagnosis) if seen.outcome and seen.outcome.diagnosis else None,
    )


def events(path: Path, name: str) -> list[Event]:
    """Return the events of the job of that name, oldest first; a damaged line is left out."""
    try:
        # Not splitlines(): a message may hold what Python alone takes for the end of a line.
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return []
    return [event for line in lines if (event := _event(line, name)) is not None]


def _event(line: str, name: str) -> Event | None:
    try:
        data = json.loads(line)
        return Event(
            involved_object_kind="Step" if data["step"] else "TrainJob",
            involved_object_name=data["step"] or name,
            message=data["message"],
            reason=data["reason"],
            event_time=datetime.fromisoformat(data["time"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _metadata(folder: JobFolder) -> Metadata:
    try:
        return request(folder).metadata
    except InvalidRequestError:
        return Metadata()


def _step(step: StepRecord, status: str) -> Step:
    gone = step.status == RUNNING and status == FAILED
    return Step(
        name=step.name,
        status="Failed" if gone else step.status,
        pod_name=f"process-{step.pid}" if step.pid else "",
        device="cpu",
        exit_code=step.exit_code,
        restarts=step.restarts,
        started=_time(step.started),
        finished=_time(step.finished),
    )


def _runtime(folder: JobFolder, name: str | None) -> Runtime:
    """The runtime a job was made from; a stand-in for one that is gone, so that old jobs stay readable."""
    try:
        return runtimes.get(Home(folder.path.parents[1]).runtimes, name or "python").public()
    except RuntimeNotFoundError:
        trainer = RuntimeTrainer(trainer_type=TrainerType.CUSTOM_TRAINER, framework="unknown", image="unknown")
        return Runtime(name=name or "unknown", trainer=trainer, kind=RuntimeKind.CLUSTER_TRAINING_RUNTIME)


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


_UNKNOWN = "unknown"


def _damaged(folder: JobFolder) -> Record:
    try:
        return replace(Record.from_dict(read_json(folder.lock)), status=DAMAGED)
    except (OSError, ValueError):
        pass  # Damaged as well, or made by an older version.
    created = datetime.fromtimestamp(folder.path.stat().st_mtime).astimezone().isoformat(timespec="milliseconds")
    return Record(uid=_UNKNOWN, name=folder.name, created=created, status=DAMAGED)
