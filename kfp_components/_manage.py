"""What the delete, suspend and resume components do to TrainJobs that are there."""

from __future__ import annotations

from typing import Any

from kfp_components._client import client_for, client_of
from kfp_components._executor import Task
from trainer_core.cluster.marks import RUN
from trainer_core.errors import InvalidRequestError
from trainer_core.observation import COMPLETE, FAILED, SUSPENDED
from trainer_core.ref import TrainJobRef

__all__ = ["delete", "resume", "suspend"]

#: Pods have half a minute to end.
_SECONDS_TO_SUSPEND = 120


def delete(
    task: Task,
    *,
    job: dict[str, Any] | None = None,
    job_name: str | None = None,
    run_id: str | None = None,
    backend: str = "local",
    backend_config: dict[str, Any] | None = None,
) -> None:
    """Delete TrainJobs; the component's docstring describes the inputs."""
    if sum(map(bool, (job, job_name, run_id))) != 1:
        raise InvalidRequestError("give one of job, job_name and run_id: which TrainJobs are to be deleted")
    deleted = []
    if job:
        ref = TrainJobRef.from_dict(job)
        # By its uid: another job may have taken the name meanwhile.
        client_of(ref, backend_config).backend.delete(ref)
        deleted = [ref.name]
    else:
        client = client_for(backend, backend_config)
        found = client.list_jobs()
        wanted = [j.name for j in found if (j.name == job_name if job_name else j.labels.get(RUN) == run_id)]
        for name in wanted:
            client.delete_job(name)
            deleted.append(name)
    print(f"deleted: {', '.join(deleted) or 'nothing, there is none'}", flush=True)
    task.write("deleted", deleted)


def suspend(task: Task, *, job: dict[str, Any], backend_config: dict[str, Any] | None = None) -> None:
    """Suspend a TrainJob; the component's docstring describes the inputs."""
    ref = TrainJobRef.from_dict(job)
    client = client_of(ref, backend_config)
    client.suspend(ref)
    seen = client.wait_for_job_status(ref.name, {SUSPENDED, COMPLETE, FAILED}, timeout=_SECONDS_TO_SUSPEND)
    task.write("status", seen.status)


def resume(task: Task, *, job: dict[str, Any], backend_config: dict[str, Any] | None = None) -> None:
    """Resume a TrainJob; the component's docstring describes the inputs."""
    ref = TrainJobRef.from_dict(job)
    client = client_of(ref, backend_config)
    client.resume(ref)
    task.write("status", client.observe(ref).status)
