"""Outcome and Diagnosis: what a finished TrainJob left."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainer_core.ref import TrainJobRef

__all__ = ["Category", "Diagnosis", "Outcome", "artifacts_of", "complete_outcome", "metrics_of"]


class Category(str, Enum):
    """Why a TrainJob failed. A stable contract: alerts and retry policies may match on the values."""

    USER_CODE = "UserCode"
    OUT_OF_MEMORY = "OutOfMemory"
    IMAGE = "Image"
    SCHEDULING = "Scheduling"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    DEADLINE = "Deadline"
    INITIALIZER = "Initializer"
    REJECTED = "Rejected"
    DELETED = "Deleted"
    INFRASTRUCTURE = "Infrastructure"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Diagnosis(_Record):
    """Why a TrainJob failed, for the person on call.

    Attributes:
        category: The kind of failure.
        reason: One line that says what happened.
        step: The step it happened in, such as ``"node-0"``; None when no single step is to blame.
        node: The machine or pod of that step, where known.
        exit_code: Exit code of that step; negative for a signal, as in `subprocess`.
        traceback: The training function's own traceback, where there is one.
        log_tail: The last lines of that step's log.
        retryable: Whether running the same request again can help.
    """

    category: Category
    reason: str
    step: str | None = None
    node: str | None = None
    exit_code: int | None = None
    traceback: str | None = None
    log_tail: tuple[str, ...] = ()
    retryable: bool = False

    def __str__(self) -> str:
        where = f" in {self.step}" if self.step else ""
        return f"{self.category.value}{where}: {self.reason}"


class Outcome(_Record):
    """What a finished TrainJob left. JSON both ways; what XCom and KFP outputs carry.

    Attributes:
        ref: The TrainJob.
        status: ``"Complete"`` or ``"Failed"``.
        result: What the training function returned on rank 0; for a job that only initializes, where
            the data lies.
        metrics: The numbers of the result (its ``metrics`` entry, else its top-level numbers), over the
            last ones reported by `progress`.
        artifacts: URIs by name: the ``artifacts`` entry of the result, and what initializers fetched.
        diagnosis: Why it failed; None for a complete job.
        started_at: When the first step started, ISO 8601 in UTC.
        finished_at: When it ended, ISO 8601 in UTC.
        result_truncated: The result was larger than what travels (4,096 bytes as JSON) and is left out.
        result_note: Why there is no result although the function returned something.
    """

    version: Literal[1] = 1
    ref: dict[str, Any]
    status: Literal["Complete", "Failed"]
    result: Any = None
    metrics: dict[str, float] = Field(default_factory=dict)
    artifacts: dict[str, str] = Field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    started_at: str | None = None
    finished_at: str | None = None
    result_truncated: bool = False
    result_note: str | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the TrainJob is Complete."""
        return self.status == "Complete"

    @property
    def job(self) -> TrainJobRef:
        """The TrainJob, as a ref."""
        return TrainJobRef.from_dict(self.ref)

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain JSON data."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Outcome:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: Not an outcome, or one of another version.
        """
        return cls.model_validate(data)

    def to_json(self) -> str:
        """Return the outcome as one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Read what `to_json` wrote.

        Raises:
            ValueError: Not an outcome.
        """
        return cls.model_validate_json(text)


def complete_outcome(
    ref: TrainJobRef,
    left: Mapping[str, Any],
    *,
    started_at: str | None,
    finished_at: str | None,
    last_progress: Mapping[str, float] | None = None,
    fetched: Mapping[str, str] | None = None,
) -> Outcome:
    """Return the outcome of a job that is complete.

    Args:
        ref: Its ref.
        left: What rank 0 left (its termination message); empty for a job that only fetched.
        started_at: When its first step started.
        finished_at: When it ended.
        last_progress: Metrics last reported by `progress`.
        fetched: URIs of what initializers fetched, by role.
    """
    found = dict(fetched or {})
    result = left.get("result") if left else (found or None)
    return Outcome(
        ref=ref.to_dict(),
        status="Complete",
        result=result,
        metrics=metrics_of(result, last_progress),
        artifacts={**found, **artifacts_of(result)},
        started_at=started_at,
        finished_at=finished_at,
        result_truncated=bool(left.get("truncated")),
        result_note=left.get("note"),
    )


def metrics_of(result: Any, last_progress: Mapping[str, float] | None = None) -> dict[str, float]:
    """Pick the numbers out of a result: its ``metrics`` entry if it has one, else its top level.

    Args:
        result: What the training function returned.
        last_progress: The metrics last reported by `progress`; the result's win.
    """
    source = result.get("metrics", result) if isinstance(result, dict) else {}
    source = source if isinstance(source, dict) else {}
    return {**(last_progress or {}), **{str(k): float(v) for k, v in source.items() if _is_number(v)}}


def artifacts_of(result: Any) -> dict[str, str]:
    """Pick the named URIs out of a result: its ``artifacts`` entry, strings only."""
    entry = result.get("artifacts") if isinstance(result, dict) else None
    return {str(k): v for k, v in entry.items() if isinstance(v, str)} if isinstance(entry, dict) else {}


def _is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold, which a whole number of any size need not be."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
