"""Validation of a request: what the Training Operator would reject, drop silently, or fail to run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_core.backends.training_operator import runtime_patches
from trainer_core.backends.training_operator.manifest import get_num_nodes
from trainer_core.backends.training_operator.options import get_pytorch_job
from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.base.validation import RESERVED_TORCH_ENV, check_reserved_env
from trainer_core.k8s import manifest_common, runtimes
from trainer_core.model.request import TrainerRequest, TrainJobRequest
from trainer_core.model.storage_schemes import check_scheme

SCHEMES = ("hf", "s3", "pvc")
#: Policies of a runtime that a PyTorchJob can express; None for plain processes.
_POLICIES = ("torch", None)


def check_request(request: TrainJobRequest, runtime: Mapping[str, Any]) -> None:
    """Check a request for what a PyTorchJob cannot express."""
    manifest_common.check_reserved_metadata(request)
    request.check_options("training-operator")
    if request.work.workspace is not None:
        raise UnsupportedError("workspace is supported only by `initialize`; remove it")
    policy = runtimes.get_ml_policy(runtime)
    if policy not in _POLICIES:
        raise UnsupportedError(
            f"runtime {runtimes.get_name(runtime)!r} has the policy {policy}, and a PyTorchJob supports only torch and "
            "plain processes; use a torch runtime, or the kubernetes backend"
        )
    _check_trainer(request.work.trainer, runtime)
    _check_env(request)
    _check_sources(request)
    _check_elastic_policy(request, runtime)
    runtime_patches.list_pod_patches(request.work.patches, runtime)


def _check_trainer(trainer: TrainerRequest | None, runtime: Mapping[str, Any]) -> None:
    name = runtimes.get_name(runtime)
    if trainer is None:
        if not (runtimes.find_trainer_container(runtime) or {}).get("command"):
            raise UnsupportedError(
                f"the request has nothing to run: it has no trainer, and runtime {name!r} has no command; set a trainer"
            )
        return
    if trainer.program or runtimes.get_program(runtimes.get_framework(runtime)):
        raise UnsupportedError(
            "BuiltinTrainer is not supported by the training-operator backend: torchtune recipes need Trainer; use the "
            "kubernetes backend, or a CustomTrainerContainer that runs `tune run`"
        )
    if (trainer.num_proc_per_node or 1) > 1 and runtimes.get_ml_policy(runtime) != "torch":
        raise UnsupportedError(
            f"num_proc_per_node={trainer.num_proc_per_node}: runtime {name!r} always starts 1 process on each node; "
            "remove it, or use a torch runtime"
        )


def _check_env(request: TrainJobRequest) -> None:
    names = {
        "trainer.env": manifest_common.build_trainer_env(request),
        "distributed.env": [entry.get("name", "") for entry in request.work.distributed.env]
        if request.work.distributed
        else (),
    }
    for field, field_names in names.items():
        check_reserved_env(field, field_names, RESERVED_TORCH_ENV.fullmatch, "the Training Operator")


def _check_sources(request: TrainJobRequest) -> None:
    for role, source in request.initializer_sources():
        check_scheme(role, source.storage_uri, SCHEMES, "on a cluster")
        if source.storage_uri.startswith(manifest_common.PVC_SCHEME):
            manifest_common.check_pvc_uri(role, source.storage_uri)


def _check_elastic_policy(request: TrainJobRequest, runtime: Mapping[str, Any]) -> None:
    policy = get_pytorch_job(request).elastic_policy
    if not policy:
        return
    if runtimes.get_ml_policy(runtime) != "torch":
        raise UnsupportedError(
            f"elastic_policy: runtime {runtimes.get_name(runtime)!r} does not start torchrun, which elastic training "
            "requires; use a torch runtime"
        )
    nodes = get_num_nodes(request, runtime)
    minimum, maximum = policy.get("minReplicas", nodes), policy.get("maxReplicas", nodes)
    if not minimum <= nodes <= maximum:
        raise InvalidRequestError(
            f"num_nodes={nodes} must be between minReplicas={minimum} and maxReplicas={maximum} of elastic_policy"
        )
