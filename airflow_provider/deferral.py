"""Deferral of a task: creates its trigger, computes its deadline, and reads the trigger's event."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider import task_log
from airflow_provider.exceptions import TrainJobUnreachableError
from airflow_provider.hooks.trainjob import TrainJobHook
from trainer_core.jobs import TrainJobRef

if TYPE_CHECKING:
    from airflow_provider.triggers.trainjob import TrainJobTrigger

__all__ = ["compute_deadline", "compute_defer_timeout", "create_trigger", "parse_event_ref", "write_remaining_log"]

#: How long after the trigger's deadline Airflow itself ends the deferral.
_GRACE = timedelta(seconds=60)


def compute_deadline(ti: Any, limit: timedelta | None) -> float | None:
    """Return the deadline of a task in seconds since the epoch; None without a limit.

    Counted from the start of the task, which deferrals do not change; Airflow's own timeout starts again after each.
    """
    if limit is None:
        return None
    begin = ti.start_date.timestamp() if ti.start_date else time.time()
    return float(begin + limit.total_seconds())


def create_trigger(
    hook: TrainJobHook, ref: TrainJobRef, *, mlflow_conn_id: str | None, **kwargs: Any
) -> TrainJobTrigger:
    """Return the trigger that waits for a TrainJob.

    Args:
        hook: Hook of the job's backend. If its client tracks jobs, the trigger sends the progress to the job's run.
        ref: The TrainJob.
        mlflow_conn_id: Id of the connection to the tracking server. None for the environment of the triggerer.
        **kwargs: Further arguments of `TrainJobTrigger`.

    Raises:
        ValueError: The configuration of the hook has a secret, which must not be stored with the trigger.
    """
    # Importing Airflow's triggers is slow, and parsing a DAG file does not need them.
    from airflow_provider.triggers.trainjob import TrainJobTrigger

    tracked_by = {"mlflow_conn_id": mlflow_conn_id} if hook.client.is_tracking else None
    return TrainJobTrigger(ref.to_dict(), **hook.to_trigger_kwargs(), tracked_by=tracked_by, **kwargs)


def compute_defer_timeout(deadline: float | None) -> timedelta | None:
    """Return Airflow's timeout for a deferral: the deadline plus a grace period, in case the trigger does not fire."""
    return None if deadline is None else timedelta(seconds=max(0.0, deadline - time.time())) + _GRACE


def parse_event_ref(event: Mapping[str, Any]) -> TrainJobRef:
    """Return the ref of the TrainJob in a trigger's event.

    Raises:
        TrainJobUnreachableError: The event has no valid ref.
    """
    try:
        return TrainJobRef.from_dict(event["ref"])
    except (KeyError, TypeError, ValueError) as error:
        raise TrainJobUnreachableError(f"the event of the trigger has no valid TrainJob ref: {error}") from error


def write_remaining_log(hook: TrainJobHook, event: Mapping[str, Any], log: Any, store: Any = None) -> bool:
    """Write the lines of the job's log that the trigger did not write to the task's log.

    Returns:
        Whether the task's log has the whole log of the job now.
    """
    return task_log.forward_remaining_log(lambda: hook.client, parse_event_ref(event), log, store, event.get("log"))
