"""Reads the folder of a local job and returns its status. Read-only: any number of observers can run at once."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from trainer_core.backends.local import host, runtimes
from trainer_core.backends.local.artifacts import read_last_progress
from trainer_core.backends.local.job_record import RUNNING as STEP_RUNNING, JobRecord, StepRecord, lost_outcome
from trainer_core.backends.local.job_store import JobFolder, StateFolder, read_json
from trainer_core.base.errors import (
    BackendUnavailableError,
    InvalidRequestError,
    JobElsewhereError,
    JobNotFoundError,
    RuntimeNotFoundError,
)
from trainer_core.lifecycle.restart_policy import AttemptRestarts
from trainer_core.model.jobs import FAILED, Observation, Outcome, Step, TrainJob, TrainJobRef
from trainer_core.model.request import Metadata, TrainJobRequest
from trainer_core.model.runtimes import Runtime, build_unknown_runtime


class ChangedStatusError(BackendUnavailableError):
    """Another program changed the status of a job. It can only be deleted."""


def read_record(folder: JobFolder) -> JobRecord:
    try:
        return JobRecord.from_dict(read_json(folder.status))
    except FileNotFoundError as error:
        # A job appears and disappears as a whole.
        if folder.path.is_dir() and not Path(folder.status).exists():
            raise ChangedStatusError(
                f"{folder.status} was removed by another program; `trainjob delete {folder.name}` removes the job",
                transient=False,
            ) from error
        raise job_not_found(folder.name, folder.path.parent) from error
    except OSError as error:
        raise BackendUnavailableError(f"{folder.status} cannot be read: {error.strerror}") from error
    except ValueError as error:
        # The supervisor writes it whole or not at all, also before a power failure.
        raise ChangedStatusError(
            f"{folder.status} was changed by another program ({error}); `trainjob delete {folder.name}` removes it",
            transient=False,
        ) from error


def read_first_record(folder: JobFolder) -> JobRecord:
    """Return the record of a job; if another program changed it, the one with which the job was created."""
    try:
        return read_record(folder)
    except ChangedStatusError as error:
        try:
            return JobRecord.from_dict(read_json(folder.plan)["record"])
        except (OSError, ValueError, LookupError, TypeError):
            raise BackendUnavailableError(
                f"{folder.status} and {folder.plan} were changed by another program; end the processes of the job and "
                f"remove {folder.path}",
                transient=False,
            ) from error


def job_not_found(name: str, jobs: Path) -> JobNotFoundError:
    return JobNotFoundError(f"TrainJob {name!r} does not exist in {jobs}; `trainjob list` shows the existing jobs")


def check_uid(folder: JobFolder, ref: TrainJobRef, record: JobRecord | None = None) -> JobRecord:
    """Return the record if the folder still belongs to the job of the ref."""
    record = record or read_first_record(folder)
    if record.uid != ref.uid:
        raise JobNotFoundError(f"TrainJob {ref.name!r} (uid {ref.uid[:8]}) was deleted; another job has its name now")
    return record


def check_signals_possible(record: JobRecord, folder: JobFolder) -> None:
    """Check that the process ids in a record mean the processes of the job."""
    if not host.get_host_identity().sees_processes_of(record.host):
        raise job_elsewhere(record, folder)


def job_elsewhere(record: JobRecord, folder: JobFolder) -> JobElsewhereError:
    return JobElsewhereError(
        f"TrainJob {record.name!r} lives on {record.host}, and this process on {host.get_host_identity()} cannot see "
        f"its processes; nothing was changed: run the command there, or, if that host is gone, delete {folder.path}"
    )


def check_same_folder(state: StateFolder, ref: TrainJobRef) -> None:
    """Check that a job that is missing in a state folder was deleted from it."""
    if ref.host is None or ref.host.rpartition("/")[2] == state.read_id():
        return
    raise JobElsewhereError(
        f"TrainJob {ref.name!r} lives on host {ref.host.partition('/')[0]!r} in its folder {state.path}, which this "
        f"process on {host.get_host_identity()} does not see; run the command there, or use a state folder that both "
        "hosts share"
    )


def read_version(folder: JobFolder) -> tuple[bytes, bool] | None:
    """Return a value that changes whenever the status of a job does; None if it cannot be read.

    It is the content of status.json, because times and sizes of files do not always show a change: a file system has
    coarse times, and NFS caches both. With it, whether the supervisor lives.
    """
    try:
        return folder.status.read_bytes(), folder.is_supervised()
    except OSError:
        return None


def observe_job(folder: JobFolder, ref: TrainJobRef) -> Observation:
    record = check_uid(folder, ref, read_record(folder))
    if not record.is_finished and not folder.is_supervised():
        # The supervisor may have recorded the outcome and exited between the two reads.
        record = check_uid(folder, ref, read_record(folder))
        if not record.is_finished and not record.has_reliable_lock():
            raise job_elsewhere(record, folder)
        if not record.is_finished:
            last = read_last_progress(folder.log_path("node-0"))
            outcome = lost_outcome(record, ref, folder.read_desired(), str(folder.supervisor_log), last)
            return Observation(FAILED, outcome=outcome)
    recorded = Outcome.from_dict(record.outcome) if record.outcome else None
    progress = read_last_progress(folder.log_path(_progress_step(record)))
    restarts = AttemptRestarts.parse(record.restarts)
    return Observation(
        record.status,
        progress=progress,
        outcome=recorded,
        queued=record.queued,
        restarts=restarts.earlier if restarts else None,
    )


def _progress_step(record: JobRecord) -> str:
    """Return the step whose progress is shown: the initializer that is running, else the first node."""
    running = (step.name for step in record.steps if step.status == STEP_RUNNING)
    return next((name for name in running if not name.startswith("node-")), "node-0")


def read_request(folder: JobFolder) -> TrainJobRequest:
    try:
        return TrainJobRequest.parse(read_json(folder.request))
    except (OSError, ValueError) as error:
        raise InvalidRequestError(
            f"{folder.request} cannot be read ({error}); delete the job: `trainjob delete {folder.name}`"
        ) from error


def read_grace_seconds(folder: JobFolder) -> float:
    """Return how long the steps of a job may take to end after SIGTERM, beyond the usual time."""
    try:
        return float(read_json(folder.plan).get("grace_seconds") or 0)
    except (OSError, ValueError):
        return 0.0


def read_train_job(folder: JobFolder, ref: TrainJobRef) -> TrainJob:
    observation = observe_job(folder, ref)
    record = read_record(folder)
    metadata = _read_metadata(folder)
    outcome = observation.outcome
    return TrainJob(
        name=ref.name,
        runtime=_read_runtime(folder, record.runtime),
        steps=[_to_step(step, observation.status) for step in record.steps],
        num_nodes=sum(step.name.startswith("node-") for step in record.steps),
        creation_timestamp=datetime.fromisoformat(record.created),
        status=observation.status,
        uid=ref.uid,
        namespace=ref.namespace,
        labels=dict(metadata.labels),
        annotations=dict(metadata.annotations),
        started=_parse_time(record.started),
        finished=_parse_time(record.finished),
        progress=observation.progress,
        reason=str(outcome.diagnosis) if outcome and outcome.diagnosis else observation.queued,
    )


def _read_metadata(folder: JobFolder) -> Metadata:
    try:
        return read_request(folder).job_metadata
    except InvalidRequestError:
        return Metadata()


def _to_step(step: StepRecord, job_status: str) -> Step:
    # A step that was running when the supervisor was killed stays Running in the record.
    was_killed = step.status == STEP_RUNNING and job_status == FAILED
    return Step(
        name=step.name,
        status="Failed" if was_killed else step.status,
        pod_name=f"process-{step.pid}" if step.pid else "",
        device="cpu",
        exit_code=step.exit_code,
        restarts=step.restarts,
        started=_parse_time(step.started),
        finished=_parse_time(step.finished),
    )


def _read_runtime(folder: JobFolder, name: str | None) -> Runtime:
    """Return the runtime of a job; a placeholder if the runtime no longer exists, so that old jobs can be listed."""
    try:
        return runtimes.get_runtime(StateFolder(folder.path.parents[1]).runtimes, name or "python").to_public()
    except RuntimeNotFoundError:
        return build_unknown_runtime(name)


def _parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
