"""Content of status.json and of events.jsonl, and the refs and outcomes that follow from it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trainer_core.backends.local import host
from trainer_core.backends.local.host import HostIdentity
from trainer_core.backends.local.job_store import StateFolder
from trainer_core.lifecycle.diagnosis import Facts, build_failed_outcome, diagnose
from trainer_core.lifecycle.restart_policy import AttemptRestarts
from trainer_core.model.jobs import COMPLETE, CREATED, FAILED, Diagnosis, Event, Outcome, Progress, TrainJobRef
from trainer_core.model.resource_use import summarize_resource_use

#: Status of a step.
PENDING, RUNNING, SUCCEEDED, STEP_FAILED = "Pending", "Running", "Succeeded", "Failed"


@dataclass
class StepRecord:
    """State of one step."""

    #: The step, such as ``node-0``.
    name: str
    #: Pending, Running, Succeeded or Failed.
    status: str = PENDING
    #: Process id of the current or last run.
    pid: int | None = None
    #: Exit code of the last run; negative for a signal.
    exit_code: int | None = None
    #: Start time of the current or last run, ISO 8601 in UTC.
    started: str | None = None
    #: End time of the last run, ISO 8601 in UTC.
    finished: str | None = None
    restarts: int = 0


@dataclass
class JobRecord:
    """State of one job. Only its supervisor changes it, and always writes all of it."""

    uid: str
    name: str
    #: Creation time, ISO 8601 in UTC.
    created: str
    #: Where the supervisor runs.
    host: HostIdentity
    attempt: int = 0
    #: Name of the runtime; None for a job without a trainer.
    runtime: str | None = None
    status: str = CREATED
    started: str | None = None
    finished: str | None = None
    supervisor: int | None = None
    #: The steps, in the order in which they start.
    steps: list[StepRecord] = field(default_factory=list)
    #: The outcome as JSON data; None until the job ends.
    outcome: dict[str, Any] | None = None
    #: What the job waits for in the queue of its host. None if it does not wait.
    queued: str | None = None
    #: With restart rules: `AttemptRestarts` as JSON data, with the restarts of this job.
    restarts: dict[str, Any] | None = None
    #: Outcome of the last start until the restart that follows it begins. It is that of the job if none begins.
    ended_start: dict[str, Any] | None = None

    @property
    def is_finished(self) -> bool:
        return self.status in (COMPLETE, FAILED)

    def has_reliable_lock(self) -> bool:
        """Return whether a free lock, as this process sees it, proves that the supervisor is dead."""
        return host.get_host_identity().sees_locks_of(self.host)

    def get_step(self, name: str) -> StepRecord:
        return next(step for step in self.steps if step.name == name)

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        for name in ("restarts", "ended_start"):  # Earlier releases refuse a field that they do not know.
            if data[name] is None:
                del data[name]
        return data

    @classmethod
    def from_dict(cls, data: Any) -> JobRecord:
        if not isinstance(data, dict):
            raise ValueError(f"not a job record: {type(data).__name__}")
        try:
            steps = [StepRecord(**step) for step in data["steps"]]
            return cls(**{**data, "steps": steps, "host": HostIdentity(**data["host"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a job record: {error}") from error


def make_ref(state: StateFolder, record: JobRecord) -> TrainJobRef:
    """Return the ref of a job: it carries the host and the identity of the state folder."""
    return TrainJobRef("local", str(state.path), record.name, record.uid, _describe_place(state, record.host))


def predict_ref(state: StateFolder, name: str) -> TrainJobRef:
    """Return the ref of a job that this host is about to create, with a uid that no job has."""
    return TrainJobRef("local", str(state.path), name, "planned", _describe_place(state, host.get_host_identity()))


def _describe_place(state: StateFolder, identity: HostIdentity) -> str | None:
    if not state.read_id():
        return None
    return "/".join((identity.hostname, identity.boot_id, identity.pid_namespace, state.read_id()))


def utc_timestamp() -> str:
    """Return the current time as ISO 8601 in UTC, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def failed_outcome(
    record: JobRecord,
    ref: TrainJobRef,
    facts: Facts,
    progress: Progress | None = None,
    node_records: Sequence[Mapping[str, Any]] = (),
) -> Outcome:
    return build_failed_outcome(
        ref,
        diagnose(facts),
        node_records,
        started_at=record.started,
        finished_at=record.finished,
        last_progress=progress,
        resource_use=summarize_resource_use(node_records),
        restarts=AttemptRestarts.parse(record.restarts),
    )


def parse_cancellation(desired: Mapping[str, Any]) -> Facts | None:
    """Return the facts of a cancelled job from its desired state; None if the job is not cancelled."""
    if not desired.get("cancel"):
        return None
    because = desired.get("because")
    return Facts(cancelled=True, cancel_diagnosis=Diagnosis.from_dict(because) if because else None)


def lost_outcome(
    record: JobRecord,
    ref: TrainJobRef,
    desired: Mapping[str, Any],
    supervisor_log: str,
    progress: Progress | None = None,
) -> Outcome:
    """Return the outcome of a job whose supervisor exited without recording one.

    A job that was cancelled before has the outcome of a cancelled job, so that no retry starts it again. One that
    waited for its restart has the outcome of its last start.
    """
    cancellation = parse_cancellation(desired)
    if record.ended_start is not None and cancellation is None:
        return Outcome.from_dict(record.ended_start)
    what = f"the supervisor (process {record.supervisor}) exited while the job was {record.status}"
    lost = Facts(infrastructure_error=f"{what}; see {supervisor_log}")
    return failed_outcome(record, ref, cancellation or lost, progress)


def append_event(path: Path, reason: str, message: str, step: str | None = None) -> None:
    """Append one event. It is written with a single write, so that readers never see a partial line."""
    event = {"time": utc_timestamp(), "reason": reason, "message": message, "step": step}
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{json.dumps(event, ensure_ascii=False)}\n".encode())
    finally:
        os.close(descriptor)


def read_events(path: Path, job_name: str) -> list[Event]:
    """Return the events of a job, oldest first. Damaged lines are skipped."""
    try:
        # Not splitlines(): it also splits at characters such as U+2028, which a message may contain.
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return []
    return [event for line in lines if (event := _parse_event(line, job_name)) is not None]


def _parse_event(line: str, job_name: str) -> Event | None:
    try:
        data = json.loads(line)
        return Event(
            involved_object_kind="Step" if data["step"] else "TrainJob",
            involved_object_name=data["step"] or job_name,
            message=data["message"],
            reason=data["reason"],
            event_time=datetime.fromisoformat(data["time"]),
        )
    except (ValueError, KeyError, TypeError):
        return None
