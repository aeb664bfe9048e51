"""TrainJobSensor: wait for a TrainJob that another task or program submitted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.configuration import conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider import assets, cancellation, connections, deferral, job_location, task_log, tracking, xcom
from airflow_provider.compat import REPORT_SECONDS, AirflowException, AirflowSensorTimeout, AirflowSkipException
from airflow_provider.exceptions import TrainJobRejectedError, TrainJobUnreachableError, build_failure
from airflow_provider.hooks.mlflow import MlflowHook
from airflow_provider.hooks.trainjob import TrainJobHook
from airflow_provider.lineage import OpenLineageMixin
from airflow_provider.person_actions import ACTION_KEY, SuspensionWatch
from airflow_provider.task_log import LogForwarder
from airflow_provider.trigger_event import JobEvent
from trainer_core.base import validation
from trainer_core.base.errors import JobElsewhereError, TrainerError
from trainer_core.client.waiting import finish_wait
from trainer_core.lifecycle import wait_state
from trainer_core.lifecycle.wait_state import PendingFailureLog
from trainer_core.model.config import BackendConfig
from trainer_core.model.jobs import Outcome, TrainJobRef, mark_reused

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["TrainJobSensor"]

_STATE_KEY = "trainjob_trouble"
#: Least interval of mode="reschedule".
_MIN_INTERVAL = 2 * REPORT_SECONDS
#: What the sensor knows of the job that it waits for.
_OF_JOB = ("ref", "_state", "_saved_state", "_log_forwarder", "_suspension", "_pending_failures")


class TrainJobSensor(OpenLineageMixin, assets.ChecksMapping, BaseSensorOperator):
    """Wait until a TrainJob has ended, and return its result.

    The sensor does not own the job: unless `on_kill` is ``cancel``, a timeout of the sensor leaves the job running. A
    failed job fails the sensor without retries, because a retry would read the same status; clear the task that
    submitted the job instead. The asset events of the `outlets` have the partition of the job, if a task of the
    provider submitted it.

    XComs: ``return_value`` (the result of the training function), ``ref``, ``status``, ``metrics``, ``artifacts``, and
    ``diagnosis`` if the job failed.

    Example:
        ```python
        submit = TrainJobOperator(task_id="submit", trainer=trainer, wait_for_completion=False)
        TrainJobSensor(task_id="wait", job=submit.output, deferrable=True)
        ```

    Args:
        job: Ref of the TrainJob, the output of its task (``submit.output``), or a template that renders to a ref.
            Required. Templated.
        backend: Name of the backend. Default: None, the backend of the ref. Not templated.
        backend_config: A configuration of `trainer_core`, used instead of the connection, or a dict of settings
            that override those of the connection. Default: None. Not templated.
        trainjob_conn_id: Id of an Airflow connection of type ``trainjob``. Default: ``trainjob_default``; if that
            connection does not exist, the backend must be named by `backend`, by a ref, or by the Airflow setting
            ``[trainjob] backend``. None: use no connection. Not templated.
        deferrable: True: wait in the triggerer and free the worker slot; `mode` and `poke_interval` are then ignored.
            Default: the Airflow setting ``[operators] default_deferrable`` (False). Not templated.
        mlflow_conn_id: Id of the Airflow connection of type ``mlflow`` that the job is tracked with. Default:
            ``mlflow_default``; if that connection does not exist, ``MLFLOW_TRACKING_URI`` of the worker decides. Not
            templated.
        on_kill: What happens to the job when the sensor is killed or times out: ``keep`` (default) or ``cancel``. Not
            templated.
        fail_fast: True (default): fail and cancel a job that cannot start or recover, such as one with a missing image,
            a crash loop, or half an hour without a node that fits. False: wait until the backend itself
            reports the job as failed. Not templated.
        restarts: True: after a failure, start the next attempt that the job's `RestartPolicy` demands, and wait for
            that one. For a job whose task does not wait. Needs ``deferrable=True`` or ``mode="poke"``. False (default):
            the failure of the job is that of the sensor. Not templated.
        kwargs: Arguments of every sensor. `poke_interval` is in seconds and defaults to 10, the least for
            ``mode="reschedule"``, which raises a shorter one; `timeout` is in seconds and defaults to 7 days.

    Raises:
        ValueError: An argument is invalid; raised when the DAG is parsed.
    """

    template_fields: Sequence[str] = ("job",)
    ui_color = "#e8f0fe"
    job_key: ClassVar[str] = "ref"

    def __init__(
        self,
        *,
        job: Any,
        backend: str | None = None,
        backend_config: BackendConfig | Mapping[str, Any] | None = None,
        trainjob_conn_id: str | None = TrainJobHook.default_conn_name,
        mlflow_conn_id: str | None = MlflowHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        on_kill: Literal["cancel", "keep"] = "keep",
        fail_fast: bool = True,
        restarts: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"poke_interval": 10, **kwargs})
        if restarts and self.reschedule and not deferrable:
            raise ValueError("restarts=True needs deferrable=True or mode='poke': mode='reschedule' keeps one job only")
        self._given_interval = self.poke_interval
        if self.reschedule and not deferrable:
            self.poke_interval = max(self.poke_interval, _MIN_INTERVAL)
        is_sweep = self.get_closest_mapped_task_group() is not None and not assets.job_names_partition(job)
        assets.check_outlets(self.task_id, self.outlets, is_sweep=is_sweep)
        conn_ids = {"trainjob_conn_id": trainjob_conn_id, "mlflow_conn_id": mlflow_conn_id}
        connections.check_constants(backend, backend_config, **conn_ids)
        self.job = job_location.to_template_value(job, is_ref=True)
        self.backend = backend
        self.backend_config = backend_config
        self.trainjob_conn_id = trainjob_conn_id
        self.mlflow_conn_id = mlflow_conn_id
        self.deferrable = deferrable
        validation.check_one_of("on_kill", on_kill, ("cancel", "keep"))
        self.on_kill_policy = on_kill
        self.fail_fast = fail_fast
        self.restarts = restarts
        #: Airflow 3.3 and later, mode="reschedule": storage that all pokes of the sensor share.
        self._task_store: Any = None

    @cached_property
    def ref(self) -> TrainJobRef:
        """Ref of the TrainJob, available after rendering.

        Raises:
            TrainJobRejectedError: `job` is not a TrainJob ref.
        """
        return TrainJobRef.from_dict(self._ref_data)

    @cached_property
    def _ref_data(self) -> dict[str, Any]:
        """The ref as JSON data, with the place that its submitter resolved."""
        try:
            data = job_location.parse_ref_data(self.job)
            TrainJobRef.from_dict(data)
        except ValueError as error:
            raise TrainJobRejectedError(
                f"job must be the ref of a TrainJob, such as TrainJobOperator's output: {error}"
            ) from error
        return dict(data)

    @cached_property
    def hook(self) -> TrainJobHook:
        """Hook for the sensor's connection and the backend of the job."""
        return TrainJobHook(self.trainjob_conn_id, self.backend or self.ref.backend, self.backend_config)

    def execute(self, context: Context) -> Any:
        """Wait for the TrainJob and return its result.

        Raises:
            TrainJobFailedError: The job failed. The class depends on the category of its diagnosis.
            TrainJobRejectedError: `job` is not a TrainJob ref, or the backend refuses it.
            TrainJobUnreachableError: The status of the job can no longer be read.
            AirflowSensorTimeout: The job did not end within `timeout`.
        """
        self._check_place()
        xcom.push_ref(context["ti"], self._ref_data)
        if self.deferrable:
            # resume_execution() applies soft_fail and never_fail, as it does after the deferral.
            return self.resume_execution(self._defer_unless_ended.__name__, {}, context)
        if self.reschedule:
            self._task_store = context.get("task_state_store")
            if self.poke_interval != self._given_interval:
                self.log.info(
                    "poke_interval is %g s instead of %g s: Airflow fails a task that is rescheduled sooner than twice "
                    "[workers] min_heartbeat_interval",
                    self.poke_interval,
                    self._given_interval,
                )
        try:
            return super().execute(context)
        except (AirflowSensorTimeout, AirflowSkipException):
            self._cancel()
            raise

    def _check_place(self) -> None:
        """Refuse a connection that leads elsewhere than that of the task that submitted the job."""
        try:
            job_location.check_place(self._ref_data, self.hook.client)
        except JobElsewhereError as error:
            raise TrainJobUnreachableError(str(error)) from error
        except ValueError as error:
            raise TrainJobRejectedError(str(error)) from error
        except TrainerError:
            return  # It cannot be reached now: the wait retries.

    def poke(self, context: Context) -> PokeReturnValue:
        """Read the status of the job once."""
        try:
            observation = self.hook.client.observe(self.ref)
        except TrainerError as error:
            self._state = self._record_error(error)
            self.log.warning("TrainJob %s: its status cannot be read, retrying: %s", self.ref.name, error)
        except ValueError as error:
            raise TrainJobRejectedError(str(error)) from error
        else:
            self._pending_failures.report(observation)
            if self._suspension.has_changed(observation.status):
                self.log.info("%s", self._suspension.describe(xcom.pull(context["ti"], ACTION_KEY)))
            self._state = self._state.on_observation(observation, self._now())
            self._write_log(observation.status)
        if self._state.outcome is None:
            self._save_state()
            return PokeReturnValue(is_done=False)
        outcome = finish_wait(self.hook.client.backend, self._state)
        log_is_written = not self.reschedule and self._log_forwarder.position.complete
        if self._start_again(context["ti"], outcome, log_is_written):
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=self._finish(context["ti"], outcome, log_is_written))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Finish the task with the event of the trigger; if it carries an outcome, the backend is not read again."""
        ended = JobEvent.parse(event)
        ref = ended.job
        self._ref_data = xcom.pull(context["ti"], "ref") or self._ref_data  # Of an attempt that it has started.
        if ref != self.ref:
            # Airflow can deliver the event of a trigger that belongs to an earlier, cleared try.
            self.log.info("TrainJob %s belongs to an earlier try; waiting for %s", ref.name, self.ref.name)
            return self._defer_unless_ended(context)
        if ended.outcome is not None:
            log_is_written = task_log.forward_remaining_log(lambda: self.hook.client, ref, self.log, None, ended.log)
            outcome = Outcome.from_dict(ended.outcome)
            if self._start_again(context["ti"], outcome, log_is_written):
                return self._defer_unless_ended(context)
            return self._finish(context["ti"], outcome, log_is_written)
        if ended.timeout is not None:
            raise AirflowSensorTimeout(f"the timeout of {self.timeout:g} s is over: {ended.timeout}")
        if ended.elsewhere:
            self.log.warning("The triggerer cannot see TrainJob %s; waiting in this worker", ref.name)
            return super().execute(context)
        raise TrainJobUnreachableError(f"TrainJob {ref.name!r}: its status can no longer be read: {ended.error}")

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume after the deferral. If Airflow itself ended the deferral, apply `on_kill`."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (AirflowSensorTimeout, AirflowSkipException):
            self._cancel()
            raise

    def on_kill(self) -> None:
        """Cancel the job if `on_kill` is ``cancel``. Must not call Airflow's API: the task may hold its locks."""
        if self.on_kill_policy == "cancel":
            cancellation.cancel_job_from_signal_handler(self.hook, self._ref_data, self.log)

    @cached_property
    def _state(self) -> wait_state.WaitState:
        state = wait_state.start(self.ref, self._now(), fail_fast=self.fail_fast)
        return wait_state.restore(state, self._saved_state)

    @cached_property
    def _saved_state(self) -> dict[str, Any]:
        """What the last poke of mode="reschedule" stored for this job."""
        saved = self._task_store.get(_STATE_KEY) if self._task_store is not None else None
        return dict(saved["of"]) if saved and saved["uid"] == self.ref.uid else {}

    def _now(self) -> float:
        """Return a time in seconds; with mode="reschedule" by the wall clock, because each poke is another process."""
        return time.time() if self.reschedule else time.monotonic()

    def _save_state(self) -> None:
        """Store since when a failure is pending, and the errors in a row, for the next poke of mode="reschedule"."""
        state = self._state.to_dict()
        if self._task_store is not None and state != self._saved_state:
            self._saved_state = state
            self._task_store.set(_STATE_KEY, {"uid": self.ref.uid, "of": state})

    @cached_property
    def _log_forwarder(self) -> LogForwarder:
        return LogForwarder(self.hook.client, self.ref, lambda line: self.log.info("%s", line))

    @cached_property
    def _suspension(self) -> SuspensionWatch:
        return SuspensionWatch(self.ref.name)

    @cached_property
    def _pending_failures(self) -> PendingFailureLog:
        return PendingFailureLog(self.ref.name, lambda line: self.log.warning("%s", line))

    def _record_error(self, error: TrainerError) -> wait_state.WaitState:
        try:
            return self._state.on_error(error, self._now())
        except TrainerError as last:
            raise TrainJobUnreachableError(
                f"TrainJob {self.ref.name!r}: its status can no longer be read: {last}"
            ) from last

    def _write_log(self, status: str) -> None:
        """Write new lines of the job's log; with mode="reschedule", where each poke would repeat them, the status."""
        if self.reschedule:
            self.log.info("TrainJob %s is %s", self.ref.name, status)
        else:
            self._log_forwarder.poll(ended=self._state.outcome is not None)

    def _defer_unless_ended(self, context: Context) -> Any:
        poked = self.poke(context)
        if poked:
            return poked.xcom_value
        limits = [timedelta(seconds=self.timeout), self.execution_timeout]
        with suppress(ValueError, AirflowException):  # Reported with the end of the job.
            tracking.configure(self.hook, self.mlflow_conn_id)
        return deferral.defer_task(
            self, context["ti"], self._ref_data, min(limit for limit in limits if limit is not None)
        )

    def _start_again(self, ti: Any, outcome: Outcome, log_is_written: bool) -> bool:
        """Wait from now on for the next attempt that the job's RestartPolicy demands; return False without one."""
        if not self.restarts or outcome.restarts is None or outcome.restarts.following is None:
            return False
        xcom.log_outcome(self.log, outcome, log_is_written)
        tracking.track_outcome(self.hook, self.mlflow_conn_id, outcome, False, self.log)
        try:
            following = self.hook.client.start_again(outcome)
        except TrainerError as error:
            raise TrainJobUnreachableError(f"TrainJob {outcome.job.name!r} cannot be started again: {error}") from error
        if following is None:
            return False
        self._ref_data = {**self._ref_data, **following.to_dict()}
        for name in _OF_JOB:
            vars(self).pop(name, None)
        xcom.push_ref(ti, self._ref_data)
        return True

    def _finish(self, ti: Any, outcome: Outcome, log_is_written: bool) -> Any:
        outcome = mark_reused(outcome) if self.ref.reused else outcome
        self.outcome = outcome
        self.run_url = tracking.track_outcome(self.hook, self.mlflow_conn_id, outcome, False, self.log)
        xcom.report_outcome(ti, self.log, outcome, log_is_written)
        if outcome.succeeded:
            assets.update_asset_events(self.outlets, outcome, self._ref_data.get(job_location.PARTITION_KEY))
            return xcom.keep_reserved(self, ti, outcome.result)
        raise build_failure(outcome, retry_can_help=False)

    def _cancel(self) -> None:
        if self.on_kill_policy == "cancel":
            cancellation.cancel_job(self.hook, self._ref_data, self.log)
