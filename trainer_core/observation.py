"""Observation: one look at a TrainJob, in the words all backends share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer_core.outcome import Diagnosis, Outcome

__all__ = [
    "COMPLETE",
    "CREATED",
    "FAILED",
    "RUNNING",
    "STATUSES",
    "SUSPENDED",
    "Observation",
    "Progress",
    "Tail",
    "Trouble",
]

CREATED = "Created"
SUSPENDED = "Suspended"
RUNNING = "Running"
COMPLETE = "Complete"
FAILED = "Failed"
STATUSES = frozenset({CREATED, SUSPENDED, RUNNING, COMPLETE, FAILED})


@dataclass(frozen=True)
class Progress:
    """What the training function last reported through `progress`.

    Attributes:
        step: Steps done, in the function's own unit.
        total: Steps there will be; None when unknown.
        metrics: The numbers reported with it.
    """

    step: float | None
    total: float | None
    metrics: Mapping[str, float]

    @property
    def percentage(self) -> int | None:
        """How much is done, 0 to 100; None when unknown."""
        if self.step is None or not self.total:
            return None
        return max(0, min(100, int(100 * self.step / self.total)))


@dataclass(frozen=True)
class Trouble:
    """What is wrong with a TrainJob that has not ended.

    Attributes:
        diagnosis: Why it will fail unless something changes.
        grace: Seconds for which it may stay so before whoever fails fast gives up; None to never give up for it.
    """

    diagnosis: Diagnosis
    grace: float | None = None


@dataclass(frozen=True)
class Observation:
    """One look at a TrainJob.

    Attributes:
        status: One of `STATUSES`.
        progress: What training last reported, None if nothing.
        outcome: What it left; set exactly when the status is Complete or Failed.
        trouble: What is wrong although it has not ended.
    """

    status: str
    progress: Progress | None = None
    outcome: Outcome | None = None
    trouble: Trouble | None = None


@dataclass(frozen=True)
class Tail:
    """What came into the log of a job since a place.

    Attributes:
        lines: Each line with its step, without its end.
        place: How far that is: plain JSON data that only the backend understands, to read on from, in any process.
        complete: There was no more at the moment.
    """

    lines: list[tuple[str, str]] = field(default_factory=list)
    place: dict[str, Any] = field(default_factory=dict)
    complete: bool = True
