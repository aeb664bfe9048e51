"""Running one task in this process, with a task instance that needs no database."""

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
    """What an operator asks of its task instance; `xcoms` and `outlet_events` keep what it says."""

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
        self.context_carrier = None
        self.xcoms: dict[str, Any] = {}
        self.outlet_events = OutletEventAccessors()

    def xcom_push(self, key: str, value: Any) -> None:
        """Keep a value."""
        self.xcoms[key] = value

    def xcom_pull(self, task_ids: Any = None, key: str = "return_value", map_indexes: Any = None, **_: Any) -> Any:
        """Return a value of this task: there are no others."""
        return self.xcoms.get(key)

    def next_try(self, *, cleared: bool = False) -> StandInTaskInstance:
        """Return the same task, tried again by Airflow, or cleared by a person."""
        return StandInTaskInstance(
            self.task_id,
            run_id=self.run_id,
            try_number=self.try_number + 1,
            max_tries=self.max_tries + 1 if cleared else self.max_tries,
            map_index=self.map_index,
        )


@dataclass(frozen=True)
class FinishedTask:
    """One try of a task, which has ended.

    Attributes:
        operator: The task.
        ti: Its task instance.
        returned: What it returned.
        error: What it raised; None if it returned.
        triggers: What it was deferred to.
        given: The entries of the template context that the test gave.
    """

    operator: BaseOperator
    ti: StandInTaskInstance
    given: Mapping[str, Any]
    returned: Any
    error: Exception | None
    triggers: tuple[BaseTrigger, ...]

    @property
    def state(self) -> str:
        """``success``, ``skipped``, ``failed``, or ``up_for_retry`` if Airflow would try it again."""
        if self.error is None:
            return "success"
        if isinstance(self.error, AirflowSkipException):
            return "skipped"
        for_good = isinstance(self.error, (AirflowFailException, AirflowSensorTimeout))
        return "failed" if for_good or self.ti.try_number > self.ti.max_tries else "up_for_retry"

    @property
    def xcoms(self) -> dict[str, Any]:
        """What it pushed."""
        return self.ti.xcoms

    def said_of(self, asset: Asset) -> dict[str, Any]:
        """Return what it said of an Asset among its outlets; Airflow makes that Asset new only if it succeeded."""
        return dict(self.ti.outlet_events[asset].extra)

    def retry(self) -> FinishedTask:
        """Try it again, as Airflow does after a failure or a killed worker."""
        return _run(self.operator, self.ti.next_try(), self.given)

    def clear(self) -> FinishedTask:
        """Run it again, as after a person has cleared it."""
        return _run(self.operator, self.ti.next_try(cleared=True), self.given)


def run_task(operator: BaseOperator, *, map_index: int = -1, **context: Any) -> FinishedTask:
    """Run a task to its end, in this process and without a database.

    Args:
        operator: The task. It is not changed, so that it can be run again.
        map_index: Which instance of a mapped task it is.
        context: Further entries of the template context, such as ``params={"epochs": 3}`` or ``ds="2026-01-01"``.
    """
    ti = StandInTaskInstance(operator.task_id, max_tries=operator.retries or 0, map_index=map_index)
    return _run(operator, ti, context)


def _run(operator: BaseOperator, ti: StandInTaskInstance, given: Mapping[str, Any]) -> FinishedTask:
    task = operator.prepare_for_execution()
    context: Any = {**_context(task, ti), **given}
    triggers: list[BaseTrigger] = []
    try:
        with set_current_context(context):
            task.render_template_fields(context)
            returned = _execute(task, context, triggers)
    except Exception as error:  # noqa: BLE001 - how a task ends is what the test asks about
        return FinishedTask(operator, ti, given, None, error, tuple(triggers))
    if returned is not None:
        ti.xcom_push("return_value", returned)
    return FinishedTask(operator, ti, given, returned, None, tuple(triggers))


def _execute(task: BaseOperator, context: Any, triggers: list[BaseTrigger]) -> Any:
    """Execute, and go through the triggers that the task defers to."""
    step = partial(task.execute, context)
    while True:
        try:
            return step()
        except TaskDeferred as deferred:
            triggers.append(_as_the_triggerer_has_it(deferred.trigger))
            event = asyncio.run(_first_event(triggers[-1]))
            arguments = {**(deferred.kwargs or {}), "event": event}
            step = partial(task.resume_execution, deferred.method_name, arguments, context)


def _as_the_triggerer_has_it(trigger: Any) -> BaseTrigger:
    """Made anew from what it says of itself: an attribute that it forgets is missing here, too."""
    _, arguments = trigger.serialize()
    made: BaseTrigger = type(trigger)(**arguments)
    return made


async def _first_event(trigger: BaseTrigger) -> Any:
    async for event in trigger.run():
        return event.payload
    raise AssertionError(f"{type(trigger).__name__} ended without an event")


def _context(task: BaseOperator, ti: StandInTaskInstance) -> dict[str, Any]:
    now = datetime.now(timezone.utc)
    return {
        "task": task,
        "ti": ti,
        "task_instance": ti,
        "run_id": ti.run_id,
        "params": {},
        "dag_run": SimpleNamespace(run_id=ti.run_id, conf={}, logical_date=now),
        "logical_date": now,
        "ds": now.date().isoformat(),
        "outlet_events": ti.outlet_events,
    }
