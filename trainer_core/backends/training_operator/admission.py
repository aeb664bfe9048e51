"""What the Training Operator would refuse, drop, or do otherwise than asked: said before anything is created. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainer_core.backends.training_operator import patching
from trainer_core.backends.training_operator.manifest import num_nodes
from trainer_core.cluster import objects, runtimes
from trainer_core.errors import InvalidRequestError, UnsupportedError
from trainer_core.request import TrainerRequest, TrainJobRequest

__all__ = ["check"]

#: Written into every container by the operator, after what the user gives.
_RESERVED = re.compile(r"MASTER_(ADDR|PORT)|WORLD_SIZE|RANK|PET_.+")
_SCHEMES = ("hf", "s3")
_WHY_NOT = {
    "cache": "the data cache is a part of Trainer, which this cluster may not have",
    "file": "a cluster does not see this machine's files",
}
_POLICIES = ("torch", None)


def check(request: TrainJobRequest, runtime: Mapping[str, Any]) -> None:
    """Refuse what a PyTorchJob has no place for.

    Args:
        request: A named request.
        runtime: Its runtime.

    Raises:
        UnsupportedError: A PyTorchJob or the runtime cannot do it.
        InvalidRequestError: A value is reserved or cannot be right.
    """
    objects.check_metadata(request)
    if request.workspace is not None:
        raise UnsupportedError("workspace: only `initialize` fetches into a volume; leave it out")
    if runtimes.policy(runtime) not in _POLICIES:
        raise UnsupportedError(
            f"runtime {runtimes.name(runtime)!r} has a policy {runtimes.policy(runtime)}, and a PyTorchJob starts "
            "PyTorch or plain processes; use a torch runtime, or the kubernetes backend"
        )
    _check_trainer(request.trainer, runtime)
    _check_env(request)
    _check_sources(request)
    _check_elastic(request, runtime)
    patching.pod_patches(request.patches, runtime)


def _check_trainer(trainer: TrainerRequest | None, runtime: Mapping[str, Any]) -> None:
    shown = runtimes.name(runtime)
    if trainer is None:
        if not (runtimes.trainer_container(runtime) or {}).get("command"):
            raise UnsupportedError(
                f"nothing to run: the request has no trainer, and runtime {shown!r} no command; give a trainer"
            )
        return
    if trainer.kind == "builtin" or runtimes.framework(runtime) == "torchtune":
        raise UnsupportedError(
            "BuiltinTrainer: the recipes of TorchTune are put together by Trainer, which a PyTorchJob is older than; "
            "use the kubernetes backend, or a CustomTrainerContainer that calls `tune run`"
        )
    if (trainer.num_proc_per_node or 1) > 1 and runtimes.policy(runtime) != "torch":
        raise UnsupportedError(
            f"num_proc_per_node={trainer.num_proc_per_node}: runtime {shown!r} starts one process on each node; leave "
            "it out, or use a torch runtime"
        )


def _check_env(request: TrainJobRequest) -> None:
    given = {
        "trainer.env": objects.trainer_env(request),
        "distributed.env": [entry.get("name", "") for entry in request.distributed.env] if request.distributed else (),
    }
    for place, names in given.items():
        reserved = ", ".join(sorted(name for name in names if _RESERVED.fullmatch(name)))
        if reserved:
            raise InvalidRequestError(f"{place} must not set {reserved}: the Training Operator sets it; leave it out")


def _check_sources(request: TrainJobRequest) -> None:
    for role, source in objects.sources(request):
        scheme = source.storage_uri.partition("://")[0]
        if source.storage_uri.startswith(objects.PVC):
            objects.check_claim(role, source.storage_uri)
        elif scheme not in _SCHEMES:
            known = ", ".join(f"{each}://" for each in (*_SCHEMES, "pvc"))
            why = f": {_WHY_NOT[scheme]}" if scheme in _WHY_NOT else ""
            raise UnsupportedError(f"initializer.{role}: a pod fetches from {known}; got {scheme}://{why}")


def _check_elastic(request: TrainJobRequest, runtime: Mapping[str, Any]) -> None:
    policy = request.pytorch_job.elastic_policy if request.pytorch_job else {}
    if not policy:
        return
    if runtimes.policy(runtime) != "torch":
        raise UnsupportedError(
            f"elastic_policy: runtime {runtimes.name(runtime)!r} does not start torchrun, which lets nodes come and "
            "go; use a torch runtime"
        )
    nodes = num_nodes(request, runtime)
    least, most = policy.get("minReplicas", nodes), policy.get("maxReplicas", nodes)
    if not least <= nodes <= most:
        raise InvalidRequestError(
            f"num_nodes={nodes} is not between minReplicas {least} and maxReplicas {most} of elastic_policy"
        )
