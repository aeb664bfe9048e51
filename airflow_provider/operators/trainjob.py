"""TrainJobOperator and InitializeOperator: run a TrainJob as an Airflow task.

The job's name is derived from the task instance. A worker that is killed at any point therefore leaves at most one job,
and the next try finds it. After submission only the job's ref is used, never the operator's definition.

1. DAG file: the arguments become `spec`, plain data, checked as far as the DAG names the backend.
2. `execute`, in a worker: an earlier try's place is checked, the rendered request is submitted or its job attached to,
   and the ref is stored before any wait.
3. Wait: `_wait` in the worker, or a trigger, whose event `execute_complete` gets in another worker.
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
    deferral,
    job_location,
    links,
    spec,
    task_log,
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
from airflow_provider.lineage import OpenLineageMixin
from airflow_provider.person_actions import ACTION_KEY, SuspensionWatch
from airflow_provider.task_store import SavedRef
from airflow_provider.trigger_event import JobEvent
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
        backend: Name of the backend: ``local``, ``debug``, ``container``, ``kubernetes``, ``runai`` or
            ``training-operator``. Default: None, the backend of the connection: options are then checked against it
            when the task runs, before anything is created. Not templated.
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
        self._ref: TrainJobRef | None = None
        #: The ref with the place that the submitting process resolved.
        self._ref_data: dict[str, Any] = {}
        self._ti: Any = None
        self._interrupted = False
        #: Whether `on_kill` interrupts the wait itself, and not a call of Airflow.
        self._is_waiting = False
        self._kill_result: cancellation.Result = "unknown"
        self._run_partition: str | None = None
        #: Airflow 3.3 and later: storage that all tries of the task share.
        self._task_store: Any = None

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
        ti = context["ti"]
        self._read_task_store(context)
        links.select_links(self, ti)
        self._check_earlier_try()
        return self._follow_job(ti, self._start_job(ti))

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

    def _start_job(self, ti: Any) -> TrainJobRef:
        """Submit the job of this task instance, or attach to it, and tell Airflow of it."""
        ref, request = self._submit(ti)
        self._saved_place.save(self._ref_data)
        self._saved_ref.save(ref)
        xcom.push_ref(ti, self._ref_data)
        xcom.push_parameters(ti, request)
        self.run_url = tracking.push_run(ti, self.hook, ref)
        links.push_links(ti, self, self.hook.trainjob_conn_id)
        return ref

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Finish the task with the event of the trigger; if it carries an outcome, the backend is not read again.

        Raises:
            TrainJobFailedError: The job failed. The class depends on the category of its diagnosis.
            TrainJobTimeoutError: The job did not end within `execution_timeout`.
            TrainJobUnreachableError: The trigger could no longer read the status of the job.
        """
        ti = context["ti"]
        self._read_task_store(context)
        # The process is not the one that submitted the job, so secrets must be masked again before the log is written.
        connection_secrets.mask_connection_fields(connection_secrets.list_connection_fields(self.secrets, self.spec))
        ended = JobEvent.parse(event)
        ref = ended.job
        self._ref = self._pull_ref(ti) or ref
        self._ref_data = self._ref_data or dict(ended.ref)
        links.select_links(self, ti)
        if ref != self._ref:
            # Airflow can deliver the event of a trigger that belongs to an earlier, cleared try.
            self.log.info("TrainJob %s belongs to an earlier try; waiting for %s", ref.name, self._ref.name)
            return self._follow_job(ti, self._ref)
        if ended.outcome is not None:
            log_is_written = task_log.forward_remaining_log(
                lambda: self.hook.client, ref, self.log, self._task_store, ended.log
            )
            return self._complete(ti, Outcome.from_dict(ended.outcome), log_is_written)
        if ended.timeout is not None:
            if ended.cancelled:
                self._saved_ref.forget(ref)
                ti.xcom_push(key="status", value=FAILED)
            raise TrainJobTimeoutError(f"{self._timeout_reason}: {ended.timeout}")
        if ended.elsewhere:
            self.log.warning("The triggerer cannot see TrainJob %s; waiting in this worker", ref.name)
            self._saved_ref.wait_in_worker(ref)
            return self._wait_without_deferring(ti, ref)
        self._cancel_unless_retried(ti)
        raise build_unreachable(ref, ended.error)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume after the deferral. If Airflow itself ended the deferral, cancel the job."""
        self._read_task_store(context)
        links.select_links(self, context["ti"])
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as error:
            result = self._cancel(context["ti"])
            raise TrainJobTimeoutError(
                f"{self._timeout_reason}, and no trigger ended the deferral: its TrainJob {result}; check that a "
                "triggerer is running"
            ) from error
        except TaskDeferralError:
            self._cancel_unless_retried(context["ti"])
            raise

    def on_kill(self) -> None:
        """Cancel the job, unless `on_kill` is ``keep`` or only the worker is stopped and the task will be tried again.

        Must not call Airflow's API in this thread: the task may hold its locks.
        """
        self._interrupted = True
        if self._ref is None:
            return
        if self.on_kill_policy == "cancel":
            # Airflow calls this method for `execution_timeout`, too.
            has_timed_out = isinstance(sys.exc_info()[1], AirflowTaskTimeout)
            if has_timed_out:
                self.log.warning("%s: TrainJob %s is cancelled", self._timeout_reason, self._ref.name)
            self._kill_result = cancellation.cancel_job_from_signal_handler(
                self.hook,
                self._ref_data,
                self.log,
                lambda: not has_timed_out and cancellation.is_wanted_after_signal(self._ti, self.log),
            )
            if has_timed_out and self._kill_result == "cancelled":
                with suppress(Exception):  # The task fails with the timeout.
                    self._ti.xcom_push(key="status", value=FAILED)
        if self._is_waiting:
            self._raise_interrupted(self._ref)

    @property
    def _timeout_reason(self) -> str:
        return f"task {self.task_id!r} exceeded its execution_timeout of {self.execution_timeout}"

    def _submit(self, ti: Any) -> tuple[TrainJobRef, TrainJobRequest]:
        try:
            if self.deferrable:
                self.hook.to_trigger_kwargs()  # Refuses a secret that must not be stored with a trigger.
            is_tracked = tracking.configure(self.hook, self.mlflow_conn_id, self._has_tracking_option)
            cancellation.cancel_pending(self.hook.client, self.log)
            request = self._build_request(ti, is_tracked)
            ref = self._submit_request(request)
            self._ref_data = self._describe_ref(ref, request)
            self._ref = ref  # From now on, `on_kill` cancels the job.
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
            self._saved_place.save(self._ref_data)
            self._saved_ref.save(ref)
            self.on_kill()
            self._raise_interrupted(ref)
        return ref, request

    def _submit_request(self, request: TrainJobRequest) -> TrainJobRef:
        client = self.hook.client

        def announce() -> None:
            self._saved_place.announce(job_location.describe_place(client))
            self._saved_ref.announce(client.backend.predict_ref(request))

        try:
            return client.submit(request, before_create=announce)
        except (TrainerError, ValueError) as error:
            may_exist = isinstance(error, BackendUnavailableError) and error.transient
            if not may_exist:
                self._saved_ref.withdraw()
                self._saved_place.withdraw()
            raise

    def _describe_ref(self, ref: TrainJobRef, request: TrainJobRequest) -> dict[str, Any]:
        return job_location.build_ref_data(self.hook.client, ref, request.context.partition)

    @property
    def _has_tracking_option(self) -> bool:
        return bool(self.spec.get("tracking"))

    def _build_request(self, ti: Any, is_tracked: bool) -> TrainJobRequest:
        joined = spec.join_code(self.spec, self._code_content, self._get_func_args())
        data = request_builder.select_backend(joined, self.hook.client.backend)
        if is_tracked:
            server = self.hook.client.runs.server
            data = tracking.add_task_tags(data, ti, server.experiment if server else None)
        literals = connection_secrets.resolve_secrets(self.secrets, data)
        partition = assets.choose_partition(data.get("partition"), self._run_partition)
        trace = (getattr(ti, "context_carrier", None) or {}).get("traceparent")
        parts = {**data, "literal_secrets": literals, "partition": partition, "traceparent": trace}
        request = TrainJobRequest.parse({**parts, "owner": task_owner.build_owner(ti, self._generation.value)})
        if ti.max_tries > (self.retries or 0):  # A person has cleared the task.
            request = request.without_lookup()
        if not self._continues_after_clear() and not self._still_runs_unchanged(request):
            return request
        self._generation.continue_cleared()
        owner = Owner(**task_owner.build_owner(ti, self._generation.value))
        return request.with_fields(owner=owner)

    def _continues_after_clear(self) -> bool:
        """Return whether Airflow kept the state of a task that was cleared, with a job that is not Complete."""
        ref, client = self._generation.cleared_job, self.hook.client
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
        ref, client = self._generation.abandoned_job, self.hook.client
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

    def _follow_job(self, ti: Any, ref: TrainJobRef) -> Any:
        """Defer, or wait for a job and those that its RestartPolicy starts after it; return what the task returns."""
        while True:
            status, outcome = self._observe_once(ref)
            ti.xcom_push(key="status", value=status)
            is_reused = outcome is not None and outcome.reused
            if not self.wait_for_completion and not (is_reused and self.on_reuse == "skip"):
                return self._ref_data
            if outcome is None:
                self._defer(ti, ref)
                outcome, log_is_written = self._wait(ti, ref)
            else:
                log_is_written = is_reused or self._write_log(ref)  # The log of a reused job is that of another task.
            following = self._record_end(ti, outcome, log_is_written)
            if following is None:
                return self._finish(ti, outcome, log_is_written)
            ref = following

    def _defer(self, ti: Any, ref: TrainJobRef) -> None:
        """Defer the task, unless it waits in the worker."""
        if self.deferrable and not self._saved_ref.waits_in_worker(ref):
            masked = connection_secrets.list_connection_fields(self.secrets, self.spec)
            self._generation.save(ref, waits=False)
            deferral.defer_task(
                self,
                ti,
                self._ref_data,
                self.execution_timeout,
                store=self._task_store,
                masked=masked,
                on_clear=self.on_clear,
            )

    def _write_log(self, ref: TrainJobRef) -> bool:
        """Write the log of an ended job, and return whether all of it is written."""
        forwarder = task_log.create_log_forwarder(self.hook.client, ref, self.log, self._task_store)
        forwarder.poll(ended=True)
        return forwarder.position.complete

    def _wait_without_deferring(self, ti: Any, ref: TrainJobRef) -> Any:
        try:
            job_location.check_place(self._ref_data, self.hook.client)
            outcome = self._observe_once(ref)[1]
        except JobElsewhereError as error:
            raise self._build_elsewhere_error(error) from error
        return self._complete(ti, *(self._wait(ti, ref) if outcome is None else (outcome, False)))

    def _complete(self, ti: Any, outcome: Outcome, log_is_written: bool) -> Any:
        """Finish the task with the end of a job, or continue with the one that follows it."""
        following = self._record_end(ti, outcome, log_is_written)
        return self._finish(ti, outcome, log_is_written) if following is None else self._follow_job(ti, following)

    def _build_elsewhere_error(self, error: JobElsewhereError) -> TrainJobUnreachableError:
        # A retry knows of the job only by the storage that all tries share.
        cls = TrainJobElsewhereError if self._task_store is None else TrainJobUnreachableError
        return cls(f"{error}; for tasks on several hosts, set queue= to one host, or use a cluster")

    def _read_task_store(self, context: Context) -> None:
        self._ti = context["ti"]
        self._task_store = context.get("task_state_store")
        self._saved_ref = SavedRef(self._task_store, context["ti"])
        self._saved_place = job_location.SavedPlace(self._task_store)
        self._generation = task_owner.TaskGeneration(self._task_store, self._ti)
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
            ref = self._saved_ref.ref
            place = self._saved_place.place or (ref and ref.to_dict())
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

    def _observe_once(self, ref: TrainJobRef) -> tuple[str, Outcome | None]:
        statuses = [CREATED]
        try:
            outcome = self.hook.client.wait(
                ref,
                timeout=0,
                on_observation=lambda each: statuses.append(each.status),
                fail_fast=self.fail_fast,
                restarts=False,
            )
        except WaitTimeoutError:
            return statuses[-1], None
        return statuses[-1], outcome

    def _wait(self, ti: Any, ref: TrainJobRef) -> tuple[Outcome, bool]:
        """Wait in this worker for the end of a job; return its outcome, and whether all of its log is written."""
        client = self.hook.client
        forwarder = task_log.create_log_forwarder(client, ref, self.log, self._task_store)
        self._generation.save(ref, waits=True)
        from trainer_core.lifecycle.wait_state import PendingFailureLog  # Parsing a DAG file does not need it.

        pending = PendingFailureLog(ref.name, lambda line: self.log.warning("%s", line))

        suspension = SuspensionWatch(ref.name)

        def handle_observation(observation: Observation) -> None:
            self._is_waiting = False
            pending.report(observation)
            if suspension.has_changed(observation.status):
                self.log.info("%s", suspension.describe(xcom.pull(ti, ACTION_KEY)))
            forwarder.poll(ended=observation.outcome is not None)
            if self._interrupted:
                self._raise_interrupted(ref)
            self._is_waiting = True

        try:
            self._is_waiting = True
            outcome = client.wait(ref, on_observation=handle_observation, fail_fast=self.fail_fast, restarts=False)
        except TrainerError as error:
            self._is_waiting = False
            self._cancel_unless_retried(ti)
            raise build_unreachable(ref, error) from error
        finally:
            self._is_waiting = False
        return outcome, forwarder.position.complete

    def _record_end(self, ti: Any, outcome: Outcome, log_is_written: bool) -> TrainJobRef | None:
        """Record the end of a job; return the one that its RestartPolicy starts after it, None without any."""
        self.outcome = outcome
        self._generation.save(outcome.job, waits=False)
        asked = self._has_tracking_option
        self.run_url = tracking.track_outcome(self.hook, self.mlflow_conn_id, outcome, asked, self.log)
        return None if self._interrupted else self._start_again(ti, outcome, log_is_written)

    def _finish(self, ti: Any, outcome: Outcome, log_is_written: bool) -> Any:
        xcom.report_outcome(ti, self.log, outcome, log_is_written)
        if outcome.reused and self.on_reuse == "skip":
            raise AirflowSkipException(f"nothing has changed since TrainJob {outcome.reused_from} (Reuse)")
        if outcome.succeeded:
            assets.update_asset_events(self.outlets, outcome, self.spec.get("partition"))
            return xcom.keep_reserved(self, ti, outcome.result)
        self._saved_ref.forget(outcome.job)
        if self._interrupted:
            # `on_kill` cancelled the job, so its diagnosis must not decide whether Airflow retries the task.
            self._raise_interrupted(outcome.job)
        raise build_failure(outcome)

    def _start_again(self, ti: Any, outcome: Outcome, log_is_written: bool) -> TrainJobRef | None:
        """Start the next attempt that the job's RestartPolicy demands, in the same try; None if there is none."""
        if outcome.restarts is None or outcome.restarts.following is None:
            return None
        xcom.log_outcome(self.log, outcome, log_is_written)
        try:
            self._is_waiting = True
            attempts = self.hook.client.attempts(outcome.job, submit=lambda _: self._start_next(ti))
            following = attempts.start_next(outcome)
        except TrainerError as error:
            raise build_unreachable(outcome.job, error) from error
        finally:
            self._is_waiting = False
        if following is None:
            return None
        self.outcome = None
        return following

    def _start_next(self, ti: Any) -> TrainJobRef:
        self._is_waiting = False
        return self._start_job(ti)

    def _raise_interrupted(self, ref: TrainJobRef) -> NoReturn:
        if self._kill_result == "cancelled":
            with suppress(Exception):  # Airflow answers 404: a person has ended or cleared this task instance.
                self._saved_ref.forget(ref)
                self._generation.save(ref, waits=False)
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

    def _cancel_unless_retried(self, ti: Any) -> None:
        """Cancel the job on the last try; an earlier try leaves it for the next one to attach to."""
        if ti.try_number > ti.max_tries:
            self._cancel(ti)

    def _cancel(self, ti: Any) -> str:
        """Cancel the job according to `on_kill`, and return the result, for a message."""
        ref = self._ref or self._pull_ref(ti)
        if ref is None:
            return "was not submitted"
        if self.on_kill_policy != "cancel":
            return "keeps running (on_kill='keep')"
        if not cancellation.cancel_job(self.hook, self._ref_data, self.log):
            return "may still run: its cancellation failed, see the log above"
        self._saved_ref.forget(ref)
        ti.xcom_push(key="status", value=FAILED)
        return "was cancelled"

    def _pull_ref(self, ti: Any) -> TrainJobRef | None:
        """Return the ref that this task instance pushed before it was deferred; None if there is none."""
        self._ref_data = xcom.pull(ti, "ref") or {}
        return TrainJobRef.from_dict(self._ref_data) if self._ref_data else None


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
