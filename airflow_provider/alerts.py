"""A deadline of a DAG run: who waits for a model learns that it is late, while the training goes on."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

# AsyncCallback, too: at this place it lies in every version that we support.
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
    """Return the deadline of a DAG: ``@dag(deadline=late_run(timedelta(hours=6), "no new model this morning"))``.

    The triggerer then writes an error into its log, where whoever watches logs sees it; give `DeadlineAlert` a notifier
    of your own to be told in another way. Nothing is ended: a deadline that ends the training is the task's
    `execution_timeout`.

    Args:
        after: How long a run may take.
        message: What it means, for the person on call.
        reference: What the time is counted from.
    """
    callback = AsyncCallback(log_late_run, kwargs={"message": message})
    return DeadlineAlert(reference=reference, interval=after, callback=callback)


async def log_late_run(message: str, context: dict[str, Any] | None = None) -> str:
    """Say that a run is late. Called by the triggerer, which must be able to import it.

    Args:
        message: What it means.
        context: Of the run.
    """
    run = (context or {}).get("dag_run") or {}
    line = f"late: {message} (DAG {run.get('dag_id', '?')}, run {run.get('dag_run_id', '?')})"
    _log.error(line)
    return line
