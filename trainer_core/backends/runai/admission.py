"""What a Run:ai workload has no place for, or would do otherwise than asked: said before anything is created. Pure."""

from __future__ import annotations

import re

from trainer_core import resources
from trainer_core.backends.runai import fields
from trainer_core.backends.runai.blueprints import Blueprint
from trainer_core.cluster import objects
from trainer_core.errors import InvalidRequestError, UnsupportedError
from trainer_core.request import TrainerRequest, TrainJobRequest

__all__ = ["check"]

_MAX_LABEL = 63
#: What Run:ai puts around the name of a workload, to name its services (specs.md B3).
_AROUND = len("tw--0-clusterip")
#: Written into every container of a PyTorchJob, after what the user gives.
_RESERVED = re.compile(r"MASTER_(ADDR|PORT)|WORLD_SIZE|RANK|PET_.+")
#: What a request can ask for, and why a workload has no place for it.
_NO_PLACE = {
    "patches": "RuntimePatch changes a runtime of Kubeflow Trainer; set the workload's own fields with RunaiSpec",
    "active_deadline_seconds": "no field of a workload ends it at a deadline; leave it out, and wait with a timeout",
    "managed_by": "Run:ai sees to its workloads itself; leave it out",
    "workspace": "only `initialize` fetches into a volume; leave it out",
    "distributed": "DistributedConfig configures the pods of PyTorchJobs and TrainJobs; use RunaiSpec",
    "pytorch_job": "PyTorchJobSpec is of the training-operator backend; use RunaiSpec",
}


def check(request: TrainJobRequest, blueprint: Blueprint) -> None:
    """Refuse what a workload has no place for.

    Args:
        request: A named request.
        blueprint: What it is made from.

    Raises:
        UnsupportedError: A workload or the blueprint cannot do it.
        InvalidRequestError: A value is reserved or cannot be right.
    """
    objects.check_metadata(request)
    for name, why in _NO_PLACE.items():
        if getattr(request, name):
            raise UnsupportedError(f"{name}: {why}")
    _check_sources(request)
    _check_name(request.require_name(), fields.num_nodes(request))
    _check_direct(request, blueprint)
    if request.trainer is not None:
        _check_trainer(request.trainer, blueprint)
        _check_amounts(request.trainer)
    elif request.initializer is not None:
        raise UnsupportedError(
            "a request without a trainer only fetches, and a Run:ai workload does not; fetch into a volume with the "
            f"kubernetes backend and give {objects.PVC}<claim>/dataset here"
        )
    elif blueprint.template is None:
        raise UnsupportedError(
            f"nothing to run: the request has no trainer, and runtime {blueprint.name!r} no command; give a trainer"
        )


def _check_sources(request: TrainJobRequest) -> None:
    for role, source in objects.sources(request):
        if not source.storage_uri.startswith(objects.PVC):
            scheme = source.storage_uri.partition("://")[0]
            raise UnsupportedError(
                f"initializer.{role}: a Run:ai workload has no initializers, so {scheme}:// is not fetched; give "
                f"{objects.PVC}<claim>/{role} of what was fetched before, or mount it with RunaiSpec (s3, gitSync, nfs)"
            )
        objects.check_claim(role, source.storage_uri)


def _check_name(name: str, nodes: int) -> None:
    most = _MAX_LABEL - max(_AROUND, len(f"-worker-{nodes}"))
    if len(name) > most:
        raise UnsupportedError(
            f"job name {name!r} has {len(name)} characters, and what Run:ai makes for it has longer names, of "
            f"{_MAX_LABEL} at most; use at most {most}"
        )


def _check_direct(request: TrainJobRequest, blueprint: Blueprint) -> None:
    """Fields that are set directly must not take the place of what carries a function, nor go nowhere."""
    if request.runai is None:
        return
    taken = sorted({"name", "name_prefix", "usage", "active"} & {*request.runai.spec, *request.runai.master})
    if request.trainer is not None and request.trainer.kind != "container":
        taken += sorted({"command", "arguments"} & {*request.runai.spec, *request.runai.master})
    if taken:
        raise UnsupportedError(f"RunaiSpec: {', '.join(taken)} is written by this backend; leave it out")
    if request.runai.master and fields.num_nodes(request) == 1 and blueprint.policy != "mpi":
        raise UnsupportedError("RunaiMasterSpec: a job of one node has no master; use RunaiSpec, or several nodes")


def _check_trainer(trainer: TrainerRequest, blueprint: Blueprint) -> None:
    if (trainer.kind == "builtin") != (blueprint.framework == "torchtune"):
        remedy = "a torchtune runtime" if trainer.kind == "builtin" else "a BuiltinTrainer, or another runtime"
        raise UnsupportedError(
            f"a {trainer.kind} trainer can't be used with {blueprint.name} runtime, whose framework is "
            f"{blueprint.framework}; use {remedy}"
        )
    if trainer.kind == "builtin":
        _check_recipe(trainer, blueprint)
    reserved = sorted(name for name in trainer.env if _RESERVED.fullmatch(name))
    if reserved:
        raise InvalidRequestError(
            f"trainer.env must not set {', '.join(reserved)}: it says to each node where it stands; leave it out"
        )
    if (trainer.num_proc_per_node or 1) > 1 and blueprint.policy is None and trainer.kind != "builtin":
        raise UnsupportedError(
            f"num_proc_per_node={trainer.num_proc_per_node}: runtime {blueprint.name!r} starts one process on each "
            "node; leave it out, or use a torch runtime"
        )


def _check_recipe(trainer: TrainerRequest, blueprint: Blueprint) -> None:
    if not blueprint.recipe:
        raise UnsupportedError(
            f"BuiltinTrainer: template {blueprint.name!r} names no model of torchtune; use one of the torchtune- "
            "runtimes with RunaiSpec(base_workload=…)"
        )
    if (trainer.num_nodes or 1) > 1:
        raise UnsupportedError("num_nodes: a BuiltinTrainer runs on one node of Run:ai; use 1 with more GPUs")


def _check_amounts(trainer: TrainerRequest) -> None:
    given = trainer.resources_per_node or {}
    if "ephemeral-storage" in given:
        raise UnsupportedError("resources_per_node: Run:ai guarantees no storage; leave it out, or mount a claim")
    for name, amount in given.items():
        if name.startswith(fields.MIG) and resources.parse_quantity(amount) != 1:
            raise UnsupportedError(f"resources_per_node: {name}: a workload has one slice of a GPU; got {amount}")
