"""Validation of a request against its runtime and the features of Run:ai, before anything is created. Pure."""

from __future__ import annotations

from trainer_core.backends.runai.manifest import MIG_PREFIX, get_num_nodes
from trainer_core.backends.runai.options import get_runai_fields
from trainer_core.backends.runai.runtime_templates import RuntimeTemplate
from trainer_core.base import resources
from trainer_core.base.errors import UnsupportedError
from trainer_core.base.naming import MAX_LABEL_LENGTH
from trainer_core.base.validation import RESERVED_TORCH_ENV, check_reserved_env
from trainer_core.k8s import manifest_common, runtimes
from trainer_core.model.request import TrainerRequest, TrainJobRequest
from trainer_core.model.storage_schemes import check_scheme
from trainer_core.model.torchtune import MODELS

#: Length that Run:ai adds to the name of a workload for the name of its service: ``tw-<name>-0-clusterip``.
_SERVICE_AFFIX_LENGTH = len("tw--0-clusterip")
#: Default of `terminationGracePeriodSeconds` of a pod, which a workload cannot change.
_GRACE = 30
_TRAINERS = {"custom": "CustomTrainer", "container": "CustomTrainerContainer", "builtin": "BuiltinTrainer"}
#: Fields that the backend sets itself.
_BACKEND_FIELDS = frozenset({"name", "name_prefix", "usage", "active"})
_COMMAND_FIELDS = frozenset({"command", "arguments"})
SCHEMES = ("pvc",)
_NO_INITIALIZERS = (
    "by the runai backend, whose workloads have no initializers; RunaiSpec mounts data as s3, git_sync or nfs"
)


def check_request(request: TrainJobRequest, template: RuntimeTemplate) -> None:
    """Check a request for what a workload cannot express."""
    manifest_common.check_reserved_metadata(request)
    request.check_options("runai")
    _check_sources(request)
    if request.policy.checkpoints is not None and request.policy.checkpoints.grace > _GRACE:
        raise UnsupportedError(
            f"Checkpoints grace: Run:ai has no field for it and ends pods after {_GRACE} s; use at most {_GRACE}"
        )
    _check_name(request.require_name(), get_num_nodes(request))
    _check_runai_fields(request, template)
    if request.work.trainer is not None:
        _check_trainer(request.work.trainer, template)
        _check_resources(request.work.trainer)
    elif request.work.initializer is not None:
        raise UnsupportedError(
            "initialize is not supported by the runai backend, whose workloads have no initializers; run it on the "
            f"kubernetes backend, and use {manifest_common.PVC_SCHEME}<claim>/dataset here"
        )
    elif template.spec is None:
        raise UnsupportedError(
            f"the request has nothing to run: it has no trainer, and runtime {template.name!r} has no command; set a "
            "trainer"
        )


def _check_sources(request: TrainJobRequest) -> None:
    for role, source in request.initializer_sources():
        check_scheme(role, source.storage_uri, SCHEMES, _NO_INITIALIZERS)
        manifest_common.check_pvc_uri(role, source.storage_uri)


def _check_name(name: str, nodes: int) -> None:
    limit = MAX_LABEL_LENGTH - max(_SERVICE_AFFIX_LENGTH, len(f"-worker-{nodes}"))
    if len(name) > limit:
        raise UnsupportedError(
            f"job name {name!r} has {len(name)} characters, so the names of its service and pods would exceed "
            f"{MAX_LABEL_LENGTH}; use at most {limit}"
        )


def _check_runai_fields(request: TrainJobRequest, template: RuntimeTemplate) -> None:
    """Check that RunaiSpec overrides no field of the backend, and that RunaiMasterSpec has a master to apply to."""
    if "runai" not in request.work.extensions:
        return
    fields = {*get_runai_fields(request).spec, *get_runai_fields(request).master}
    reserved = sorted(_BACKEND_FIELDS & fields)
    if request.work.trainer is not None and request.work.trainer.kind != "container":
        reserved += sorted(_COMMAND_FIELDS & fields)
    if reserved:
        raise UnsupportedError(f"RunaiSpec: {', '.join(reserved)} is set by the backend; remove it")
    memory = sorted({"memory", "memory_limit"} & fields)
    if request.policy.more_memory is not None and memory:
        raise UnsupportedError(
            f"MoreMemory: RunaiSpec {', '.join(memory)} would override the memory of each attempt; remove it, and set "
            "memory in resources_per_node"
        )
    if get_runai_fields(request).master and get_num_nodes(request) == 1 and template.policy != "mpi":
        raise UnsupportedError("RunaiMasterSpec: a job with one node has no master; use RunaiSpec, or several nodes")


def _check_trainer(trainer: TrainerRequest, template: RuntimeTemplate) -> None:
    program = trainer.program
    if (template.framework != program) if program else runtimes.get_program(template.framework):
        remedy = f"a runtime of {program}" if program else "a BuiltinTrainer, or another runtime"
        raise UnsupportedError(
            f"{_TRAINERS[trainer.kind]} can't be used with {template.name} runtime, whose framework is "
            f"{template.framework}; use {remedy}"
        )
    if program is not None:
        _check_recipe(trainer, template)
    check_reserved_env("trainer.env", trainer.env, RESERVED_TORCH_ENV.fullmatch, "Run:ai")
    if (trainer.num_proc_per_node or 1) > 1 and template.policy is None and trainer.kind != "builtin":
        raise UnsupportedError(
            f"num_proc_per_node={trainer.num_proc_per_node}: runtime {template.name!r} always starts 1 process on each "
            "node; remove it, or use a torch runtime"
        )


def _check_recipe(trainer: TrainerRequest, template: RuntimeTemplate) -> None:
    if template.spec is not None or template.name not in MODELS:
        raise UnsupportedError(
            f"BuiltinTrainer: template {template.name!r} has no torchtune recipe; use one of the built-in torchtune- "
            "runtimes with RunaiSpec(base_workload=…)"
        )
    if (trainer.num_nodes or 1) > 1:
        raise UnsupportedError(
            f"num_nodes must be 1 for a BuiltinTrainer on Run:ai, got {trainer.num_nodes}; use more GPUs on one node"
        )


def _check_resources(trainer: TrainerRequest) -> None:
    per_node = trainer.resources_per_node or {}
    if "ephemeral-storage" in per_node:
        raise UnsupportedError(
            "resources_per_node: Run:ai cannot guarantee ephemeral storage; remove it, or mount a volume claim"
        )
    for name, amount in per_node.items():
        if name.startswith(MIG_PREFIX) and resources.parse_quantity(amount) != 1:
            raise UnsupportedError(f"resources_per_node: {name} must be 1: a workload has one MIG slice; got {amount}")
