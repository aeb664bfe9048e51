"""status.json: what the supervisor records of a job, and what it means to an observer. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from trainer_core import diagnosis, outcome
from trainer_core.diagnosis import Facts
from trainer_core.observation import COMPLETE, CREATED, FAILED
from trainer_core.outcome import Outcome
from trainer_core.ref import TrainJobRef

__all__ = ["Record", "StepRecord", "complete_outcome", "failed_outcome", "lost_outcome", "now_text"]

#: Stands for the status of a job whose record cannot be read.
DAMAGED = "Damaged"
PENDING, RUNNING, SUCCEEDED, STEP_FAILED = "Pending", "Running", "Succeeded", "Failed"


@dataclass
class StepRecord:
    """One step: its state, its process, and when it ran (ISO 8601, UTC)."""

    name: str
    status: str = PENDING
    pid: int | None = None
    exit_code: int | None = None
    started: str | None = None
    finished: str | None = None
    restarts: int = 0


@dataclass
class Record:
    """One job. Only its supervisor changes it; it is written whole each time."""

    uid: str
    name: str
    created: str
    attempt: int = 0
    runtime: str | None = None
    status: str = CREATED
    started: str | None = None
    finished: str | None = None
    supervisor: int | None = None
    steps: list[StepRecord] = field(default_factory=list)
    outcome: dict[str, Any] | None = None

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.status in (COMPLETE, FAILED)

    def step(self, name: str) -> StepRecord:
        """Return one step."""
        return next(step for step in self.steps if step.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Record:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: It is not such a record.
        """
        try:
            return cls(**{**data, "steps": [StepRecord(**step) for step in data["steps"]]})
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a job status: {error}") from error


def now_text() -> str:
    """Return the time as ISO 8601 in UTC, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def failed_outcome(record: Record, ref: TrainJobRef, facts: Facts) -> Outcome:
    """Return the outcome of a job that failed."""
    return Outcome(
        ref=ref.to_dict(),
        status="Failed",
        diagnosis=diagnosis.diagnose(facts),
        started_at=record.started,
        finished_at=record.finished,
    )


def lost_outcome(record: Record, ref: TrainJobRef, supervisor_log: str) -> Outcome:
    """Return the outcome of a job whose supervisor is gone without having recorded an end."""
    what = f"its supervisor (process {record.supervisor}) ended while the job was {record.status}"
    if record.status == DAMAGED:
        what = "its status.json is damaged and no supervisor is there to write it anew"
    reason = f"{what}; see {supervisor_log}"
    return failed_outcome(record, ref, Facts(infrastructure_error=reason))


def complete_outcome(
    record: Record,
    ref: TrainJobRef,
    left: dict[str, Any],
    last_progress: dict[str, float],
    fetched: dict[str, str],
) -> Outcome:
    """Return the outcome of a job that is complete.

    Args:
        record: Its record.
        ref: Its ref.
        left: What node-0 left (its termination message); empty for a job that only fetched.
        last_progress: Metrics last reported by `progress`.
        fetched: URIs of what initializers fetched, by role.
    """
    return outcome.complete_outcome(
        ref,
        left,
        started_at=record.started,
        finished_at=record.finished,
        last_progress=last_progress,
        fetched=fetched,
    )
