"""Operators that delete, suspend and resume existing TrainJobs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import TriggerRule

from airflow_provider import assets, connections, job_location
from airflow_provider.exceptions import TrainJobRejectedError, TrainJobUnreachableError
from airflow_provider.hooks.trainjob import TrainJobHook
from airflow_provider.task_memory import TaskMemory
from trainer_core.base.errors import BackendUnavailableError, TrainerError
from trainer_core.client import TrainerClient
from trainer_core.model.config import BackendConfig
from trainer_core.model.jobs import TrainJobRef

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["DeleteTrainJobOperator", "ManageOperator", "ResumeTrainJobOperator", "SuspendTrainJobOperator"]

_NO_JOB = "the task that `job` refers to has submitted no TrainJob"


class ManageOperator(assets.ChecksMapping):
    """Base of operators that work on one existing TrainJob."""

    template_fields: Sequence[str] = ("job",)
    ui_color = "#e8f0fe"
    #: XCom of a search that `job` stands for.
    search_key: ClassVar[str] = "best_ref"

    def __init__(
        self,
        *,
        job: Any,
        backend: str | None = None,
        backend_config: BackendConfig | Mapping[str, Any] | None = None,
        trainjob_conn_id: str | None = TrainJobHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not job:
            raise ValueError("job is empty; pass the name of a TrainJob, or its ref, such as train.output")
        connections.check_constants(backend, backend_config, trainjob_conn_id=trainjob_conn_id)
        self.job = job_location.to_template_value(job, self.search_key)
        self.backend = backend
        self.backend_config = backend_config
        self.trainjob_conn_id = trainjob_conn_id

    @cached_property
    def hook(self) -> TrainJobHook:
        """Hook for the operator's connection and the backend of the job."""
        job = job_location.parse_job(self.job)
        ref_backend = job.backend if isinstance(job, TrainJobRef) else None
        return TrainJobHook(self.trainjob_conn_id, self.backend or ref_backend, self.backend_config)

    def execute(self, context: Context) -> Any:
        """Run the operation. Succeeds if the job is already in the requested state.

        Raises:
            TrainJobRejectedError: The job does not exist, or the backend refuses the operation.
            TrainJobUnreachableError: The backend is unavailable.
        """
        if self.job in (None, "", str(None)):
            return self._run_without_job()
        try:
            client, job = self.hook.client, job_location.parse_job(self.job)
            if isinstance(job, TrainJobRef):
                job_location.check_place(job_location.parse_ref_data(self.job), client)
            return self._run(client, job, context)
        except BackendUnavailableError as error:
            raise TrainJobUnreachableError(str(error)) from error
        except (TrainerError, ValueError) as error:
            raise TrainJobRejectedError(str(error)) from error

    def _run_without_job(self) -> None:
        raise TrainJobRejectedError(_NO_JOB)

    @abstractmethod
    def _run(self, client: TrainerClient, job: str | TrainJobRef, context: Context) -> Any:
        """Call the client."""


class DeleteTrainJobOperator(ManageOperator):
    """Delete a TrainJob: stop its processes and remove its log, files and cluster objects.

    Succeeds if the job is already gone, or was never submitted. Of a search, all TrainJobs are deleted.

    Example:
        As a teardown, also of a training that failed:

        ```python
        DeleteTrainJobOperator(task_id="delete", job=train.output).as_teardown(setups=train)
        ```

    Args:
        job: Name of the job, its ref, or the output of its task (``train.output``). A ref identifies one job by
            its uid: a newer job of the same name is not deleted. Required. Templated.
        backend: Name of the backend. Default: None, the backend of the ref; for a name, the backend of the connection.
            Not templated.
        backend_config: A configuration of `trainer_core`, used instead of the connection, or a dict of settings
            that override those of the connection. Default: None. Not templated.
        trainjob_conn_id: Id of an Airflow connection of type ``trainjob``. Default: ``trainjob_default``; if that
            connection does not exist, the backend must be named by `backend`, by a ref, or by the Airflow setting
            ``[trainjob] backend``. None: use no connection. Not templated.
        kwargs: Arguments of every operator.

    Raises:
        ValueError: An argument is invalid; raised when the DAG is parsed.
    """

    search_key = "ref"

    def as_teardown(self, **arguments: Any) -> DeleteTrainJobOperator:
        """Make this task a teardown; it also runs after a setup that failed, because that may have a TrainJob."""
        super().as_teardown(**arguments)
        self.trigger_rule = TriggerRule.ALL_DONE
        return self

    def _run(self, client: TrainerClient, job: str | TrainJobRef, context: Context) -> None:
        search = None if isinstance(job, str) else job_location.parse_ref_data(self.job).get("search")
        if search is None:
            client.delete_job(job)
        else:
            client.searches.delete_job(search["key"])

    def _run_without_job(self) -> None:
        self.log.info("Nothing to delete: %s", _NO_JOB)


class _SuspendResumeOperator(ManageOperator):
    """Apply a change to a job and push its ref."""

    job_key: ClassVar[str] = "ref"
    wait_for_completion: ClassVar[bool] = False

    def _run(self, client: TrainerClient, job: str | TrainJobRef, context: Context) -> dict[str, Any]:
        ref = client.get_job_ref(job)
        self._apply(client, ref)
        ref_data = job_location.build_ref_data(client, ref)
        TaskMemory(context["ti"]).push_ref(ref_data)
        return ref_data

    @abstractmethod
    def _apply(self, client: TrainerClient, ref: TrainJobRef) -> None:
        """Suspend or resume the job."""


class SuspendTrainJobOperator(_SuspendResumeOperator):
    """Suspend a TrainJob: stop its running steps and keep the job. Succeeds if it is already suspended or has ended.

    Sets ``spec.suspend`` of the TrainJob. XComs: ``return_value`` and ``ref``, both the job's ref.

    Args:
        job: Name of the job, its ref, or the output of its task (``train.output``). A ref identifies one job by
            its uid. Required. Templated.
        backend: Name of the backend. Default: None, the backend of the ref; for a name, the backend of the connection.
            Not templated.
        backend_config: A configuration of `trainer_core`, used instead of the connection, or a dict of settings
            that override those of the connection. Default: None. Not templated.
        trainjob_conn_id: Id of an Airflow connection of type ``trainjob``. Default: ``trainjob_default``; if that
            connection does not exist, the backend must be named by `backend`, by a ref, or by the Airflow setting
            ``[trainjob] backend``. None: use no connection. Not templated.
        kwargs: Arguments of every operator.

    Raises:
        ValueError: An argument is invalid; raised when the DAG is parsed.
    """

    def _apply(self, client: TrainerClient, ref: TrainJobRef) -> None:
        client.suspend(ref)


class ResumeTrainJobOperator(_SuspendResumeOperator):
    """Resume a suspended TrainJob: its steps start again. Succeeds if it is already running or has ended.

    The operator does not wait for the job; pass its result, the job's ref, to `TrainJobSensor`. Clears ``spec.suspend``
    of the TrainJob. XComs: ``return_value`` and ``ref``, both the job's ref.

    Args:
        job: Name of the job, its ref, or the output of its task (``train.output``). A ref identifies one job by
            its uid. Required. Templated.
        backend: Name of the backend. Default: None, the backend of the ref; for a name, the backend of the connection.
            Not templated.
        backend_config: A configuration of `trainer_core`, used instead of the connection, or a dict of settings
            that override those of the connection. Default: None. Not templated.
        trainjob_conn_id: Id of an Airflow connection of type ``trainjob``. Default: ``trainjob_default``; if that
            connection does not exist, the backend must be named by `backend`, by a ref, or by the Airflow setting
            ``[trainjob] backend``. None: use no connection. Not templated.
        kwargs: Arguments of every operator.

    Raises:
        ValueError: An argument is invalid; raised when the DAG is parsed.
    """

    def _apply(self, client: TrainerClient, ref: TrainJobRef) -> None:
        client.resume(ref)
