"""Runs of Kubeflow Pipelines, as their Workflows tell, and the TrainJobs that are left of runs that are gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from trainer_core.cluster import connect, kinds, marks
from trainer_core.cluster.api import Api
from trainer_core.cluster.raw import Raw
from trainer_core.configs import ClusterConfig
from trainer_core.errors import InvalidRequestError
from trainer_core.jobs import TrainJob
from trainer_core.observation import COMPLETE, FAILED

__all__ = ["RUN_ID", "Runs", "in_namespace", "orphans"]

#: Label that Kubeflow Pipelines gives to the Workflow and the pods of a run.
RUN_ID = "pipeline/runid"


@dataclass(frozen=True)
class Runs:
    """What is known of runs.

    Attributes:
        there: Ids of those that go on, or have ended and are kept.
        terminated: Those among them that somebody has terminated.
    """

    there: Collection[str]
    terminated: Collection[str] = ()


def orphans(jobs: Iterable[TrainJob], runs: Runs) -> list[TrainJob]:
    """Return the jobs that belong to a run that is gone. Pure.

    Of a run that was terminated, only what has not ended: nobody waits for it, and the rest can be looked at.
    """
    return [job for job in jobs if marks.RUN in job.labels and _is_orphan(job, job.labels[marks.RUN], runs)]


def _is_orphan(job: TrainJob, run: str, runs: Runs) -> bool:
    return run not in runs.there or (run in runs.terminated and job.status not in (COMPLETE, FAILED))


def in_namespace(config: ClusterConfig, namespace: str) -> Runs:
    """Return the runs whose Workflows are in a namespace.

    Raises:
        InvalidRequestError: It has none at all, so it is hardly where pipelines run.
        BackendUnavailableError: The cluster cannot be reached, or does not permit to list them.
    """
    workflows = Api(connect.connect(config)).list(kinds.WORKFLOWS, labels=RUN_ID, namespace=namespace)
    if not workflows:
        raise InvalidRequestError(
            f"namespace {namespace!r} has no Workflow of a run, so every TrainJob would count as left over; name the "
            "namespace where Kubeflow Pipelines runs them"
        )
    return Runs(
        there={workflow["metadata"]["labels"][RUN_ID] for workflow in workflows},
        terminated={workflow["metadata"]["labels"][RUN_ID] for workflow in workflows if _is_terminated(workflow)},
    )


def _is_terminated(workflow: Raw) -> bool:
    """Kubeflow Pipelines terminates a run by taking all its time away."""
    return bool(workflow.get("spec", {}).get("activeDeadlineSeconds") == 0)
