"""TrainJobOperator and InitializeOperator: run a TrainJob as an Airflow task.

The job's name is derived from the task instance. A worker that is killed at any point therefore leaves at most one job,
and the next try finds it. After submission only the job's ref is used, never the operator's definition.

1. DAG file: the arguments become `spec`, plain data, checked as far as the DAG names the backend.
2. `execute`, in a worker: an earlier try's place is checked, the rendered request is submitted or its job attached to,
   and the ref is stored before any wait.
3. `_follow`: for each attempt, a wait in the worker or in a trigger, whose event `execute_complete` gets in another
   worker; its end is recorded.
4. `_finish`: XComs, the run, the events of assets; the result is returned, or the failure raised.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from airflow.configuration import conf

from airflow_provider import (
    assets,
    cancellation,
    connection_secrets,
    connections,
    job_location,
    links,
    spec,
    task_owner,
    tracking,
    xcom,
)
from airflow_provider.compat import AirflowSkipException, AirflowTaskTimeout, TaskDeferralError, TaskDeferralTimeout
from airflow_provider.exceptions import (
    TrainJobElsewhereError,
    TrainJobInterruptedError,
    TrainJobRejectedError,
    TrainJobTimeoutError,
    TrainJobUnreachableError,
    build_failure,
)
from airflow_provider.hooks.mlflow import MlflowHook
from airflow_provider.hooks.trainjob import TrainJobHook
from airflow_provider.job_wait import JobEnd, JobWait
from airflow_provider.lineage import OpenLineageMixin
from airflow_provider.task_memory import TaskMemory
from trainer_core.base import validation
from trainer_core.base.errors import (
    BackendUnavailableError,
    ConflictError,
    JobElsewhereError,
    JobNotFoundError,
    RuntimeNotFoundError,
    TrainerError,
    WaitTimeoutError,
)
from trainer_core.base.text import format_size
from trainer_core.definition import request_builder
from trainer_core.definition.initializers import Initializer
from trainer_core.definition.request_builder import Option, Trainer
from trainer_core.model.config import BackendConfig, ClusterConfig
from trainer_core.model.jobs import ATTACHED_LABEL, CREATED, FAILED, Observation, Outcome, TrainJobRef
from trainer_core.model.request import Owner, TrainJobRequest
from trainer_core.model.runtimes import Runtime

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context, XComArg

    from airflow_provider.trigger_event import JobEvent
    from trainer_core.client.attempts import Attempt

__all__ = ["InitializeOperator", "TrainJobOperator"]


class TrainJobOperator(OpenLineageMixin, assets.ChecksMapping):
    """Run a TrainJob: submit it, wait for it, and return its result.

    A retry continues with the job of the previous try: it waits for a running job, returns the result of a complete
    one, and starts a new attempt after a failed one. Clearing the task cancels a running job and starts a new one.

    XComs: ``return_value`` (the result of the training function; the job's ref if `wait_for_completion` is False),
    ``ref``, ``status``, ``metrics``, ``artifacts``, ``diagnosis`` if the job failed, and ``mlflow_run_id`` if it is
    tracked.

    Upstream fields are those of Kubeflow's
    [TrainJobSpec](https://pkg.go.dev/github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1#TrainJobSpec).

    Example:
        ```python
        def fit(epochs: int, day: str):
            return {"accuracy": 0.9}

        train = TrainJobOperator(
            task_id="train",
            runtime="torch-distributed",
            trainer=CustomTrainer(fit, func_args={"epochs": 3, "day": "{{ ds }}"}, num_nodes=2),
            trainjob_conn_id="trainjob_default",
            deferrable=True,
        )
        ```

    Args:
        runtime: Runtime of the job: its name or a `Runtime`. Becomes ``spec.runtimeRef``. Default: None, the backend's
            default runtime (``torch-distributed``). Templated.
        trainer: What to run: a `CustomTrainer`, `CustomTrainerContainer` or `BuiltinTrainer`, a dict of its fields, or
            that dict as YAML. Becomes ``spec.trainer``. Default: None, what the runtime runs. Templated: `func_args`,
            `env` and numbers; each argument is converted to the type that the function declares. The source of the
            function is not templated.
        func_args: Keyword arguments of the training function; they override those of the trainer. Values can be
            templates and results of upstream tasks; the dict can be such a result, ``tune.output["parameters"]``. Use
            it with ``.partial(…).expand(func_args=…)``. Becomes part of ``spec.trainer.command``. Default: None.
            Templated.
        initializer: Dataset and model to download before training: an `Initializer`, or a dict such as
            ``{"dataset": "hf://owner/name"}``. Becomes ``spec.initializer.dataset`` and ``spec.initializer.model``.
            Default: None. Templated.
        options: Changes to the job before it is submitted, such as ``[Labels({"team": "vision"})]``: option objects,
            plain data (``[{"QueueName": "nightly"}]``), or that list as YAML. The backend must accept each option;
            `OnBackend` has those that are for one backend only. Each option documents the upstream field that it sets.
            Default: None. Templated.
        partition: Key of the partition of data that the job trains for; see the option `Partition`. The asset events of
            the `outlets` have it. Default: None, the partition key of the DAG run, if it has one. Templated.
        secrets: Ids of Airflow connections that hold credentials. Keys ``dataset`` and ``model`` name the connections
            that the initializers use: for ``hf://`` the password is the token, for ``s3://`` login and password are
            access key and secret key. Key ``env`` maps environment variables of the trainer to connections:
            ``{"env": {"HF_TOKEN": "hf_default"}}`` sets the variable to the connection's password,
            ``"hf_default:login"`` to its login. The values are masked in logs and stored in no XCom, template field
            or manifest. Default: None. Not templated.
        backend: Name of the backend: ``local``, ``debug``, ``container``, ``kubernetes``, ``runai``,
            ``training-operator`` or one that is installed. Default: None, the backend of the connection: options are
            then checked against it when the task runs, before anything is created. Not templated.
        backend_config: A configuration of `trainer_core`, used instead of the connection, or a dict of settings
            that override those of the connection. Default: None. Not templated.
        trainjob_conn_id: Id of an Airflow connection of type ``trainjob``. Default: ``trainjob_default``; if that
            connection does not exist, `backend` or the Airflow setting ``[trainjob] backend`` must name a backend;
            otherwise the task fails without retries. None: use no connection. Not templated.
        mlflow_conn_id: Id of an Airflow connection of type ``mlflow``: the job is tracked as a run of that server, in
            the experiment of the connection, or of the DAG's id. Default: ``mlflow_default``; if that connection does
            not exist, ``MLFLOW_TRACKING_URI`` of the worker decides. The option `Tracking` has further settings. Not
            templated.
        wait_for_completion: True (default): the task ends with the job. False: the task returns the job's ref after
            submission; use `TrainJobSensor` to wait. Not templated.
        deferrable: True: wait in the triggerer and free the worker slot. Default: the Airflow setting
            ``[operators] default_deferrable`` (False). Not templated.
        on_kill: What happens to the job when the task is killed, marked as success or failed, or exceeds
            `execution_timeout`: ``cancel`` (default) or ``keep``. Not templated.
        fail_fast: True (default): fail and cancel a job that cannot start or recover, such as one with a missing image,
            a crash loop, or half an hour without a node that fits. False: wait until the backend itself
            reports the job as failed. Not templated.
        on_clear: What a person who clears the task gets: ``new`` (default): a new job, which starts from the beginning;
            ``ask``: the dialog of Airflow decides. If it keeps the state of the task, the cleared task continues with
            its job, or from the last checkpoint, unless the job is Complete; otherwise it starts a new job. Airflow up
            to 3.3.2 does not ask and always keeps the state; before 3.3 there is none. Not templated.
        on_reuse: What the task does when the option `Reuse` finds an earlier TrainJob that trained the same: ``return``
            (default): it succeeds with that result, and its asset events have ``extra["reused"]``; ``skip``: it pushes
            the XComs and is skipped, without asset events. A task that a person has cleared trains. Not templated.
        kwargs: Arguments of every operator. `execution_timeout` also limits the time that the task is deferred. The
            asset events of the `outlets` carry metrics, ref and artifacts of the job; see `ModelAsset`.

    Raises:
        ValueError: An argument is invalid; raised when the DAG is parsed.
    """

    template_fields: Sequence[str] = ("spec", "func_args")
    template_fields_renderers: ClassVar[dict[str, str]] = {"spec": "json", "func_args": "json"}
    ui_color = "#e8f0fe"
    operator_extra_links = links.LINKS
    #: XCom with the ref for which the output of the task stands.
    job_key: ClassVar[str] = "ref"

    def __init__(
        self,
        *,
        runtime: str | Runtime | None = None,
        trainer: Trainer | Mapping[str, Any] | str | None = None,
        func_args: Mapping[str, Any] | XComArg | None = None,
        initializer: Initializer | Mapping[str, Any] | None = None,
        options: Sequence[Option] | str | None = None,
        partition: str | XComArg | None = None,
        secrets: Mapping[str, str | Mapping[str, str]] | None = None,
        backend: str | None = None,
        backend_config: BackendConfig | Mapping[str, Any] | None = None,
        trainjob_conn_id: str | None = TrainJobHook.default_conn_name,
        mlflow_conn_id: str | None = MlflowHook.default_conn_name,
        wait_for_completion: bool = True,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        on_kill: Literal["cancel", "keep"] = "cancel",
        fail_fast: bool = True,
        on_clear: Literal["new", "ask"] = "new",
        on_reuse: Literal["return", "skip"] = "return",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        conn_ids = {"trainjob_conn_id": trainjob_conn_id, "mlflow_conn_id": mlflow_conn_id}
        connections.check_constants(backend, backend_config, **conn_ids)
        data = spec.build_spec(
            backend=backend,
            backend_config=backend_config,
            runtime=runtime,
            trainer=trainer,
            func_args=func_args,
            initializer=initializer,
            options=options,
            partition=partition,
            folder=spec.find_dag_folder(self),
        )
        self.spec, self._code_content = spec.split_code(data)
        self.func_args = func_args
        self._has_late_args = spec.has_late_args(func_args)
        self.secrets = connection_secrets.validate_secrets(secrets, data)
        self.backend = backend
        self.backend_config = backend_config
        self.trainjob_conn_id = trainjob_conn_id
        self.mlflow_conn_id = mlflow_conn_id
        is_sweep = self.get_closest_mapped_task_group() is not None and partition is None
        assets.check_outlets(self.task_id, self.outlets, waits=wait_for_completion, is_sweep=is_sweep)
        self.wait_for_completion = wait_for_completion
        self.deferrable = deferrable
        validation.check_one_of("on_kill", on_kill, ("cancel", "keep"))
        validation.check_one_of("on_clear", on_clear, ("new", "ask"))
        validation.check_one_of("on_reuse", on_reuse, ("return", "skip"))
        self.on_kill_policy = on_kill
        self.fail_fast = fail_fast
        self.on_clear = on_clear
        self.on_reuse = on_reuse
        self._ti: Any = None
        self._memory = TaskMemory()
        self._interrupted = False
        #: Whether `on_kill` interrupts the wait itself, and not a call of Airflow.
        self._is_waiting = False
        self._kill_result: cancellation.Result = "unknown"
        self._run_partition: str | None = None

    @cached_property
    def hook(self) -> TrainJobHook:
        """Hook for the operator's connection and backend."""
        return TrainJobHook(self.trainjob_conn_id, self.backend, self.backend_config)

    @property
    def code_text(self) -> str:
        """Source of the training function, or the name by which it is imported."""
        return self._code_content.text

    def execute(self, context: Context) -> Any:
        """Submit the TrainJob or attach to the existing one; then wait, defer, or return its ref.

        Raises:
            TrainJobRejectedError: The definition is invalid, or conflicts with an existing job.
            TrainJobFailedError: The job failed. The class depends on the category of its diagnosis.
            TrainJobInterruptedError: The task was killed while it waited.
            TrainJobUnreachableError: The status of the job can no longer be read.
        """
        self._begin(context)
        links.select_links(self, self._ti)
        self._check_earlier_try()
        return self._follow(self._start_job())

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Render a text to text, whether the DAG has native rendering or not; the request gives it its type."""
        if isinstance(content, str) and id(content) not in (seen_oids or ()):
            return spec.render_text(content, context, jinja_env or self.get_template_env())
        return super().render_template(content, context, jinja_env, seen_oids)

    def _start_job(self) -> TrainJobRef:
        """Submit the job of this task instance, or attach to it, and tell Airflow of it."""
        ref, request = self._submit()
        xcom.push_parameters(self._ti, request)
        self.run_url = tracking.push_run(self._ti, self.hook, ref)
        links.push_links(self._ti, self, self.hook.trainjob_conn_id)
        return ref

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Finish the task with the event of the trigger; if it carries an outcome, the backend is not read again.

        Raises:
            TrainJobFailedError: The job failed. The class depends on the category of its diagnosis.
            TrainJobTimeoutError: The job did not end within `execution_timeout`.
            TrainJobUnreachableError: The trigger could no longer read the status of the job.
        """
        self._begin(context)
        # The process is not the one that submitted the job, so secrets must be masked again before the log is written.
        connection_secrets.mask_connection_fields(connection_secrets.list_connection_fields(self.secrets, self.spec))
        self._memory.pull_ref()
        links.select_links(self, self._ti)
        self._waiting.receive(event)
        return self._resume(TrainJobRef.from_dict(self._memory.ref_data))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume after the deferral. If Airflow itself ended the deferral, cancel the job."""
        self._begin(context)
        links.select_links(self, self._ti)
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as error:
            result = self._cancel()
            raise TrainJobTimeoutError(
                f"{self._timeout_reason}, and no trigger ended the deferral: its TrainJob {result}; check that a "
                "triggerer is running"
            ) from error
        except TaskDeferralError:
            self._cancel_unless_retried()
            raise

    def on_kill(self) -> None:
        """Cancel the job, unless `on_kill` is ``keep`` or only the worker is stopped and the task will be tried again.

        Must not call Airflow's API in this thread: the task may hold its locks.
        """
        self._interrupted = True
        ref = self._memory.ref
        if ref is None:
            return
        if self.on_kill_policy == "cancel":
            # Airflow calls this method for `execution_timeout`, too.
            has_timed_out = isinstance(sys.exc_info()[1], AirflowTaskTimeout)
            if has_timed_out:
                self.log.warning("%s: TrainJob %s is cancelled", self._timeout_reason, ref.name)
            self._kill_result = cancellation.cancel_job_from_signal_handler(
                self.hook,
                self._memory.ref_data,
                self.log,
                lambda: not has_timed_out and cancellation.is_wanted_after_signal(self._ti, self.log),
            )
            if has_timed_out and self._kill_result == "cancelled":
                with suppress(Exception):  # The task fails with the timeout.
                    self._ti.xcom_push(key="status", value=FAILED)
        if self._is_waiting:
            self._raise_interrupted(ref)

    @property
    def _timeout_reason(self) -> str:
        return f"task {self.task_id!r} exceeded its execution_timeout of {self.execution_timeout}"

    def _submit(self) -> tuple[TrainJobRef, TrainJobRequest]:
        try:
            if self.deferrable:
                self.hook.to_trigger_kwargs()  # Refuses a secret that must not be stored with a trigger.
            is_tracked = tracking.configure(self.hook, self.mlflow_conn_id, self._has_tracking_option)
            cancellation.cancel_pending(self.hook.client, self.log)
            request = self._build_request(is_tracked)
            ref = self._submit_request(request)
            self._memory.ref_data = self._describe_ref(ref, request)  # From now on, `on_kill` cancels the job.
        except JobElsewhereError as error:
            raise self._build_elsewhere_error(error) from error
        except (ValueError, RuntimeNotFoundError, ConflictError) as error:
            # An error of ours is one line that says all; the task's log has it once.
            raise TrainJobRejectedError(str(error)) from (None if isinstance(error, TrainerError) else error)
        except BackendUnavailableError as error:
            if error.transient:
                raise
            raise TrainJobRejectedError(str(error)) from None  # Such as a package that is not installed.
        self.log.info("TrainJob %s on the %s backend (%s)", ref.name, ref.backend, ref.namespace)
        project = self.spec.get("trainer", {}).get("code", {}).get("project")
        if project:
            self.log.info("code: %d files, %s", project["files"], format_size(project["size"]))
        if self._interrupted:
            # The signal arrived before there was a ref to cancel.
            with suppress(Exception):  # Airflow answers 404: a person has ended or cleared this task instance.
                self._memory.record_submit(self._memory.ref_data)
            self.on_kill()
            self._raise_interrupted(ref)
        self._memory.record_submit(self._memory.ref_data)
        return ref, request

    def _submit_request(self, request: TrainJobRequest) -> TrainJobRef:
        client = self.hook.client

        def announce() -> None:
            self._memory.announce(job_location.describe_place(client), client.backend.predict_ref(request))

        try:
            return client.submit(request, before_create=announce)
        except (TrainerError, ValueError) as error:
            may_exist = isinstance(error, BackendUnavailableError) and error.transient
            if not may_exist:
                self._memory.withdraw()
            raise

    def _describe_ref(self, ref: TrainJobRef, request: TrainJobRequest) -> dict[str, Any]:
        return job_location.build_ref_data(self.hook.client, ref, request.context.partition)

    @property
    def _has_tracking_option(self) -> bool:
        return bool(self.spec.get("tracking"))

    def _build_request(self, is_tracked: bool) -> TrainJobRequest:
        ti, memory = self._ti, self._memory
        joined = spec.join_code(self.spec, self._code_content, self._get_func_args())
        data = request_builder.select_backend(joined, self.hook.client.backend)
        if is_tracked:
            server = self.hook.client.runs.server
            data = tracking.add_task_tags(data, ti, server.experiment if server else None)
        literals = connection_secrets.resolve_secrets(self.secrets, data)
        partition = assets.choose_partition(data.get("partition"), self._run_partition)
        trace = (getattr(ti, "context_carrier", None) or {}).get("traceparent")
        parts = {**data, "literal_secrets": literals, "partition": partition, "traceparent": trace}
        request = TrainJobRequest.parse({**parts, "owner": task_owner.build_owner(ti, memory.generation)})
        if ti.max_tries > (self.retries or 0):  # A person has cleared the task.
            request = request.without_lookup()
        if not self._continues_after_clear() and not self._still_runs_unchanged(request):
            return request
        cleared = memory.cleared_job
        memory.continue_cleared()
        owner = Owner(**task_owner.build_owner(ti, memory.generation))
        if cleared is not None and request.policy.restart_policy is not None:
            request = request.with_fields(retry_of=cleared.name)  # A person has a new budget of restarts.
        return request.with_fields(owner=owner)

    def _continues_after_clear(self) -> bool:
        """Return whether Airflow kept the state of a task that was cleared, with a job that is not Complete."""
        ref, client = self._memory.cleared_job, self.hook.client
        if ref is None or self.on_clear == "new":
            return False
        try:
            outcome = client.observe(ref).outcome
        except JobElsewhereError:
            return False  # Its checkpoints are on that host, too.
        except JobNotFoundError:
            outcome = None
        if outcome is not None and outcome.succeeded:
            return False
        self.log.info("The task was cleared and its state was kept: it continues with TrainJob %s", ref.name)
        return True

    def _still_runs_unchanged(self, request: TrainJobRequest) -> bool:
        """Return whether the job of a worker that was killed before a clear runs, from the same definition."""
        ref, client = self._memory.abandoned_job, self.hook.client
        if ref is None:
            return False
        try:
            if client.observe(ref).outcome is not None:
                return False
            is_same = client.get_job_request(ref).fingerprint() == client.backend.resolve_request(request).fingerprint()
        except (JobNotFoundError, JobElsewhereError):
            return False
        what = "is unchanged: this try attaches to it" if is_same else "has another definition: it is cancelled"
        self.log.info("The worker of an earlier try was lost; its TrainJob %s still runs and %s", ref.name, what)
        if is_same and isinstance(client.config, ClusterConfig):
            # Another host may have recorded that this job is to be cancelled.
            client.set_job_owner(ref, "", None, {ATTACHED_LABEL: str(int(time.time()))})
        return is_same

    def _get_func_args(self) -> Mapping[str, Any]:
        """Return the rendered arguments that override those of the trainer."""
        args: Any = self.func_args
        if self._has_late_args:
            # `trainjob lint` reads them before they are rendered.
            return {} if spec.has_late_args(args) else spec.check_func_args(args)
        return args or {}

    def _follow(self, ref: TrainJobRef) -> Any:
        """Wait for a job and those that its restart rules start after it, or defer; return what the task returns."""
        end: JobEnd | None = None
        try:
            for attempt in self.hook.client.attempts(ref, submit=self._start_next):
                end = self._waiting.take_end(attempt.ref) or self._read_end(attempt.ref)
                is_skipped = end is not None and end.outcome.reused and self.on_reuse == "skip"
                if not self.wait_for_completion and not is_skipped:
                    return self._memory.ref_data
                end = end or self._defer_or_wait(attempt)
                attempt.outcome = None if self._interrupted else end.outcome
                self._record_end(end)
        except TrainerError as error:  # Before a restart, or before a wait.
            raise build_unreachable(self._memory.ref or ref, error) from error
        finally:
            self._is_waiting = False
        assert end is not None  # noqa: S101 -- there is at least one attempt
        return self._finish(end)

    def _resume(self, ref: TrainJobRef) -> Any:
        """Continue in this worker after the wait in the triggerer."""
        end = self._waiting.take_end(ref, is_last=True)
        if end is None:
            return self._follow(ref)
        self._record_end(end)  # The backend is not read again.
        return self._finish(end)

    def _defer_or_wait(self, attempt: Attempt) -> JobEnd:
        """Return the end of a job that this worker waits for; defer the task if it waits in the triggerer."""
        if self._waiting.is_deferred(attempt.ref):
            self._memory.record_wait(attempt.ref, waits=False)
            masked = connection_secrets.list_connection_fields(self.secrets, self.spec)
            self._waiting.raise_deferral(masked=masked, on_clear=self.on_clear)
        return self._wait(attempt)

    def _build_elsewhere_error(self, error: JobElsewhereError) -> TrainJobUnreachableError:
        # A retry knows of the job only by the storage that all tries share.
        cls = TrainJobUnreachableError if self._memory.is_shared else TrainJobElsewhereError
        return cls(f"{error}; for tasks on several hosts, set queue= to one host, or use a cluster")

    def _begin(self, context: Context) -> None:
        self._ti = context["ti"]
        self._memory = TaskMemory(self._ti, context.get("task_state_store"))
        self._waiting = JobWait(self, self._ti, self._memory, self.execution_timeout)
        self._run_partition = context.get("partition_key")
        self.partition = self.spec.get("partition") or self._run_partition

    def _check_earlier_try(self) -> None:
        """Refuse to submit if an earlier try has a TrainJob that this process does not lead to.

        On another host than that of a local TrainJob, clearing the task allows a new one.
        """
        try:
            client = self.hook.client
        except ValueError as error:
            raise TrainJobRejectedError(str(error)) from error
        except BackendUnavailableError as error:
            if error.transient:
                raise
            raise TrainJobRejectedError(str(error)) from None
        try:
            ref = self._memory.earlier_ref
            place = self._memory.place or (ref and ref.to_dict())
            if place:
                job_location.check_place(place, client, submits=True)
            if ref is not None:
                client.observe(ref)
        except JobElsewhereError as error:
            raise TrainJobUnreachableError(
                f"{error}; no second TrainJob was started: end the first one and clear the task to start another"
            ) from error
        except TrainerError:
            # It was deleted, or cannot be read: the submit decides what happens.
            return

    def _read_end(self, ref: TrainJobRef) -> JobEnd | None:
        """Push the status of a job; return its end, with its log, if it has ended."""
        client, statuses, outcome = self.hook.client, [CREATED], None
        try:
            if self._memory.waits_in_worker(ref):
                job_location.check_place(self._memory.ref_data, client)
            with suppress(WaitTimeoutError):
                outcome = client.wait(
                    ref,
                    timeout=0,
                    on_observation=lambda each: statuses.append(each.status),
                    fail_fast=self.fail_fast,
                    restarts=False,
                )
        except JobElsewhereError as error:
            raise self._build_elsewhere_error(error) from error
        self._ti.xcom_push(key="status", value=outcome.status if outcome else statuses[-1])
        if outcome is None:
            return None
        if outcome.reused:
            return JobEnd(outcome, log_is_written=True)  # Its log is that of another task.
        forwarder = self._waiting.create_log_forwarder(ref)
        if self.wait_for_completion:
            forwarder.poll(ended=True)
        return JobEnd(outcome, forwarder.position.complete)

    def _wait(self, attempt: Attempt) -> JobEnd:
        """Wait in this worker for the end of a job."""
        ref = attempt.ref
        forwarder, report = self._waiting.create_log_forwarder(ref), self._waiting.create_report(ref)
        self._memory.record_wait(ref, waits=True)

        def handle_observation(observation: Observation) -> None:
            self._is_waiting = False
            report.write(observation)
            forwarder.poll(ended=observation.outcome is not None)
            if self._interrupted:
                self._raise_interrupted(ref)
            self._is_waiting = True

        try:
            self._is_waiting = True
            outcome = attempt.wait(handle_observation, self.fail_fast)
        except TrainerError as error:
            self._is_waiting = False
            self._cancel_unless_retried()
            raise build_unreachable(ref, error) from error
        finally:
            self._is_waiting = False
        return JobEnd(outcome, forwarder.position.complete)

    def _record_end(self, end: JobEnd) -> None:
        """Record the end of a job, and report it if another one follows."""
        self.outcome = end.outcome
        self._memory.record_wait(end.outcome.job, waits=False)
        asked = self._has_tracking_option
        self.run_url = tracking.track_outcome(self.hook, self.mlflow_conn_id, end.outcome, asked, self.log)
        if end.is_followed and not self._interrupted:
            xcom.log_outcome(self.log, end.outcome, end.log_is_written)
            self._is_waiting = True

    def _start_next(self, ended: Outcome) -> TrainJobRef:
        """Submit the next attempt, in the same try."""
        self._is_waiting = False
        ref = self._start_job()
        self.outcome = ended if ref == ended.job else None
        return ref

    def _finish(self, end: JobEnd) -> Any:
        ti, outcome = self._ti, end.outcome
        xcom.report_outcome(ti, self.log, outcome, end.log_is_written)
        if outcome.reused and self.on_reuse == "skip":
            raise AirflowSkipException(f"nothing has changed since TrainJob {outcome.reused_from} (Reuse)")
        if outcome.succeeded:
            assets.update_asset_events(self.outlets, outcome, self.spec.get("partition"))
            return xcom.keep_reserved(self, ti, outcome.result)
        self._memory.forget(outcome.job)
        if self._interrupted:
            # `on_kill` cancelled the job, so its diagnosis must not decide whether Airflow retries the task.
            self._raise_interrupted(outcome.job)
        raise build_failure(outcome)

    def _raise_interrupted(self, ref: TrainJobRef) -> NoReturn:
        if self._kill_result == "cancelled":
            with suppress(Exception):  # Airflow answers 404: a person has ended or cleared this task instance.
                self._memory.forget(ref)
                self._memory.record_wait(ref, waits=False)
            result = "was cancelled"
        elif self._kill_result == "kept":
            result = "keeps running: only the worker was stopped, and the next try attaches to it"
        elif self.outcome is not None:
            result = "has failed"
        elif self.on_kill_policy == "keep":
            result = "keeps running (on_kill='keep')"
        else:
            result = "may still run: its cancellation failed or has not ended, see the log above"
        raise TrainJobInterruptedError(f"task {self.task_id!r} was killed; TrainJob {ref.name!r} {result}")

    def _raise_timeout(self, ended: JobEvent) -> NoReturn:
        if ended.cancelled:
            self._memory.forget(ended.job)
            self._ti.xcom_push(key="status", value=FAILED)
        raise TrainJobTimeoutError(f"{self._timeout_reason}: {ended.timeout}")

    def _raise_unreachable(self, ref: TrainJobRef, reason: Any) -> NoReturn:
        self._cancel_unless_retried()
        raise build_unreachable(ref, reason)

    def _cancel_unless_retried(self) -> None:
        """Cancel the job on the last try; an earlier try leaves it for the next one to attach to."""
        if self._ti.try_number > self._ti.max_tries:
            self._cancel()

    def _cancel(self) -> str:
        """Cancel the job according to `on_kill`, and return the result, for a message."""
        if self._memory.ref is None:
            self._memory.pull_ref()
        ref = self._memory.ref
        if ref is None:
            return "was not submitted"
        if self.on_kill_policy != "cancel":
            return "keeps running (on_kill='keep')"
        if not cancellation.cancel_job(self.hook, self._memory.ref_data, self.log):
            return "may still run: its cancellation failed, see the log above"
        self._memory.forget(ref)
        self._ti.xcom_push(key="status", value=FAILED)
        return "was cancelled"


def build_unreachable(ref: TrainJobRef, reason: Any) -> TrainJobUnreachableError:
    """Return the error for a job whose status can no longer be read."""
    return TrainJobUnreachableError(f"TrainJob {ref.name!r}: its status can no longer be read: {reason}")


class InitializeOperator(TrainJobOperator):
    """Download a dataset or a model once, for any number of TrainJobs to use.

    The result is a dict of URIs, ``{"dataset": uri, "model": uri}``. Each entry is also a separate XCom, so that a
    later task can use ``initialize.output["dataset"]``.

    Args:
        initializer: What to download: an `Initializer`, or a dict such as ``{"dataset": "hf://owner/name"}``. Becomes
            ``spec.initializer.dataset`` and ``spec.initializer.model``. Required. Templated.
        kwargs: Arguments of `TrainJobOperator`, except `runtime`, `trainer` and `func_args`.

    Raises:
        ValueError: `initializer` is empty, or another argument is invalid; raised when the DAG is parsed.
    """

    def __init__(self, *, initializer: Initializer | Mapping[str, Any] | None, **kwargs: Any) -> None:
        if kwargs.get("runtime") is not None or kwargs.get("trainer") is not None:
            raise ValueError(
                "InitializeOperator does not accept runtime or trainer; to download and train in one job, "
                "use TrainJobOperator(initializer=…, trainer=…)"
            )
        super().__init__(
            initializer=initializer, **{"multiple_outputs": kwargs.get("wait_for_completion", True), **kwargs}
        )
        if "initializer" not in self.spec:
            raise ValueError("initializer is empty; set Initializer(dataset=…), Initializer(model=…) or both")
