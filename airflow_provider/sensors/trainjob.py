"""TrainJobSensor: wait for a TrainJob that another task, or somebody else, submitted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from airflow.configuration import conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider import assets, cancelling, deferral, given, handover
from airflow_provider.compat import AirflowSensorTimeout, AirflowSkipException
from airflow_provider.exceptions import TrainJobRejectedError, TrainJobUnreachableError
from airflow_provider.hooks.trainjob import TrainJobHook
from airflow_provider.lineage import ReportsLineage
from airflow_provider.logs import LogTail
from trainer_core import waiting
from trainer_core.configs import BackendConfig
from trainer_core.errors import TrainerError
from trainer_core.outcome import Outcome
from trainer_core.ref import TrainJobRef

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["TrainJobSensor"]

_TROUBLE = "trainjob_trouble"


class TrainJobSensor(ReportsLineage, BaseSensorOperator):
    """Wait until a TrainJob has ended, and return its result.

    The job belongs to whoever submitted it: a timeout of the sensor does not end it unless `on_kill` says so. A job
    that failed fails the sensor at once, whatever retries are left, because a retry would read the same end; clear the
    task that submitted it instead.

    XComs: ``return_value`` (the result), ``ref``, ``status``, ``metrics``, ``artifacts``.

    Args:
        job: The TrainJob: the ref that ``TrainJobOperator(wait_for_completion=False)`` returns (``train.output``), or
            a template of it. Templated.
        backend: Name of the backend; None for the ref's own.
        backend_config: As for `TrainJobOperator`.
        trainjob_conn_id: As for `TrainJobOperator`.
        deferrable: Wait in the triggerer, without a worker slot; `mode` and `poke_interval` then have no meaning.
        on_kill: What becomes of the job when the sensor is killed or times out: ``keep`` or ``cancel``.
        fail_fast: End a job that cannot get well, as for `TrainJobOperator`.
        kwargs: As for every sensor; `poke_interval` is 10 seconds if not given.

    Raises:
        ValueError: An argument cannot be right.
    """

    template_fields: Sequence[str] = ("job",)
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        job: Any,
        backend: str | None = None,
        backend_config: BackendConfig | Mapping[str, Any] | None = None,
        trainjob_conn_id: str | None = TrainJobHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        on_kill: Literal["cancel", "keep"] = "keep",
        fail_fast: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"poke_interval": 10, **kwargs})
        self.job = given.templated(job)
        self.backend = backend
        self.backend_config = backend_config
        self.trainjob_conn_id = trainjob_conn_id
        self.deferrable = deferrable
        self.on_kill_policy = cancelling.check_policy(on_kill)
        self.fail_fast = fail_fast
        #: What Airflow keeps over the looks of a sensor that comes anew for each, from 3.3 on.
        self._store: Any = None

    @cached_property
    def ref(self) -> TrainJobRef:
        """The TrainJob, once the template is rendered.

        Raises:
            TrainJobRejectedError: `job` is no ref.
        """
        try:
            return TrainJobRef.from_dict(given.plain(self.job))
        except ValueError as error:
            raise TrainJobRejectedError(
                f"job must be the ref of a TrainJob, such as train.output of TrainJobOperator: {error}"
            ) from error

    @cached_property
    def hook(self) -> TrainJobHook:
        """The way to the backend of the TrainJob."""
        return TrainJobHook(self.trainjob_conn_id, self.backend or self.ref.backend, self.backend_config)

    def execute(self, context: Context) -> Any:
        """Wait in the way that was chosen, and return the result."""
        handover.push_ref(context["ti"], self.ref)
        if self.deferrable:
            # As after the deferral, where Airflow sees to soft_fail and never_fail.
            return self.resume_execution(self._defer_unless_ended.__name__, {}, context)
        if self.reschedule:
            self._store = context.get("task_state_store")
        try:
            return super().execute(context)
        except (AirflowSensorTimeout, AirflowSkipException):
            self._cancel()
            raise

    def poke(self, context: Context) -> PokeReturnValue:
        """Take one look."""
        try:
            observation = self.hook.client.observe(self.ref)
        except TrainerError as error:
            self._state = self._failed(error)
            self.log.warning("TrainJob %s could not be looked at; trying again: %s", self.ref.name, error)
        except ValueError as error:
            raise TrainJobRejectedError(str(error)) from error
        else:
            self._state = self._state.seen(observation, self._now())
            self._show(observation.status)
        if self._state.outcome is None:
            self._remember()
            return PokeReturnValue(is_done=False)
        outcome = self.hook.client.conclude(self._state)
        return PokeReturnValue(is_done=True, xcom_value=self._finish(context["ti"], outcome))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Finish from the trigger's event alone."""
        ref = deferral.ref_of(event)
        if ref != self.ref:
            # Airflow can deliver the event of a trigger that an earlier, cleared try left behind.
            self.log.info("That was TrainJob %s of an earlier try; waiting for %s", ref.name, self.ref.name)
            return self._defer_unless_ended(context)
        if "outcome" in event:
            deferral.show_rest_of_log(self.hook, event, self.log)
            return self._finish(context["ti"], Outcome.from_dict(event["outcome"]))
        if "timeout" in event:
            raise AirflowSensorTimeout(event["timeout"])
        raise TrainJobUnreachableError(f"TrainJob {ref.name!r} could not be followed: {event.get('error')}")

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume from deferral; where Airflow gave up by itself, the trigger could not see to the job."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (AirflowSensorTimeout, AirflowSkipException):
            self._cancel()
            raise

    def on_kill(self) -> None:
        """Cancel the job if that was asked for. Nothing here speaks with Airflow: its locks may be held."""
        if self.on_kill_policy == "cancel":
            cancelling.cancel_in_signal_handler(self.hook, self.ref, self.log)

    @cached_property
    def _state(self) -> waiting.Waiting:
        begun = waiting.start(self.ref, self._now(), fail_fast=self.fail_fast)
        known = self._store.get(_TROUBLE) if self._store is not None else None
        return waiting.resume(begun, known["of"]) if known and known["uid"] == self.ref.uid else begun

    def _now(self) -> float:
        """The time; of a sensor that comes anew for each look, by a clock that all its processes share."""
        return time.time() if self.reschedule else time.monotonic()

    def _remember(self) -> None:
        """Write down, for the next look of a sensor that comes anew, since when something has been wrong."""
        carried = self._state.carried()
        if self._store is not None and carried:
            self._store.set(_TROUBLE, {"uid": self.ref.uid, "of": carried})

    @cached_property
    def _tail(self) -> LogTail:
        return LogTail(self.hook.client, self.ref, lambda line: self.log.info("%s", line))

    def _failed(self, error: TrainerError) -> waiting.Waiting:
        try:
            return self._state.failed(error, self._now())
        except TrainerError as last:
            raise TrainJobUnreachableError(f"TrainJob {self.ref.name!r} could not be followed: {last}") from last

    def _show(self, status: str) -> None:
        """The job's log, by a sensor that stays; one that comes anew for each look would begin at its start again."""
        if self.reschedule:
            self.log.info("TrainJob %s is %s", self.ref.name, status)
        else:
            self._tail.look(ended=self._state.outcome is not None)

    def _defer_unless_ended(self, context: Context) -> Any:
        seen = self.poke(context)
        if seen:
            return seen.xcom_value
        limits = [timedelta(seconds=self.timeout), self.execution_timeout]
        end = deferral.deadline(context["ti"], min(limit for limit in limits if limit is not None))
        trigger = deferral.trigger(
            self.hook, self.ref, deadline=end, on_kill=self.on_kill_policy, fail_fast=self.fail_fast
        )
        return self.defer(trigger=trigger, method_name="execute_complete", timeout=deferral.backstop(end))

    def _finish(self, ti: Any, outcome: Outcome) -> Any:
        self.outcome = outcome
        handover.push_outcome(ti, outcome)
        handover.report(self.log, outcome)
        if outcome.succeeded:
            assets.announce(self.outlets, outcome)
            return outcome.result
        raise handover.failure(outcome, retry_can_help=False)

    def _cancel(self) -> None:
        if self.on_kill_policy == "cancel":
            cancelling.cancel(self.hook, self.ref, self.log)
