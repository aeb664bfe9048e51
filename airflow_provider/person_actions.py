"""What a person did to a job on the TrainJobs page, for a line in the log of its task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_core.model.jobs import SUSPENDED, Category, Outcome

#: XCom of the task: the last action on the TrainJobs page, who did it, and when.
ACTION_KEY = "trainjob_action"


class SuspensionWatch:
    """Notices that a job was suspended or resumed while its task waits."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._was_suspended: bool | None = None

    def has_changed(self, status: str) -> bool:
        """Return whether the job was suspended or resumed since the last call."""
        before, self._was_suspended = self._was_suspended, status == SUSPENDED
        return before is not None and before != self._was_suspended

    def describe(self, action: Any) -> str:
        """Return a line about the change, with the person who did it on the page, if one did."""
        expected, done = ("suspend", "suspended") if self._was_suspended else ("resume", "resumed")
        return f"TrainJob {self._name} was {done}{_format_person(action, expected)}"


def describe_deletion(outcome: Outcome, action: Any) -> str | None:
    """Return a line about a job that a person deleted on the page; None if it was not deleted there."""
    diagnosis = outcome.diagnosis
    person = _format_person(action, "delete")
    is_deleted = diagnosis is not None and diagnosis.category is Category.DELETED
    return f"TrainJob {outcome.job.name} was deleted{person}" if is_deleted and person else None


def _format_person(action: Any, expected: str) -> str:
    if not isinstance(action, Mapping) or action.get("action") != expected:
        return ""
    return f" by {action.get('by')} on the TrainJobs page"
