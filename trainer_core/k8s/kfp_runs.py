"""Runs of Kubeflow Pipelines in a namespace, and the TrainJobs whose run has been deleted or terminated."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from trainer_core.base.errors import InvalidRequestError
from trainer_core.k8s import labels, resources
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.connection import Connection
from trainer_core.k8s.errors import NotFoundError
from trainer_core.k8s.parsing import RawObject
from trainer_core.model.config import ClusterConfig
from trainer_core.model.jobs import COMPLETE, FAILED, TrainJob

#: Label of Kubeflow Pipelines on the Workflow and the pods of a run.
RUN_ID_LABEL = "pipeline/runid"
_RUNS_IN_A_REQUEST = 20


@dataclass(frozen=True)
class PipelineRuns:
    """Runs of a namespace."""

    #: Ids of the runs that are active, or have ended and are kept.
    existing: Collection[str]
    #: Ids of those that a user has terminated.
    terminated: Collection[str] = ()
    #: Whether an id may also be missing because the run ended long ago, as a Workflow does after a day.
    can_expire: bool = False


def find_orphaned_jobs(jobs: Iterable[TrainJob], runs: PipelineRuns) -> list[TrainJob]:
    """Return the TrainJobs that a run has left behind. Pure.

    Of a terminated run: its active TrainJobs, unless their step has ``on_kill="keep"``. Of a deleted run: all. Of a run
    that was deleted or has expired (`PipelineRuns.can_expire`): the TrainJobs for which a step with
    ``on_kill="cancel"`` was waiting, because the run does not end before them; an ended TrainJob with a `DeleteAfter`
    is kept.
    """
    return [job for job in jobs if labels.RUN in job.labels and _is_orphaned(job, job.labels[labels.RUN], runs)]


def _is_orphaned(job: TrainJob, run_id: str, runs: PipelineRuns) -> bool:
    has_ended, on_kill = job.status in (COMPLETE, FAILED), job.labels.get(labels.ON_KILL)
    if run_id in runs.existing:
        return run_id in runs.terminated and not has_ended and on_kill != "keep"
    if not runs.can_expire:
        return True
    return on_kill == "cancel" and not (has_ended and labels.DELETE_AFTER in job.labels)


def list_pipeline_runs(config: ClusterConfig, namespace: str, run_ids: Collection[str]) -> PipelineRuns:
    """Return those of some runs whose Workflows, of up to a megabyte each, are in a namespace; a few per request."""
    api = ApiClient(Connection(config))
    ordered = sorted(run_ids)
    workflows = [
        workflow
        for start in range(0, len(ordered), _RUNS_IN_A_REQUEST)
        for workflow in api.list(
            resources.WORKFLOWS,
            label_selector=f"{RUN_ID_LABEL} in ({','.join(ordered[start : start + _RUNS_IN_A_REQUEST])})",
            namespace=namespace,
        )
    ]
    if not workflows and not api.has_any(resources.WORKFLOWS, label_selector=RUN_ID_LABEL, namespace=namespace):
        raise InvalidRequestError(
            f"namespace {namespace!r} has no Workflow of a pipeline run, so every TrainJob would count as orphaned; "
            "name the namespace where Kubeflow Pipelines runs its Workflows"
        )
    return PipelineRuns(
        existing={_get_run_id(workflow) for workflow in workflows},
        terminated={_get_run_id(workflow) for workflow in workflows if _is_terminated(workflow)},
        can_expire=True,
    )


def has_run_ended(config: ClusterConfig, namespace: str, workflow: str) -> bool:
    """Whether a user has terminated or deleted the run of a Workflow."""
    try:
        found = ApiClient(Connection(config)).get(resources.WORKFLOWS, workflow, namespace=namespace)
    except NotFoundError:
        return True
    return _is_terminated(found) or "deletionTimestamp" in found["metadata"]


def _get_run_id(workflow: RawObject) -> str:
    return str(workflow["metadata"]["labels"][RUN_ID_LABEL])


def _is_terminated(workflow: RawObject) -> bool:
    """Kubeflow Pipelines terminates a run by setting its deadline to zero."""
    return bool(workflow.get("spec", {}).get("activeDeadlineSeconds") == 0)
