"""Operators for TrainJobs that are there already: delete, suspend, resume."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider import given, handover
from airflow_provider.exceptions import TrainJobRejectedError, TrainJobUnreachableError
from airflow_provider.hooks.trainjob import TrainJobHook
from trainer_core.client import TrainerClient
from trainer_core.configs import BackendConfig
from trainer_core.errors import BackendUnavailableError, TrainerError
from trainer_core.ref import TrainJobRef

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["DeleteTrainJobOperator", "ResumeTrainJobOperator", "SuspendTrainJobOperator"]


class _ManageOperator(BaseOperator):
    template_fields: Sequence[str] = ("job",)
    ui_color = "#e8f0fe"

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
            raise ValueError("job must be the name of a TrainJob, or its ref, such as train.output; got nothing")
        self.job = given.templated(job)
        self.backend = backend
        self.backend_config = backend_config
        self.trainjob_conn_id = trainjob_conn_id

    @cached_property
    def hook(self) -> TrainJobHook:
        """The way to the backend of the TrainJob."""
        job = given.job(self.job)
        known = job.backend if isinstance(job, TrainJobRef) else None
        return TrainJobHook(self.trainjob_conn_id, self.backend or known, self.backend_config)

    def execute(self, context: Context) -> Any:
        """Do it. Done already: this succeeds."""
        try:
            return self._do(self.hook.client, given.job(self.job), context)
        except BackendUnavailableError as error:
            raise TrainJobUnreachableError(str(error)) from error
        except (TrainerError, ValueError) as error:
            raise TrainJobRejectedError(str(error)) from error

    @abstractmethod
    def _do(self, client: TrainerClient, job: str | TrainJobRef, context: Context) -> Any:
        """What this operator is for."""


class DeleteTrainJobOperator(_ManageOperator):
    """Delete a TrainJob: end every process of it and remove what it left. Gone already: this succeeds.

    Good as a teardown: ``DeleteTrainJobOperator(task_id="delete", job=train.output).as_teardown(setups=train)``.

    Args:
        job: Its name, or its ref, such as the XCom ``ref`` of `TrainJobOperator`. A ref deletes that very job only,
            not another one that has its name by now. Templated.
        backend: Name of the backend; None for the ref's own, else for the connection's.
        backend_config: As for `TrainJobOperator`.
        trainjob_conn_id: As for `TrainJobOperator`.
        kwargs: As for every operator.

    Raises:
        ValueError: There is no job to delete.
    """

    def _do(self, client: TrainerClient, job: str | TrainJobRef, context: Context) -> None:
        if isinstance(job, TrainJobRef):
            client.backend.delete(job)
        else:
            client.delete_job(job)


class _ChangeOperator(_ManageOperator):
    """Changes how a job lives, and hands its ref on."""

    def _do(self, client: TrainerClient, job: str | TrainJobRef, context: Context) -> dict[str, Any]:
        ref = client.ref(job)
        self._change(client, ref)
        handover.push_ref(context["ti"], ref)
        return ref.to_dict()

    @abstractmethod
    def _change(self, client: TrainerClient, ref: TrainJobRef) -> None:
        """What becomes of it."""


class SuspendTrainJobOperator(_ChangeOperator):
    """Suspend a TrainJob: end the steps that run and keep the job. Suspended or ended already: this succeeds.

    XComs: ``return_value`` and ``ref``, the job's ref.

    Args:
        job: As for `DeleteTrainJobOperator`.
        backend: As for `DeleteTrainJobOperator`.
        backend_config: As for `TrainJobOperator`.
        trainjob_conn_id: As for `TrainJobOperator`.
        kwargs: As for every operator.

    Raises:
        ValueError: There is no job to suspend.
    """

    def _change(self, client: TrainerClient, ref: TrainJobRef) -> None:
        client.suspend(ref)


class ResumeTrainJobOperator(_ChangeOperator):
    """Start a suspended TrainJob again, from its beginning. Running or ended already: this succeeds.

    It does not wait; its result is the ref for a `TrainJobSensor` to wait for. XComs: ``return_value`` and ``ref``.

    Args:
        job: As for `DeleteTrainJobOperator`.
        backend: As for `DeleteTrainJobOperator`.
        backend_config: As for `TrainJobOperator`.
        trainjob_conn_id: As for `TrainJobOperator`.
        kwargs: As for every operator.

    Raises:
        ValueError: There is no job to resume.
    """

    def _change(self, client: TrainerClient, ref: TrainJobRef) -> None:
        client.resume(ref)
