"""Deadline alerts for DAG runs: report a late run while its training continues."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

# AsyncCallback is imported from here because every supported version has it in this module.
from airflow.sdk.definitions.deadline import (  # type: ignore[attr-defined]
    AsyncCallback,
    DeadlineAlert,
    DeadlineReference,
)

if TYPE_CHECKING:
    from airflow.sdk.definitions.deadline import DeadlineReferenceType

__all__ = ["late_run", "log_late_run"]

_log = logging.getLogger(__name__)


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
