"""Deferral of an operator or sensor until its TrainJob has ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

from airflow_provider import task_log
from trainer_core.model.jobs import TrainJobRef

#: How long after the trigger's deadline Airflow itself ends the deferral.
_GRACE = timedelta(seconds=60)


def defer_task(
    task: Any,
    ti: Any,
    ref_data: Mapping[str, Any],
    limit: timedelta | None,
    *,
    store: Any = None,
    masked: Sequence[Sequence[str]] = (),
    on_clear: str = "new",
) -> NoReturn:
    """Defer a task until its TrainJob or search has ended; ``execute_complete`` gets the event of the trigger."""
    # Importing Airflow's triggers is slow, and parsing a DAG file does not need them.
    from airflow_provider.triggers.search import SearchTrigger
    from airflow_provider.triggers.trainjob import TrainJobTrigger

    ref = TrainJobRef.from_dict(ref_data)
    deadline = _compute_deadline(ti, limit)
    trigger_class = SearchTrigger if "search" in ref_data else TrainJobTrigger
    trigger = trigger_class(
        dict(ref_data),
        **task.hook.to_trigger_kwargs(),
        deadline=deadline,
        on_kill=task.on_kill_policy,
        on_clear=on_clear,
        fail_fast=task.fail_fast,
        masked=masked,
        tracked_by={"mlflow_conn_id": task.mlflow_conn_id} if task.hook.client.runs.is_tracked(ref) else None,
    )
    task_log.push_log_position(ti, ref, store)
    # In case that the trigger does not fire at the deadline.
    timeout = None if deadline is None else timedelta(seconds=max(0.0, deadline - time.time())) + _GRACE
    task.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)
    raise AssertionError("Airflow's defer() raises")


def _compute_deadline(ti: Any, limit: timedelta | None) -> float | None:
    """Return the deadline of a task in seconds since the epoch; None without a limit."""
    if limit is None:
        return None
    begin = ti.start_date.timestamp() if ti.start_date else time.time()
    return float(begin + limit.total_seconds())
