"""TrainJobSensor: wait for a TrainJob that another task or program submitted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from airflow.configuration import conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider import assets, cancellation, connections, job_location, tracking, xcom
from airflow_provider.compat import REPORT_SECONDS, AirflowException, AirflowSensorTimeout, AirflowSkipException
from airflow_provider.exceptions import TrainJobRejectedError, TrainJobUnreachableError, build_failure
from airflow_provider.hooks.mlflow import MlflowHook
from airflow_provider.hooks.trainjob import TrainJobHook
from airflow_provider.job_wait import JobEnd, JobWait
from airflow_provider.lineage import OpenLineageMixin
from airflow_provider.task_log import LogForwarder
from airflow_provider.task_memory import TaskMemory
from trainer_core.base import validation
from trainer_core.base.errors import JobElsewhereError, TrainerError
from trainer_core.client.waiting import compute_restart_delay, finish_wait
from trainer_core.lifecycle import wait_state
from trainer_core.model.config import BackendConfig
from trainer_core.model.jobs import TrainJobRef, mark_reused

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider.trigger_event import JobEvent

__all__ = ["TrainJobSensor"]

#: Least interval of mode="reschedule".
_MIN_INTERVAL = 2 * REPORT_SECONDS


class _Poll:
    """What a sensor knows of one TrainJob, from poke to poke."""

    def __init__(self, ref: TrainJobRef, now: float, fail_fast: bool, memory: TaskMemory, waiting: JobWait) -> None:
        self.ref = ref
        self.saved = memory.read_wait(ref)
        self.state = wait_state.restore(wait_state.start(ref, now, fail_fast=fail_fast), self.saved)
        self.report = waiting.create_report(ref)
        self.end: JobEnd | None = None
        #: When the next attempt is started.
        self.restart_at: float | None = None
        self._waiting = waiting

    @cached_property
    def log(self) -> LogForwarder:
        return self._waiting.create_log_forwarder(self.ref)


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
        self._memory = TaskMemory()
        self._poll: _Poll | None = None

    @property
    def ref(self) -> TrainJobRef:
        """Ref of the TrainJob, available after rendering.

        Raises:
            TrainJobRejectedError: `job` is not a TrainJob ref.
        """
        return TrainJobRef.from_dict(self._ref_data)

    @property
    def _ref_data(self) -> dict[str, Any]:
        """The ref as JSON data, with the place that its submitter resolved."""
        if self._memory.ref_data:
            return self._memory.ref_data  # Of an attempt that it has started.
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
        self._begin(context)
        self._check_place()
        self._memory.push_ref(self._ref_data)
        if self.deferrable:
            # resume_execution() applies soft_fail and never_fail, as it does after the deferral.
            return self.resume_execution(self._poke_or_raise_deferral.__name__, {}, context)
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
        """Read the status of the job once, and start the next attempt if it is due."""
        if not self._memory.ref_data:
            self._begin(context)
        end = self._read_end()
        if end is None or self._start_next(end):
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=self._finish(end))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Finish the task with the event of the trigger; if it carries an outcome, the backend is not read again."""
        self._begin(context)
        self._memory.pull_ref()
        self._waiting.receive(event)
        end = self._waiting.take_end(self.ref)
        if end is not None and not self._start_next(end, is_due=True):  # The trigger has waited for the delay.
            return self._finish(end)
        return self._poke_or_raise_deferral(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume after the deferral. If Airflow itself ended the deferral, apply `on_kill`."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (AirflowSensorTimeout, AirflowSkipException):
            if not self._memory.ref_data:
                self._begin(context)
                self._memory.pull_ref()
            self._cancel()
            raise

    def on_kill(self) -> None:
        """Cancel the job if `on_kill` is ``cancel``. Must not call Airflow's API: the task may hold its locks."""
        if self.on_kill_policy == "cancel":
            cancellation.cancel_job_from_signal_handler(self.hook, self._ref_data, self.log)

    def _begin(self, context: Context) -> None:
        ti, is_rescheduled = context["ti"], self.reschedule and not self.deferrable
        # With mode="reschedule" all pokes of the sensor share the storage.
        self._memory = TaskMemory(ti, context.get("task_state_store") if is_rescheduled else None)
        limits = [timedelta(seconds=self.timeout), self.execution_timeout]
        self._waiting = JobWait(self, ti, self._memory, min(limit for limit in limits if limit is not None))
        self._memory.ref_data, self._poll = self._ref_data, None

    def _get_poll(self) -> _Poll:
        if self._poll is None or self._poll.ref != self.ref:
            self._poll = _Poll(self.ref, self._now(), self.fail_fast, self._memory, self._waiting)
        return self._poll

    def _now(self) -> float:
        """Return a time in seconds; with mode="reschedule" by the wall clock, because each poke is another process."""
        return time.time() if self.reschedule else time.monotonic()

    def _read_end(self) -> JobEnd | None:
        """Read the status of the job once; return its end if it has ended."""
        poll = self._get_poll()
        if poll.end is not None:
            return poll.end
        try:
            observation = self.hook.client.observe(poll.ref)
        except TrainerError as error:
            try:
                poll.state = poll.state.on_error(error, self._now())
            except TrainerError as last:
                self._raise_unreachable(poll.ref, last)
            self.log.warning("TrainJob %s: its status cannot be read, retrying: %s", poll.ref.name, error)
        except ValueError as error:
            raise TrainJobRejectedError(str(error)) from error
        else:
            poll.report.write(observation)
            poll.state = poll.state.on_observation(observation, self._now())
            if self.reschedule:  # Each poke would repeat the log.
                self.log.info("TrainJob %s is %s", poll.ref.name, observation.status)
            else:
                poll.log.poll(ended=poll.state.outcome is not None)
        if poll.state.outcome is not None:
            outcome = finish_wait(self.hook.client.backend, poll.state)
            poll.end = JobEnd(outcome, not self.reschedule and poll.log.position.complete)
        elif (state := poll.state.to_dict()) != poll.saved:
            # Since when a failure is pending, and the errors in a row.
            poll.saved = state
            self._memory.save_wait(poll.ref, state)
        return poll.end

    def _poke_or_raise_deferral(self, context: Context) -> Any:
        """Return what the sensor returns for a job that has ended; defer it otherwise, or wait in this worker."""
        poked = self.poke(context)
        if poked:
            return poked.xcom_value
        if self._memory.waits_in_worker(self.ref):
            return super().execute(context)
        with suppress(ValueError, AirflowException):  # Reported with the end of the job.
            tracking.configure(self.hook, self.mlflow_conn_id)
        return self._waiting.raise_deferral()

    def _start_next(self, end: JobEnd, *, is_due: bool = False) -> bool:
        """Wait from now on for the next attempt that the job's restart rules demand; return False without one.

        It is started once its delay is over, by a later poke if need be.
        """
        if not (self.restarts and end.is_followed):
            return False
        poll, outcome, clock = self._get_poll(), end.outcome, self.hook.client.backend.clock
        if poll.restart_at is None:
            poll.restart_at = clock.monotonic() + (compute_restart_delay(outcome, clock) or 0.0)
            xcom.log_outcome(self.log, outcome, end.log_is_written)
            tracking.track_outcome(self.hook, self.mlflow_conn_id, outcome, False, self.log)
        if not is_due and clock.monotonic() < poll.restart_at:
            return True
        remaining = max(0.0, (self._waiting.deadline or 0.0) - time.time())
        try:
            attempts = self.hook.client.attempts(outcome.job, timeout=remaining)
            following = attempts.start_next(outcome, is_due=True)
        except TrainerError as error:
            raise TrainJobUnreachableError(f"TrainJob {outcome.job.name!r} cannot be started again: {error}") from error
        if following is None:
            return False
        self._memory.push_ref({**self._ref_data, **following.to_dict()})
        return True

    def _raise_timeout(self, ended: JobEvent) -> NoReturn:
        raise AirflowSensorTimeout(f"the timeout of {self.timeout:g} s is over: {ended.timeout}")

    def _raise_unreachable(self, ref: TrainJobRef, reason: Any) -> NoReturn:
        error = reason if isinstance(reason, Exception) else None
        raise TrainJobUnreachableError(f"TrainJob {ref.name!r}: its status can no longer be read: {reason}") from error

    def _finish(self, end: JobEnd) -> Any:
        ti, outcome = self._waiting.ti, mark_reused(end.outcome) if self.ref.reused else end.outcome
        self.outcome = outcome
        self.run_url = tracking.track_outcome(self.hook, self.mlflow_conn_id, outcome, False, self.log)
        xcom.report_outcome(ti, self.log, outcome, end.log_is_written)
        if outcome.succeeded:
            assets.update_asset_events(self.outlets, outcome, self._ref_data.get(job_location.PARTITION_KEY))
            return xcom.keep_reserved(self, ti, outcome.result)
        raise build_failure(outcome, retry_can_help=False)

    def _cancel(self) -> None:
        if self.on_kill_policy == "cancel":
            cancellation.cancel_job(self.hook, self._ref_data, self.log)
