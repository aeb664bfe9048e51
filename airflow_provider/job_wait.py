"""The wait of a task for its TrainJobs, in this worker or in the triggerer: what operators and the sensor share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from airflow_provider import xcom
from airflow_provider.person_actions import ACTION_KEY, SuspensionWatch
from airflow_provider.task_log import LogForwarder, LogPosition
from airflow_provider.task_memory import TaskMemory
from airflow_provider.trigger_event import JobEvent
from trainer_core.model.jobs import Observation, Outcome, TrainJobRef

#: How long after the trigger's deadline Airflow itself ends the deferral.
_GRACE = timedelta(seconds=60)


@dataclass(frozen=True)
class JobEnd:
    """How a TrainJob ended, and whether all of its log is in the log of the task."""

    outcome: Outcome
    log_is_written: bool

    @property
    def is_followed(self) -> bool:
        """Whether the restart rules of the TrainJob demand another one."""
        restarts = self.outcome.restarts
        return restarts is not None and restarts.following is not None


class JobWait:
    """The wait of one task instance.

    A trigger that has ended fires an event; `receive` takes it, and `take_end` returns the end that it carries.

    Args:
        task: The operator or sensor. It says what a deadline and an error mean: `_raise_timeout`, `_raise_unreachable`.
        ti: Its task instance.
        memory: Its memory.
        limit: Time that it waits at most, from the start of its try. None for no limit.
    """

    def __init__(self, task: Any, ti: Any, memory: TaskMemory, limit: timedelta | None) -> None:
        self._task, self.ti, self._memory = task, ti, memory
        self._limit = limit
        self._end: JobEnd | None = None

    @property
    def deadline(self) -> float | None:
        """When the wait ends, in seconds since the epoch; None without a limit."""
        if self._limit is None:
            return None
        begin = self.ti.start_date.timestamp() if self.ti.start_date else time.time()
        return float(begin + self._limit.total_seconds())

    def receive(self, event: Mapping[str, Any]) -> None:
        """Take the event of a trigger. One of an earlier, cleared try, which Airflow can deliver, is ignored."""
        task, memory, ended = self._task, self._memory, JobEvent.parse(event)
        ref, own = ended.job, memory.ref
        if own is None:
            memory.ref_data = dict(ended.ref)
        elif ref != own:
            task.log.info("TrainJob %s belongs to an earlier try; waiting for %s", ref.name, own.name)
            return
        if ended.outcome is not None:
            position = LogPosition(ref, ended.log)
            if ended.log is not None and not position.complete:
                self.create_log_forwarder(ref, position).poll(ended=True)
            memory.save_log_position(position)
            self._end = JobEnd(Outcome.from_dict(ended.outcome), position.complete)
        elif ended.timeout is not None:
            task._raise_timeout(ended)
        elif ended.elsewhere:
            task.log.warning("The triggerer cannot see TrainJob %s; waiting in this worker", ref.name)
            memory.wait_in_worker(ref)
        else:
            task._raise_unreachable(ref, ended.error)

    def take_end(self, ref: TrainJobRef, *, is_last: bool = False) -> JobEnd | None:
        """Return the end of a TrainJob that an event carried, once; None if there is none, or it is not the last."""
        end = self._end
        if end is None or end.outcome.job != ref or (is_last and end.is_followed):
            return None
        self._end = None
        return end

    def is_deferred(self, ref: TrainJobRef) -> bool:
        """Return whether the task waits for a TrainJob in the triggerer."""
        return self._task.deferrable and not self._memory.waits_in_worker(ref)

    def raise_deferral(self, *, masked: Sequence[Sequence[str]] = (), on_clear: str = "new") -> NoReturn:
        """Defer the task until its TrainJob or search has ended; ``execute_complete`` gets the event of the trigger."""
        # Importing Airflow's triggers is slow, and parsing a DAG file does not need them.
        from airflow_provider.triggers.search import SearchTrigger
        from airflow_provider.triggers.trainjob import TrainJobTrigger

        task, ref_data, deadline = self._task, self._memory.ref_data, self.deadline
        ref = TrainJobRef.from_dict(ref_data)
        trigger_class = SearchTrigger if "search" in ref_data else TrainJobTrigger
        trigger = trigger_class(
            ref_data,
            **task.hook.to_trigger_kwargs(),
            deadline=deadline,
            on_kill=task.on_kill_policy,
            on_clear=on_clear,
            fail_fast=task.fail_fast,
            masked=masked,
            tracked_by={"mlflow_conn_id": task.mlflow_conn_id} if task.hook.client.runs.is_tracked(ref) else None,
        )
        self._memory.push_log_position(ref)
        # In case that the trigger does not fire at the deadline.
        timeout = None if deadline is None else timedelta(seconds=max(0.0, deadline - time.time())) + _GRACE
        task.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)
        raise AssertionError("Airflow's defer() raises")

    def create_log_forwarder(self, ref: TrainJobRef, position: LogPosition | None = None) -> LogForwarder:
        """Return what writes the log of a TrainJob to that of the task, and continues where the previous try stopped.

        If the worker of the previous try was killed, the lines of the last few seconds are written again.
        """
        log, memory = self._task.log, self._memory
        position = position or memory.read_log_position(ref)
        client = self._task.hook.client
        return LogForwarder(client, ref, lambda line: log.info("%s", line), position, memory.save_log_position)

    def create_report(self, ref: TrainJobRef) -> JobReport:
        """Return what writes the observations of a TrainJob to the log of the task."""
        return JobReport(self._task.log, self.ti, ref)


class JobReport:
    """Writes a pending failure of a TrainJob, and that a person has suspended or resumed it, to the log of its task."""

    def __init__(self, log: Any, ti: Any, ref: TrainJobRef) -> None:
        from trainer_core.lifecycle.wait_state import PendingFailureLog  # Parsing a DAG file does not need it.

        self._log, self._ti = log, ti
        self._pending = PendingFailureLog(ref.name, lambda line: log.warning("%s", line))
        self._suspension = SuspensionWatch(ref.name)

    def write(self, observation: Observation) -> None:
        """Write what has changed since the last observation."""
        self._pending.report(observation)
        if self._suspension.has_changed(observation.status):
            self._log.info("%s", self._suspension.describe(xcom.pull(self._ti, ACTION_KEY)))
