"""request + blueprint → the exact TrainingWorkload or DistributedWorkload. Pure.

Numbers, names and texts change their spelling here; `admission` has judged before, the server decides after.
"""

from __future__ import annotations

from typing import Any

from trainer_core.backends.runai import fields
from trainer_core.backends.runai.blueprints import Blueprint
from trainer_core.backends.runai.facts import JOB, ROLE
from trainer_core.cluster import kinds, marks, objects, runtimes
from trainer_core.cluster.kinds import Kind
from trainer_core.configs import RunaiBackendConfig
from trainer_core.errors import InvalidRequestError, TrainerError
from trainer_core.request import TrainJobRequest
from trainer_core.runai.spec import TrainingWorkloadSpec

__all__ = ["is_distributed", "template", "workload"]

_SUBMIT = "Submit"
_MPI = "MPIJob"
_PYTORCH = "PyTorchJob"
#: A failure of the training fails the job; whether to try again is for whoever submitted it to say.
_NO_RETRIES = 0


def is_distributed(request: TrainJobRequest, blueprint: Blueprint) -> bool:
    """Say whether a request needs a DistributedWorkload: for several nodes, and for a launcher."""
    return fields.num_nodes(request) > 1 or blueprint.policy == "mpi"


def workload(
    request: TrainJobRequest, blueprint: Blueprint, config: RunaiBackendConfig, namespace: str, attempt: int = 0
) -> dict[str, Any]:
    """Return the workload of a named request.

    Args:
        request: A request that `admission` has judged.
        blueprint: What it is made from.
        config: The project, and what its workloads have in common.
        namespace: Where the workload is to run.
        attempt: Which attempt of its owner it is.

    Raises:
        UnsupportedError: A workload cannot express it, or it is too large.
        InvalidRequestError: The request has no name, or fields that are set directly contradict it.
    """
    metadata = objects.metadata(request, namespace, attempt, {marks.RUNTIME: runtimes.written(blueprint.runtime)})
    distributed = is_distributed(request, blueprint)
    try:
        spec = _spec(request, blueprint, config)
        parts = _distributed(request, blueprint, spec) if distributed else {"spec": _active(request, spec).to_wire()}
    except TrainerError:
        raise
    except ValueError as error:
        raise InvalidRequestError(f"RunaiSpec and the request together: {error}") from error
    return _object(kinds.DISTRIBUTED_WORKLOADS if distributed else kinds.TRAINING_WORKLOADS, metadata, config, parts)


def template(name: str, spec: TrainingWorkloadSpec, namespace: str, framework: str | None = None) -> dict[str, Any]:
    """Return a template: a workload that never runs, and from which others inherit.

    Args:
        name: Its name, by which requests refer to it as their runtime.
        spec: Its fields.
        namespace: Of the project; ``runai`` for one that serves all projects.
        framework: What it trains with, such as ``torch`` (the default) or ``python``.

    Raises:
        ValueError: A field cannot be one of a template.
    """
    fixed = TrainingWorkloadSpec(name=name, usage="Template").over(spec)
    labels = {marks.MANAGED_BY: marks.MANAGER, **({runtimes.FRAMEWORK: framework} if framework else {})}
    return {
        "apiVersion": kinds.TRAINING_WORKLOADS.api_version,
        "kind": kinds.TRAINING_WORKLOADS.kind,
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": fixed.to_wire(),
    }


def _object(kind: Kind, metadata: dict[str, Any], config: RunaiBackendConfig, parts: dict[str, Any]) -> dict[str, Any]:
    if config.project:
        metadata["labels"].setdefault("project", config.project)
    if config.cluster_id:
        metadata["annotations"].setdefault("clusterId", config.cluster_id)
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **parts}


def _spec(request: TrainJobRequest, blueprint: Blueprint, config: RunaiBackendConfig) -> TrainingWorkloadSpec:
    """What the request says, and over that the fields that were set directly."""
    said: dict[str, Any] = {
        "name": request.require_name(),
        "usage": _SUBMIT,
        "labels": {JOB: request.require_name()},
        "auto_deletion_time_after_completion_seconds": request.delete_after_seconds,
        "pvcs": fields.claims(request) or None,
    }
    if config.cluster_id:
        said["annotations"] = {"clusterId": config.cluster_id}
    if blueprint.template is None or blueprint.template.backoff_limit is None:
        said["backoff_limit"] = _NO_RETRIES
    if request.trainer is not None:
        trainer = request.trainer
        said |= fields.amounts(trainer) | fields.command(request, trainer, blueprint)
        said["environment"] = fields.environment(request, trainer, blueprint)
        said |= {"image": trainer.image} if trainer.image else {}
    base = fields.base(blueprint, inherits=not is_distributed(request, blueprint))
    direct = TrainingWorkloadSpec(**(request.runai.spec if request.runai else {}))
    spec = TrainingWorkloadSpec(**{name: value for name, value in said.items() if value is not None})
    # By this label we find the pods, whatever labels were set directly.
    return TrainingWorkloadSpec(labels=said["labels"]).over(direct.over(spec.over(base)))


def _active(request: TrainJobRequest, spec: TrainingWorkloadSpec) -> TrainingWorkloadSpec:
    return TrainingWorkloadSpec(active=not request.suspend).over(spec)


def _distributed(request: TrainJobRequest, blueprint: Blueprint, spec: TrainingWorkloadSpec) -> dict[str, Any]:
    """The master beside the workers: with PyTorch the first of the nodes, with MPI the launcher of all of them."""
    mpi = blueprint.policy == "mpi"
    nodes = fields.num_nodes(request)
    master = spec
    workers = TrainingWorkloadSpec(labels={ROLE: "node" if mpi else "worker"}).over(spec)
    if mpi:
        # The workers wait for the launcher, as their operator has them do.
        workers = _without(workers, "command", "arguments")
        master = _without(spec, "gpu", "gpu_memory", "mig_profile", "extended_resources")
        workers = _with_slots(request, blueprint, workers)
    master = TrainingWorkloadSpec(labels={ROLE: "launcher" if mpi else "master"}).over(master)
    direct = TrainingWorkloadSpec(**(request.runai.master if request.runai else {}))
    return {
        "spec": {
            **_active(request, workers).to_wire(),
            "jobType": _MPI if mpi else _PYTORCH,
            "workers": {"value": nodes if mpi else nodes - 1},
        },
        "masterSpec": direct.over(master).to_wire(),
    }


def _with_slots(request: TrainJobRequest, blueprint: Blueprint, workers: TrainingWorkloadSpec) -> TrainingWorkloadSpec:
    if workers.slots_per_worker is not None or request.trainer is None:
        return workers
    slots = fields.processes(request, request.trainer, blueprint)
    return TrainingWorkloadSpec(slots_per_worker=slots).over(workers)


def _without(spec: TrainingWorkloadSpec, *names: str) -> TrainingWorkloadSpec:
    return TrainingWorkloadSpec(**{name: value for name, value in spec if name not in names})
