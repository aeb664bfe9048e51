"""Deadline alerts for DAG runs: report a late run while its training continues."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.definitions import deadline

# AsyncCallback is imported from here because every supported version has it in this module.
from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from airflow.sdk.definitions.deadline import BaseDeadlineReference, DeadlineReferenceType
else:
    BaseDeadlineReference = getattr(deadline, "BaseDeadlineReference", object)  # Airflow before 3.3 has none.

__all__ = ["late_run", "log_late_run", "slower_than_usual"]

_log = logging.getLogger(__name__)
#: Runs whose durations are averaged, as by Airflow's own reference.
_MAX_RUNS = 10


def late_run(
    after: timedelta, message: str, *, reference: DeadlineReferenceType = DeadlineReference.DAGRUN_QUEUED_AT
) -> DeadlineAlert:
    """Return a deadline alert for a DAG: ``@dag(deadline=late_run(timedelta(hours=6), "no new model this morning"))``.

    When a run is late, the triggerer logs an error. The run is not stopped; use the task's `execution_timeout` for
    that. To notify in another way, use `DeadlineAlert` with a notifier.

    Args:
        after: Time after `reference` at which the run is late.
        message: Text of the log line, for the person on call.
        reference: Start of the measured time. Default: when the DAG run was queued.
    """
    callback = AsyncCallback(log_late_run, kwargs={"message": message})
    return DeadlineAlert(reference=reference, interval=after, callback=callback)


def slower_than_usual(factor: float = 2, *, min_runs: int = 3) -> DeadlineAlert:
    """Return a deadline alert for runs that take much longer than before: ``@dag(deadline=slower_than_usual(2))``.

    A run is late after `factor` times the average duration of the last ten successful runs of its DAG. As for
    `late_run`, the triggerer logs an error, and the run is not stopped. Needs Airflow 3.3.

    Args:
        factor: Multiple of the average duration. Default 2.
        min_runs: Number of successful runs before which no run is late, at most 10. Default 3.

    Raises:
        ValueError: An argument is invalid, or Airflow is older than 3.3.
    """
    if not 1 < factor < math.inf:
        raise ValueError(f"slower_than_usual: factor must be a number larger than 1, got {factor!r}")
    if min_runs not in range(1, _MAX_RUNS + 1):
        raise ValueError(f"slower_than_usual: min_runs must be 1 to {_MAX_RUNS}, got {min_runs!r}")
    if BaseDeadlineReference is object:
        raise ValueError("slower_than_usual needs Airflow 3.3 or later; use late_run with a fixed time")
    message = f"it takes more than {factor:g} times as long as usual"
    return late_run(timedelta(0), message, reference=MultipleOfAverageRuntime(factor, min_runs))


@dataclass(eq=False)
class MultipleOfAverageRuntime(BaseDeadlineReference):
    """Reference of `slower_than_usual`; Airflow's own is the average itself. The plugin registers it."""

    required_kwargs: ClassVar[set[str]] = {"dag_id"}
    factor: float
    min_runs: int

    def serialize_reference(self) -> dict[str, Any]:
        """Return what the scheduler needs."""
        return {"reference_type": type(self).__name__, "factor": self.factor, "min_runs": self.min_runs}

    @classmethod
    def deserialize_reference(cls, reference_data: dict[str, Any]) -> MultipleOfAverageRuntime:
        """Return the reference in the scheduler."""
        return cls(reference_data["factor"], reference_data["min_runs"])

    def _evaluate_with(self, *, session: Any, dag_id: str) -> datetime | None:
        from airflow.serialization.definitions.deadline import SerializedReferenceModels  # only in the scheduler

        average = SerializedReferenceModels.AverageRuntimeDeadline(_MAX_RUNS, self.min_runs)
        now = datetime.now(timezone.utc)
        usual = average._evaluate_with(session=session, dag_id=dag_id)
        return None if usual is None else now + (usual - now) * self.factor


async def log_late_run(message: str, context: dict[str, Any] | None = None) -> str:
    """Log that a DAG run is late. The triggerer calls this function and must be able to import it.

    Args:
        message: Text of the log line.
        context: Airflow's context of the DAG run; None if Airflow passes none.
    """
    run = (context or {}).get("dag_run") or {}
    line = f"late DAG run: {message} (DAG {run.get('dag_id', '?')}, run {run.get('dag_run_id', '?')})"
    _log.error(line)
    return line
