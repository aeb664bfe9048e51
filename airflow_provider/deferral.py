"""Handing the waiting for a TrainJob to the triggerer, and taking it back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider import logs
from airflow_provider.exceptions import TrainJobUnreachableError
from airflow_provider.hooks.trainjob import TrainJobHook
from trainer_core.ref import TrainJobRef

if TYPE_CHECKING:
    from airflow_provider.triggers.trainjob import TrainJobTrigger

__all__ = ["backstop", "deadline", "ref_of", "show_rest_of_log", "trigger"]

#: How much later than the trigger's own deadline Airflow gives up the task by itself.
_GRACE = timedelta(seconds=60)


def deadline(ti: Any, limit: timedelta | None) -> float | None:
    """Return when a task's time is over, in seconds since the epoch.

    Counted from the start of the task, which stays over every deferral, unlike Airflow's own timeout.
    """
    if limit is None:
        return None
    begin = ti.start_date.timestamp() if ti.start_date else time.time()
    return float(begin + limit.total_seconds())


def trigger(hook: TrainJobHook, ref: TrainJobRef, **how: Any) -> TrainJobTrigger:
    """Return the trigger that waits for a TrainJob.

    Args:
        hook: The way to its backend.
        ref: The TrainJob.
        **how: Further arguments of `TrainJobTrigger`.

    Raises:
        ValueError: What reaches the backend cannot leave this process.
    """
    # The triggers of Airflow are loaded by those who defer; a DAG file need not pay for them.
    from airflow_provider.triggers.trainjob import TrainJobTrigger

    return TrainJobTrigger(ref.to_dict(), **hook.portable(), **how)


def backstop(deadline: float | None) -> timedelta | None:
    """Return when Airflow shall give up a deferred task whose trigger did not: the net below the deadline."""
    return None if deadline is None else timedelta(seconds=max(0.0, deadline - time.time())) + _GRACE


def ref_of(event: Mapping[str, Any]) -> TrainJobRef:
    """Return the TrainJob a trigger's event is about.

    Raises:
        TrainJobUnreachableError: It is no event of our trigger.
    """
    try:
        return TrainJobRef.from_dict(event["ref"])
    except (KeyError, TypeError, ValueError) as error:
        raise TrainJobUnreachableError(f"the trigger's event names no TrainJob: {error}") from error


def show_rest_of_log(hook: TrainJobHook, event: Mapping[str, Any], log: Any, store: Any = None) -> None:
    """Write into the task's log what the trigger has not shown of the job's; most often there is nothing left."""
    logs.rest(lambda: hook.client, ref_of(event), log, store, event.get("log"))
