"""TrainJobOperator and InitializeOperator: a TrainJob as a task.

The job, not the worker, is what goes on: its name follows from the task instance, so that a worker killed at any
instant leaves one job or none, and the next try finds it. After submitting nothing reads the operator's definition
any more; whatever comes later starts from the ref.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from airflow.configuration import conf
from airflow.sdk import BaseOperator

from airflow_provider import assets, cancelling, deferral, definition, handover, identity, links, logs
from airflow_provider import secrets as connected
from airflow_provider.compat import TaskDeferralError, TaskDeferralTimeout
from airflow_provider.exceptions import (
    TrainJobInterruptedError,
    TrainJobRejectedError,
    TrainJobTimeoutError,
    TrainJobUnreachableError,
)
from airflow_provider.hooks.trainjob import TrainJobHook
from airflow_provider.lineage import ReportsLineage
from trainer_core.build import Option, Trainer
from trainer_core.configs import BackendConfig
from trainer_core.errors import ConflictError, RuntimeNotFoundError, TrainerError, WaitTimeoutError
from trainer_core.initializers import Initializer
from trainer_core.observation import CREATED, Observation
from trainer_core.outcome import Outcome
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest
from trainer_core.runtimes import Runtime

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["InitializeOperator", "TrainJobOperator"]


class TrainJobOperator(ReportsLineage, BaseOperator):
    """Run a TrainJob: submit it, wait for it, and return its result.

    A retry takes up the job that the try before it left: one that runs is waited for, one that is complete is handed
    over, one that failed is run again. Clearing the task ends what runs and starts anew.

    XComs: ``return_value`` (the result; the ref where `wait_for_completion` is False), ``ref``, ``status``,
    ``metrics``, ``artifacts``, ``diagnosis`` (of one that failed).

    Args:
        runtime: The blueprint, or its name; None for the backend's default (``torch-distributed``).
        trainer: What to run: a trainer, a dict of its fields, or YAML of that dict. Templates reach `func_args`, `env`
            and numbers, and arrive in the function as what it declares.
        func_args: Arguments of the training function, over the trainer's own; what a sweep expands over. Values may be
            templates and results of earlier tasks.
        initializer: What to fetch first: an object, or a dict such as ``{"dataset": "hf://owner/name"}``.
        options: Such as ``[Labels({"team": "vision"})]``, as objects, plain data (``[{"QueueName": "nightly"}]``) or
            YAML of that; each must be accepted by the backend.
        secrets: Connections with which initializers fetch, by ``dataset`` and ``model``: ``{"model": "hf_default"}``.
            For ``hf://`` the password is the token; for ``s3://`` login and password are the keys. Under ``env`` those
            whose password (with ``:login`` behind the id: whose login) training finds in an environment variable:
            ``{"env": {"HF_TOKEN": "hf_default"}}``.
        backend: Name of the backend; None for the connection's. The DAG is then checked against ``local``.
        backend_config: A configuration of `trainer_core.configs`, or a dict of settings that win over the connection's.
        trainjob_conn_id: The connection. The default one need not exist: jobs then run on the worker's machine.
        wait_for_completion: False to return the ref at once, for `TrainJobSensor` to wait.
        deferrable: Wait in the triggerer, without a worker slot.
        on_kill: What becomes of the job when the task is killed, marked or times out: ``cancel`` or ``keep``.
        fail_fast: End a job that cannot get well (an image that does not exist, a crash loop, no node that could take
            it for five minutes), instead of waiting until its backend gives it up.
        kwargs: As for every operator. `execution_timeout` also holds while deferred. The events of Assets among the
            `outlets` carry metrics, ref and artifacts; see `ModelAsset`.

    Raises:
        ValueError: Something in the definition cannot be right.
    """

    template_fields: Sequence[str] = ("spec", "func_args")
    template_fields_renderers: ClassVar[dict[str, str]] = {"spec": "json", "func_args": "json"}
    ui_color = "#e8f0fe"
    operator_extra_links = links.LINKS

    def __init__(
        self,
        *,
        runtime: str | Runtime | None = None,
        trainer: Trainer | Mapping[str, Any] | str | None = None,
        func_args: Mapping[str, Any] | None = None,
        initializer: Initializer | Mapping[str, Any] | None = None,
        options: Sequence[Option] | str | None = None,
        secrets: Mapping[str, str | Mapping[str, str]] | None = None,
        backend: str | None = None,
        backend_config: BackendConfig | Mapping[str, Any] | None = None,
        trainjob_conn_id: str | None = TrainJobHook.default_conn_name,
        wait_for_completion: bool = True,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        on_kill: Literal["cancel", "keep"] = "cancel",
        fail_fast: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        data = definition.plain(
            backend=backend,
            backend_config=backend_config,
            runtime=runtime,
            trainer=trainer,
            func_args=func_args,
            initializer=initializer,
            options=options,
        )
        self.spec, self.code_text = definition.split(data)
        self.func_args = func_args
        self.secrets = connected.check(secrets, data)
        self.backend = backend
        self.backend_config = backend_config
        self.trainjob_conn_id = trainjob_conn_id
        assets.check_outlets(self.task_id, self.outlets, waits=wait_for_completion)
        self.wait_for_completion = wait_for_completion
        self.deferrable = deferrable
        self.on_kill_policy = cancelling.check_policy(on_kill)
        self.fail_fast = fail_fast
        self._ref: TrainJobRef | None = None
        self._interrupted = False
        #: What Airflow keeps over the tries of the task, from 3.3 on.
        self._store: Any = None

    @cached_property
    def hook(self) -> TrainJobHook:
        """The way to the backend."""
        return TrainJobHook(self.trainjob_conn_id, self.backend, self.backend_config)

    def execute(self, context: Context) -> Any:
        """Submit the TrainJob, or take up the one there is; then return its ref, defer, or wait."""
        ti = context["ti"]
        self._store = context.get("task_state_store")
        ref = self._submit(ti)
        handover.push_ref(ti, ref)
        links.push(ti, self, self.hook)
        return self._follow(ti, ref)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Finish from the trigger's event alone."""
        ti = context["ti"]
        self._store = context.get("task_state_store")
        # This is another process than the one that submitted, and shows the rest of the log.
        connected.mask(connected.fields(self.secrets, self.spec))
        ref = deferral.ref_of(event)
        self._ref = self._known_ref(ti) or ref
        if ref != self._ref:
            # Airflow can deliver the event of a trigger that an earlier, cleared try left behind.
            self.log.info("That was TrainJob %s of an earlier try; waiting for %s", ref.name, self._ref.name)
            return self._follow(ti, self._ref)
        if "outcome" in event:
            deferral.show_rest_of_log(self.hook, event, self.log, self._store)
            return self._finish(ti, Outcome.from_dict(event["outcome"]))
        if "timeout" in event:
            raise TrainJobTimeoutError(event["timeout"])
        self._cancel_unless_retried(ti)
        raise TrainJobUnreachableError(f"TrainJob {ref.name!r} could not be followed: {event.get('error')}")

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume from deferral. Where Airflow gave up by itself, see to the job that nobody waits for any more."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as error:
            self._cancel(context["ti"])
            raise TrainJobTimeoutError("the time of the task is over, and its trigger did not say so") from error
        except TaskDeferralError:
            self._cancel_unless_retried(context["ti"])
            raise

    def on_kill(self) -> None:
        """Cancel the job, unless it is to be kept. Nothing here speaks with Airflow: its locks may be held."""
        self._interrupted = True
        if self.on_kill_policy == "cancel" and self._ref is not None:
            cancelling.cancel_in_signal_handler(self.hook, self._ref, self.log)

    def _submit(self, ti: Any) -> TrainJobRef:
        try:
            if self.deferrable:
                self.hook.portable()
            ref = self._ref = self.hook.client.submit(self._request(ti))
        except (ValueError, RuntimeNotFoundError, ConflictError) as error:
            raise TrainJobRejectedError(str(error)) from error
        self.log.info("TrainJob %s on the %s backend (%s)", ref.name, ref.backend, ref.namespace)
        if self._interrupted:
            # The signal came when there was no ref to cancel yet.
            self.on_kill()
            self._raise_interrupted(ref)
        return ref

    def _request(self, ti: Any) -> TrainJobRequest:
        asked = definition.joined(self.spec, self.code_text, self._arguments())
        literals = connected.literals(self.secrets, asked)
        return TrainJobRequest.parse({**asked, "owner": identity.owner(ti), "literal_secrets": literals})

    def _arguments(self) -> Mapping[str, Any]:
        """What is laid over the trainer's own arguments, rendered."""
        return self.func_args or {}

    def _follow(self, ti: Any, ref: TrainJobRef) -> Any:
        status, outcome = self._first_look(ref)
        ti.xcom_push(key="status", value=status)
        if not self.wait_for_completion:
            return ref.to_dict()
        if outcome is None and self.deferrable:
            self._defer(ti, ref)
        if outcome is None:
            outcome = self._wait(ti, ref)
        else:
            logs.of_task(self.hook.client, ref, self.log, self._store).look(ended=True)
        return self._finish(ti, outcome)

    def _first_look(self, ref: TrainJobRef) -> tuple[str, Outcome | None]:
        seen = [CREATED]
        try:
            outcome = self.hook.client.wait(
                ref, timeout=0, on_observation=lambda each: seen.append(each.status), fail_fast=self.fail_fast
            )
        except WaitTimeoutError:
            return seen[-1], None
        return seen[-1], outcome

    def _defer(self, ti: Any, ref: TrainJobRef) -> None:
        end = deferral.deadline(ti, self.execution_timeout)
        masked = connected.fields(self.secrets, self.spec)
        how = {"deadline": end, "on_kill": self.on_kill_policy, "fail_fast": self.fail_fast, "masked": masked}
        trigger = deferral.trigger(self.hook, ref, **how)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=deferral.backstop(end))

    def _wait(self, ti: Any, ref: TrainJobRef) -> Outcome:
        client = self.hook.client
        tail = logs.of_task(client, ref, self.log, self._store)

        def seen(observation: Observation) -> None:
            if self._interrupted:
                self._raise_interrupted(ref)
            tail.look(ended=observation.outcome is not None)

        try:
            return client.wait(ref, on_observation=seen, fail_fast=self.fail_fast)
        except TrainerError as error:
            self._cancel_unless_retried(ti)
            raise TrainJobUnreachableError(f"TrainJob {ref.name!r} could not be followed: {error}") from error

    def _finish(self, ti: Any, outcome: Outcome) -> Any:
        self.outcome = outcome
        handover.push_outcome(ti, outcome)
        handover.report(self.log, outcome)
        if outcome.succeeded:
            assets.announce(self.outlets, outcome)
            return outcome.result
        if self._interrupted:
            # The job was ended together with its task: whether there is another try is Airflow's to say.
            self._raise_interrupted(outcome.job)
        raise handover.failure(outcome)

    def _raise_interrupted(self, ref: TrainJobRef) -> NoReturn:
        became = "was cancelled" if self.on_kill_policy == "cancel" else "goes on (on_kill='keep')"
        raise TrainJobInterruptedError(f"the task was told to end; TrainJob {ref.name!r} {became}")

    def _cancel_unless_retried(self, ti: Any) -> None:
        """A next try takes up the job as it is; after the last one nobody would."""
        if ti.try_number > ti.max_tries:
            self._cancel(ti)

    def _cancel(self, ti: Any) -> None:
        ref = self._ref or self._known_ref(ti)
        if ref is not None and self.on_kill_policy == "cancel":
            cancelling.cancel(self.hook, ref, self.log)

    def _known_ref(self, ti: Any) -> TrainJobRef | None:
        """The TrainJob that this try wrote down before its deferral."""
        known = ti.xcom_pull(task_ids=ti.task_id, key="ref", map_indexes=ti.map_index)
        return TrainJobRef.from_dict(known) if known else None


class InitializeOperator(TrainJobOperator):
    """Fetch a dataset or a model once, for TrainJobs to use many times.

    Its result names where the data lies, as ``{"dataset": uri, "model": uri}``. Each is an XCom of its own as well, so
    that later tasks can take ``initialize.output["dataset"]``. Everything else as for `TrainJobOperator`.

    Args:
        initializer: What to fetch.
        kwargs: As for `TrainJobOperator`, without runtime and trainer.

    Raises:
        ValueError: There is nothing to fetch, or something in the definition cannot be right.
    """

    def __init__(self, *, initializer: Initializer | Mapping[str, Any] | None, **kwargs: Any) -> None:
        if kwargs.get("runtime") is not None or kwargs.get("trainer") is not None:
            raise ValueError("InitializeOperator runs no trainer; TrainJobOperator(initializer=…) fetches and trains")
        super().__init__(
            initializer=initializer, **{"multiple_outputs": kwargs.get("wait_for_completion", True), **kwargs}
        )
        if "initializer" not in self.spec:
            raise ValueError("InitializeOperator needs Initializer(dataset=…, model=…) with at least one of the two")
