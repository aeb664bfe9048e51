"""What the delete, suspend and resume components do to existing TrainJobs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kfp_components.step.client import create_client, open_job
from kfp_components.step.executor_input import Task
from trainer_core.base.errors import InvalidRequestError, JobNotFoundError
from trainer_core.model.jobs import COMPLETE, FAILED, KFP_RUN_LABEL, SUSPENDED

#: Pods have half a minute to end.
_SECONDS_TO_SUSPEND = 120


def delete(
    task: Task,
    *,
    run_id: str,
    task_name: str,  # Read by KFP's cache alone.
    job: dict[str, Any] | None = None,
    job_name: str | None = None,
    backend: str = "local",
    backend_config: dict[str, Any] | None = None,
) -> None:
    """Delete TrainJobs; the component's docstring describes the inputs."""
    if job and job_name:
        raise InvalidRequestError("job and job_name are both given; give one of them, or none for all jobs of the run")
    deleted = []
    if job:
        client, ref = open_job(job, backend_config)
        client.delete_job(ref)  # By its uid: another job may have taken the name meanwhile.
        deleted = [] if ref.reused else [ref.name]
    else:
        client = create_client(backend, backend_config)
        of_run = [] if job_name else client.list_jobs(labels={KFP_RUN_LABEL: run_id})
        for name in [job_name] if job_name else [each.name for each in of_run]:
            with suppress(JobNotFoundError):
                client.delete_job(client.get_job_ref(name))
                deleted.append(name)
    print(f"deleted: {', '.join(deleted) or 'nothing, there is none'}")
    task.write("deleted", deleted)


@dataclass(frozen=True, kw_only=True)
class ExistingJobInputs:
    """The inputs of suspend and resume.

    Args:
        job: Ref of the TrainJob.
        run_id: Id of the run: dsl.PIPELINE_JOB_ID_PLACEHOLDER. Filled in, except where the component is loaded from
            YAML. KFP never takes a task with it from the cache of another run.
        task_name: Name of the task: dsl.PIPELINE_TASK_NAME_PLACEHOLDER. Filled in likewise. KFP never takes a task with
            it from the cache of another task of the run.
        backend_config: Settings of the backend, where those of the ref are not enough.
    """

    job: dict[str, Any]
    run_id: str  # KFP's cache alone reads it and the next one.
    task_name: str
    backend_config: dict[str, Any] | None = None


def suspend(task: Task, *, inputs: ExistingJobInputs) -> None:
    """Suspend a TrainJob."""
    client, ref = open_job(inputs.job, inputs.backend_config)
    client.suspend(ref)
    seen = client.wait_for_job_status(ref, {SUSPENDED, COMPLETE, FAILED}, timeout=_SECONDS_TO_SUSPEND)
    task.write("status", seen.status)


def resume(task: Task, *, inputs: ExistingJobInputs) -> None:
    """Resume a TrainJob."""
    client, ref = open_job(inputs.job, inputs.backend_config)
    client.resume(ref)
    task.write("status", client.observe(ref).status)
