"""The pipeline run of a step: binds a TrainJob to it while the step waits for the job.

The run's Workflow becomes an owner of the TrainJob, so that the cluster deletes the job together with the Workflow, and
two labels name the run and `on_kill`, so that `trainjob reap` can do the same where no owner reference is possible.
`docs/decisions/kfp-run-ownership.md` says which job is bound, and until when.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kfp_components.step.pod import find_step_pod, is_kfp_pod
from trainer_core.base.errors import JobNotFoundError, TrainerError
from trainer_core.client import TrainerClient
from trainer_core.model.config import ClusterConfig
from trainer_core.model.jobs import (
    COMPLETE,
    DELETE_AFTER_LABEL,
    FAILED,
    KFP_ON_KILL_LABEL,
    KFP_RUN_LABEL,
    OwnerReference,
    TrainJobRef,
)

_WORKFLOW = "Workflow"
#: Label of Kubeflow Pipelines on the pods of a run.
_RUN_ID_LABEL = "pipeline/runid"


@dataclass(frozen=True)
class Run:
    """The pipeline run of this step."""

    #: Its id; None if the step neither got it as an input nor can read the label of the pod it runs in.
    id: str | None
    #: Its Workflow; None if the step cannot read its own pod.
    workflow: OwnerReference | None = None
    namespace: str | None = None
    #: Why the step cannot read its own pod.
    problem: str | None = None

    def print_problem(self) -> None:
        """Print why the run is not known. Called when the job exists: a refused job has another reason."""
        if self.problem:
            print(f"the run of this step is not known: {self.problem}", file=sys.stderr)


def find_run(client: TrainerClient, run_id: str | None) -> Run:
    """Return the run of this step, from the labels and owners of the step's pod."""
    if not isinstance(client.config, ClusterConfig) or not is_kfp_pod():
        return Run(run_id)
    try:
        pod = find_step_pod(client)
    except TrainerError as error:
        return Run(run_id, problem=str(error))
    if pod is None:
        return Run(run_id, problem="its pod is in another cluster or namespace")
    metadata: dict[str, Any] = pod["metadata"]
    owners = (OwnerReference.from_manifest(entry) for entry in metadata.get("ownerReferences", ()))
    workflow = next((owner for owner in owners if owner.kind == _WORKFLOW), None)
    return Run(run_id or metadata.get("labels", {}).get(_RUN_ID_LABEL), workflow, metadata["namespace"])


@contextmanager
def bind_to_run(client: TrainerClient, ref: TrainJobRef, run: Run, on_kill: str) -> Iterator[None]:
    """Bind a job to its run for the time of a block that waits for it; only a job that has the label of this run.

    Bound means: a label with `on_kill`, and for ``cancel`` the run's Workflow as an owner. After the block a job that
    still runs is released, because no step waits for it; so is a job that has ended and has a `DeleteAfter`.
    SIGTERM leaves the job bound.

    A failure to bind or release is printed and does not fail the step.
    """
    if run.id is None or not isinstance(client.config, ClusterConfig):
        yield
        return
    owner = run.workflow if on_kill == "cancel" else None
    if owner is not None and run.namespace != ref.namespace:
        owner = None
        print(f"TrainJob {ref.name} gets no owner reference: its run is in namespace {run.namespace}")
    labels: list[Mapping[str, str]] = []
    with _print_errors(ref, "is not bound to the run"):
        only_with = {KFP_RUN_LABEL: run.id}
        labels.append(client.set_job_owner(ref, _WORKFLOW, owner, {KFP_ON_KILL_LABEL: on_kill}, only_with))
    try:
        yield
    except TrainerError:
        _release_job(client, ref)
        raise
    # The job has ended: it stays bound unless it is to outlive the run.
    if not labels or DELETE_AFTER_LABEL in labels[0]:
        _release_job(client, ref)


def _release_job(client: TrainerClient, ref: TrainJobRef) -> None:
    with _print_errors(ref, "stays bound to the run"):
        job = client.get_job(ref)
        if job.status not in (COMPLETE, FAILED):
            client.set_job_owner(ref, _WORKFLOW, None, {KFP_ON_KILL_LABEL: None})
        elif DELETE_AFTER_LABEL in job.labels:
            client.set_job_owner(ref, _WORKFLOW, None)


@contextmanager
def _print_errors(ref: TrainJobRef, what: str) -> Iterator[None]:
    """Print a TrainerError of the block instead of raising it; a deleted job needs no message."""
    try:
        yield
    except JobNotFoundError:
        return
    except TrainerError as error:
        print(f"TrainJob {ref.name} {what}: {error}", file=sys.stderr)
