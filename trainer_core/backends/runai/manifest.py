"""Rendering of a TrainingWorkload or DistributedWorkload from a request that `validation` has checked. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from trainer_core.backends.runai.config import RunaiBackendConfig
from trainer_core.backends.runai.options import get_runai_fields
from trainer_core.backends.runai.parse import DISTRIBUTED_WORKLOADS, JOB_LABEL, ROLE_LABEL, TRAINING_WORKLOADS
from trainer_core.backends.runai.runtime_templates import RuntimeTemplate
from trainer_core.backends.runai.workload import TrainingWorkloadSpec
from trainer_core.backends.runai.workload_items import VolumeClaim
from trainer_core.base import resources
from trainer_core.base.errors import InvalidRequestError, TrainerError, UnsupportedError
from trainer_core.base.secrets import SecretRef
from trainer_core.k8s import labels as k8s_labels, manifest_common, runtimes
from trainer_core.lifecycle.attempt_memory import apply_attempt_memory
from trainer_core.model import checkpoint_location
from trainer_core.model.request import TrainerRequest, TrainJobRequest
from trainer_core.model.torchtune import MODELS, TorchTuneConfig
from trainer_core.node import env as node_env
from trainer_core.packaging.argv_payload import Launcher

#: Prefix of the resource name of a MIG slice.
MIG_PREFIX = "nvidia.com/mig-"
#: Mount path of a claim with a folder for each role.
_WORKSPACE_PATH = "/workspace"
_NUM_PROCESSES_VARIABLE = "PET_NPROC_PER_NODE"
#: Resources with fields of their own; others are extended resources.
_FIELD_RESOURCES = ("cpu", "memory", resources.GPU)
_GPU_FIELDS = ("gpu", "gpu_memory", "mig_profile", "extended_resources")
#: Launcher of a training function, by policy of the runtime.
_LAUNCHERS: dict[str | None, Launcher] = {"torch": "torchrun", "mpi": "mpirun"}


def is_distributed(request: TrainJobRequest, template: RuntimeTemplate) -> bool:
    """Return whether a request needs a DistributedWorkload: it has several nodes, or the runtime uses MPI."""
    return get_num_nodes(request) > 1 or template.policy == "mpi"


def get_num_nodes(request: TrainJobRequest) -> int:
    return (request.work.trainer.num_nodes if request.work.trainer else None) or 1


def render_workload(
    request: TrainJobRequest, template: RuntimeTemplate, config: RunaiBackendConfig, namespace: str, attempt: int = 0
) -> dict[str, Any]:
    metadata = manifest_common.build_metadata(
        request, namespace, attempt, {k8s_labels.RUNTIME: runtimes.dump_runtime(template.to_runtime())}
    )
    if config.project:
        metadata["labels"].setdefault("project", config.project)
    if config.cluster_id:
        metadata["annotations"].setdefault("clusterId", config.cluster_id)
    distributed = is_distributed(request, template)
    kind = DISTRIBUTED_WORKLOADS if distributed else TRAINING_WORKLOADS
    try:
        spec = _build_spec(apply_attempt_memory(request), template, config)
        specs = (
            _render_distributed_specs(request, template, spec)
            if distributed
            else {"spec": _set_active(request, spec).to_wire()}
        )
    except TrainerError:
        raise
    except ValueError as error:
        raise InvalidRequestError(f"RunaiSpec contradicts the request: {error}") from error
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **specs}


def render_template(
    name: str, spec: TrainingWorkloadSpec, namespace: str, framework: str | None = None
) -> dict[str, Any]:
    """Render a template: a workload that never runs and from which others inherit."""
    spec = TrainingWorkloadSpec(name=name, usage="Template").merge_over(spec)
    labels = {
        k8s_labels.MANAGED_BY: k8s_labels.MANAGER,
        **({runtimes.FRAMEWORK_LABEL: framework} if framework else {}),
    }
    return {
        "apiVersion": TRAINING_WORKLOADS.api_version,
        "kind": TRAINING_WORKLOADS.kind,
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": spec.to_wire(),
    }


def _build_spec(
    request: TrainJobRequest, template: RuntimeTemplate, config: RunaiBackendConfig
) -> TrainingWorkloadSpec:
    """Merge the fields of the runtime, of the request and of RunaiSpec; later ones take precedence."""
    labels = {JOB_LABEL: request.require_name()}
    fields: dict[str, Any] = {
        "name": request.require_name(),
        "usage": "Submit",
        "labels": labels,
        "auto_deletion_time_after_completion_seconds": request.policy.delete_after_seconds,
        "pvcs": _build_claims(request) or None,
    }
    if config.cluster_id:
        fields["annotations"] = {"clusterId": config.cluster_id}
    if template.spec is None or template.spec.backoff_limit is None:
        # Retries are the decision of the orchestrator.
        fields["backoff_limit"] = 0
    if request.work.trainer is not None:
        fields |= _build_trainer_fields(request, request.work.trainer, template)
    request_spec = TrainingWorkloadSpec(**{name: value for name, value in fields.items() if value is not None})
    option_spec = TrainingWorkloadSpec(**(get_runai_fields(request).spec))
    base_spec = _build_base_spec(template, inherit=not is_distributed(request, template))
    spec = option_spec.merge_over(request_spec.merge_over(base_spec))
    # The backend finds pods by this label, so RunaiSpec cannot override it.
    return TrainingWorkloadSpec(labels=labels).merge_over(spec)


def _build_base_spec(template: RuntimeTemplate, inherit: bool) -> TrainingWorkloadSpec:
    if template.spec is not None and inherit:
        return TrainingWorkloadSpec(base_workload=template.name)
    if template.spec is not None:
        own_fields = dict.fromkeys(("name", "name_prefix", "usage", "user_id", "ingress_url"))
        return template.spec.model_copy(update=own_fields)
    return TrainingWorkloadSpec(image=template.image)


def _set_active(request: TrainJobRequest, spec: TrainingWorkloadSpec) -> TrainingWorkloadSpec:
    return TrainingWorkloadSpec(active=not request.policy.suspend).merge_over(spec)


def _render_distributed_specs(
    request: TrainJobRequest, template: RuntimeTemplate, spec: TrainingWorkloadSpec
) -> dict[str, Any]:
    """Render `spec` of the workers and `masterSpec`: the first node of a PyTorchJob, the launcher of an MPIJob."""
    mpi = template.policy == "mpi"
    nodes = get_num_nodes(request)
    master = spec
    workers = TrainingWorkloadSpec(labels={ROLE_LABEL: "node" if mpi else "worker"}).merge_over(spec)
    if mpi:
        # Only the launcher runs the command; the MPI operator sets that of the workers.
        workers = _drop_fields(workers, "command", "arguments")
        master = _drop_fields(spec, *_GPU_FIELDS)
        if workers.slots_per_worker is None and request.work.trainer is not None:
            slots = _get_num_processes(request, request.work.trainer, template)
            workers = TrainingWorkloadSpec(slots_per_worker=slots).merge_over(workers)
    master = TrainingWorkloadSpec(labels={ROLE_LABEL: "launcher" if mpi else "master"}).merge_over(master)
    master_option_spec = TrainingWorkloadSpec(**(get_runai_fields(request).master))
    return {
        "spec": {
            **_set_active(request, workers).to_wire(),
            "jobType": "MPIJob" if mpi else "PyTorchJob",
            "workers": {"value": nodes if mpi else nodes - 1},
        },
        "masterSpec": master_option_spec.merge_over(master).to_wire(),
    }


def _drop_fields(spec: TrainingWorkloadSpec, *names: str) -> TrainingWorkloadSpec:
    return TrainingWorkloadSpec(**{name: value for name, value in spec if name not in names})


def _build_trainer_fields(
    request: TrainJobRequest, trainer: TrainerRequest, template: RuntimeTemplate
) -> dict[str, Any]:
    env = _build_env(request, trainer, template)
    return {
        **_build_resource_fields(trainer),
        **_render_command(request, trainer, template, env),
        "environment": env,
        **({"image": trainer.image} if trainer.image else {}),
    }


def _build_resource_fields(trainer: TrainerRequest) -> dict[str, Any]:
    """Build the resource fields of a node. Guarantees and limits are equal where Run:ai has both."""
    per_node = trainer.resources_per_node or {}
    fields: dict[str, Any] = {}
    for name in ("cpu", "memory"):
        if name in per_node:
            fields |= {name: per_node[name], f"{name}_limit": per_node[name]}
    if per_node.get(resources.GPU):
        fields["gpu"] = per_node[resources.GPU]
    slices = [name for name in per_node if name.startswith(MIG_PREFIX)]
    if slices:
        fields["mig_profile"] = slices[0].removeprefix(MIG_PREFIX)
    extended = {name: amount for name, amount in per_node.items() if name not in (*_FIELD_RESOURCES, *slices)}
    return {**fields, "extended_resources": extended} if extended else fields


def _get_num_processes(request: TrainJobRequest, trainer: TrainerRequest, template: RuntimeTemplate) -> int:
    """Return the number of processes of a node: one for each GPU; one for a fraction of a GPU or without a GPU."""
    if trainer.num_proc_per_node:
        return trainer.num_proc_per_node
    option_fields = get_runai_fields(request).spec
    template_gpu = template.spec.gpu if template.spec else None
    gpus = option_fields.get("gpu") or _build_resource_fields(trainer).get("gpu") or template_gpu or 1
    return max(1, int(resources.parse_quantity(gpus)))


def _build_env(request: TrainJobRequest, trainer: TrainerRequest, template: RuntimeTemplate) -> dict[str, Any]:
    env = manifest_common.build_trainer_env(request)
    if trainer.code is not None:
        env[node_env.NODES] = str(get_num_nodes(request))
        if template.policy == "torch":
            env[_NUM_PROCESSES_VARIABLE] = str(_get_num_processes(request, trainer, template))
    return {
        name: value if isinstance(value, SecretRef) else manifest_common.escape_variable_references(value)
        for name, value in sorted(env.items())
    }


def _render_command(
    request: TrainJobRequest, trainer: TrainerRequest, template: RuntimeTemplate, env: dict[str, Any]
) -> dict[str, str]:
    """Render `command` and `arguments`, quoted because Run:ai splits them as a shell does; absent for the image's."""
    if trainer.program is not None:
        command, args = _build_recipe_command(request, trainer, template)
    elif trainer.code is None:
        # Not escaped: a user who writes a container command can use Kubernetes' $(NAME).
        command, args = list(trainer.command or ()), list(trainer.args or ())
    else:
        launcher = _LAUNCHERS.get(template.policy, "python")
        command, args = manifest_common.render_function(request, trainer, trainer.code, launcher, sorted(env))
    fields = {"command": command, "arguments": args}
    return {name: shlex.join(words) for name, words in fields.items() if words}


def _build_recipe_command(
    request: TrainJobRequest, trainer: TrainerRequest, template: RuntimeTemplate
) -> tuple[list[str], list[str]]:
    """Build the torchtune command that the Trainer controller builds for one node.

    https://github.com/kubeflow/trainer/blob/master/pkg/runtime/framework/plugins/torch/torchtune.go
    """
    dataset = getattr(request.work.initializer, "dataset", None)
    args = TorchTuneConfig.to_args(trainer.config or {}, dataset.storage_uri if dataset else None)
    processes = _get_num_processes(request, trainer, template)
    lora = _get_lora_variant(args)
    device = "single_device" if processes == 1 else "distributed"
    recipe = f"{'lora' if lora else 'full'}_finetune_{device}"
    model = MODELS[template.name]
    config = f"{model.config}_{lora or 'full'}{'_single_device' if processes == 1 else ''}"
    launcher_args = [] if processes == 1 else ["--nproc_per_node", str(processes)]
    command = [*TorchTuneConfig.command, *launcher_args, recipe, "--config", config]
    return command, [manifest_common.escape_variable_references(arg) for arg in (*model.args, *args)]


def _get_lora_variant(args: Sequence[str]) -> str:
    """Return ``lora`` or ``qlora``; an empty string for a full fine-tuning."""
    if not any(arg.startswith("model.lora_attn_modules") for arg in args):
        return ""
    quantized = "model.quantize_base=True" in args and "model.use_dora=True" not in args
    return "qlora" if quantized else "lora"


def _build_claims(request: TrainJobRequest) -> dict[str, VolumeClaim]:
    """Build the volume claims of the sources.

    Run:ai mounts a claim without a subPath. A claim that has a folder for the role is mounted at /workspace, otherwise
    at the folder of the role.
    """
    claims: dict[str, VolumeClaim] = {}
    for role, source in request.initializer_sources():
        name, _, path = source.storage_uri.removeprefix(manifest_common.PVC_SCHEME).partition("/")
        folder = path.strip("/")
        if folder not in ("", role):
            raise UnsupportedError(
                f"initializer.{role}: Run:ai cannot mount the folder {folder!r} of a claim; move it to "
                f"{manifest_common.PVC_SCHEME}{name}/{role}, or use a claim that contains only the {role} "
                f"({manifest_common.PVC_SCHEME}{name})"
            )
        mount_path = _WORKSPACE_PATH if folder else manifest_common.INITIALIZER_PATHS[role]
        claim = VolumeClaim(claim_name=name, existing_pvc=True, path=mount_path, read_only=not folder)
        conflict = next((each for each in claims.values() if each.path == mount_path and each != claim), None)
        if conflict is not None:
            raise UnsupportedError(
                f"initializer: claims {conflict.claim_name!r} and {name!r} cannot both be mounted at "
                f"{_WORKSPACE_PATH}; put dataset and model in one claim, or each in a claim that contains nothing else"
            )
        claims[f"trainjob-{'workspace' if folder else role}"] = claim
    for volume in manifest_common.build_checkpoints_patch(request).get("volumes", ()):
        name = volume["persistentVolumeClaim"]["claimName"]
        claims[volume["name"]] = VolumeClaim(claim_name=name, existing_pvc=True, path=checkpoint_location.MOUNT_PATH)
    return claims
