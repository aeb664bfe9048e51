"""Runs one task in the test process, with a task instance that needs no database."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.operator import BaseOperator
from airflow.sdk.execution_time.context import OutletEventAccessors, set_current_context

from airflow_provider.compat import AirflowFailException, AirflowSensorTimeout, AirflowSkipException, TaskDeferred

if TYPE_CHECKING:
    from airflow.sdk import Asset
    from airflow.triggers.base import BaseTrigger

__all__ = ["FinishedTask", "StandInTaskInstance", "run_task"]

_runs = itertools.count()


class StandInTaskInstance:
    """Task instance for tests. `xcoms` and `outlet_events` hold what the operator pushes and writes.

    `state` is the state in Airflow's database: a test sets it to what a person does to the running task.
    """

    def __init__(
        self,
        task_id: str = "train",
        *,
        run_id: str | None = None,
        try_number: int = 1,
        max_tries: int = 0,
        map_index: int = -1,
    ) -> None:
        self.id = uuid.uuid4()
        self.dag_id = "a_dag"
        self.run_id = run_id or f"run-{next(_runs)}"
        self.task_id = task_id
        self.map_index = map_index
        self.try_number = try_number
        self.max_tries = max_tries
        self.start_date = datetime.now(timezone.utc)
        self.state = "running"
        self.context_carrier = None
        self.xcoms: dict[str, Any] = {}
        self.outlet_events = OutletEventAccessors()

    def xcom_push(self, key: str, value: Any) -> None:
        """Store an XCom."""
        self.xcoms[key] = value

    def xcom_pull(self, task_ids: Any = None, key: str = "return_value", map_indexes: Any = None, **_: Any) -> Any:
        """Return an XCom of this task; there are no other tasks."""
        return self.xcoms.get(key)

    def get_task_states(self, **_: Any) -> dict[str, dict[str, str]]:
        """Return the state of this task."""
        key = self.task_id if self.map_index < 0 else f"{self.task_id}_{self.map_index}"
        return {self.run_id: {key: self.state}}

    def next_try(self, *, cleared: bool = False) -> StandInTaskInstance:
        """Return the task instance of the next try, after a retry by Airflow or after a user cleared the task."""
        return StandInTaskInstance(
            self.task_id,
            run_id=self.run_id,
            try_number=self.try_number + 1,
            max_tries=self.max_tries + 1 if cleared else self.max_tries,
            map_index=self.map_index,
        )


@dataclass(frozen=True)
class FinishedTask:
    """One try of a task that has ended.

    Attributes:
        operator: The task.
        ti: Its task instance.
        context: Entries of the template context that the test passed.
        returned: Return value of the task.
        error: Exception that the task raised; None if it returned.
        triggers: Triggers to which the task was deferred.
    """

    operator: BaseOperator
    ti: StandInTaskInstance
    context: Mapping[str, Any]
    returned: Any
    error: Exception | None
    triggers: tuple[BaseTrigger, ...]

    @property
    def state(self) -> str:
        """``success``, ``skipped``, ``failed``, or ``up_for_retry`` if Airflow would retry the task."""
        if self.error is None:
            return "success"
        if isinstance(self.error, AirflowSkipException):
            return "skipped"
        final = isinstance(self.error, (AirflowFailException, AirflowSensorTimeout))
        return "failed" if final or self.ti.try_number > self.ti.max_tries else "up_for_retry"

    @property
    def xcoms(self) -> dict[str, Any]:
        """XComs that the task pushed, by key."""
        return self.ti.xcoms

    def get_asset_extra(self, asset: Asset) -> dict[str, Any]:
        """Return the data of an Asset's event. Airflow creates the event only if the task succeeded."""
        return dict(self.ti.outlet_events[asset].extra)

    def retry(self) -> FinishedTask:
        """Run the task again, as Airflow does after a failure or a killed worker."""
        return _run(self.operator, self.ti.next_try(), self.context)

    def clear(self) -> FinishedTask:
        """Run the task again, as Airflow does after a user cleared it."""
        return _run(self.operator, self.ti.next_try(cleared=True), self.context)


def run_task(operator: BaseOperator, *, map_index: int = -1, **context: Any) -> FinishedTask:
    """Run a task in this process, without a database, until it ends.

    Args:
        operator: The task. It is not changed and can be run again.
        map_index: Index of the instance of a mapped task. Default: -1, not mapped.
        context: Entries of the template context, such as ``params={"epochs": 3}`` or ``ds="2026-01-01"``.
    """
    ti = StandInTaskInstance(operator.task_id, max_tries=operator.retries or 0, map_index=map_index)
    return _run(operator, ti, context)


def _run(operator: BaseOperator, ti: StandInTaskInstance, entries: Mapping[str, Any]) -> FinishedTask:
    task = operator.prepare_for_execution()
    context: Any = {**_build_context(task, ti), **entries}
    triggers: list[BaseTrigger] = []
    try:
        with set_current_context(context):
            task.render_template_fields(context)
            returned = _execute(task, context, triggers)
    except Exception as error:  # noqa: BLE001 -- the test checks how the task ended
        return FinishedTask(operator, ti, entries, None, error, tuple(triggers))
    if returned is not None:
        ti.xcom_push("return_value", returned)
    return FinishedTask(operator, ti, entries, returned, None, tuple(triggers))


def _execute(task: BaseOperator, context: Any, triggers: list[BaseTrigger]) -> Any:
    """Execute a task, including the triggers to which it is deferred."""
    step = partial(task.execute, context)
    while True:
        try:
            return step()
        except TaskDeferred as deferred:
            triggers.append(_recreate_trigger(deferred.trigger))
            event = asyncio.run(_read_first_event(triggers[-1]))
            arguments = {**(deferred.kwargs or {}), "event": event}
            step = partial(task.resume_execution, deferred.method_name, arguments, context)


def _recreate_trigger(trigger: Any) -> BaseTrigger:
    """Recreate a trigger from its serialized form, as the triggerer does, so that missing attributes are noticed."""
    _, arguments = trigger.serialize()
    recreated: BaseTrigger = type(trigger)(**arguments)
    return recreated


async def _read_first_event(trigger: BaseTrigger) -> Any:
    async for event in trigger.run():
        return event.payload
    raise AssertionError(f"{type(trigger).__name__} ended without an event")


def _build_context(task: BaseOperator, ti: StandInTaskInstance) -> dict[str, Any]:
    now = datetime.now(timezone.utc)
    return {
        "dag": task.dag if task.has_dag() else SimpleNamespace(timezone=timezone.utc),
        "task": task,
        "ti": ti,
        "task_instance": ti,
        "run_id": ti.run_id,
        "params": {},
        "dag_run": SimpleNamespace(run_id=ti.run_id, conf={}, logical_date=now, run_after=now),
        "logical_date": now,
        "ds": now.date().isoformat(),
        "outlet_events": ti.outlet_events,
    }
