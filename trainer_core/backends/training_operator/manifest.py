"""Rendering of a PyTorchJob from a request that `validation` has checked, and its runtime. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from trainer_core.backends.training_operator import runtime_patches
from trainer_core.backends.training_operator.config import TrainingOperatorBackendConfig
from trainer_core.backends.training_operator.options import get_pytorch_job
from trainer_core.backends.training_operator.parse import MAIN_CONTAINER, PYTORCH_JOBS
from trainer_core.base import resources
from trainer_core.k8s import labels, manifest_common, runtimes
from trainer_core.lifecycle.attempt_memory import apply_attempt_memory
from trainer_core.model.patches import merge_patches
from trainer_core.model.request import Distributed, InitializerSource, TrainerRequest, TrainJobRequest
from trainer_core.packaging.argv_payload import Launcher

#: Volume that the init containers and the training container of a pod share.
_INITIALIZER_VOLUME = "initializer"
_WORKSPACE_PATH = "/workspace"


def render_pytorch_job(
    request: TrainJobRequest,
    runtime: Mapping[str, Any],
    config: TrainingOperatorBackendConfig,
    namespace: str,
    attempt: int = 0,
) -> dict[str, Any]:
    pod_template = _render_pod_template(apply_attempt_memory(request), runtime, config)
    spec = {
        "nprocPerNode": _render_num_processes(request, runtime, pod_template),
        "pytorchReplicaSpecs": _render_replica_specs(request, runtime, pod_template),
    }
    for name, fields in (
        ("runPolicy", _render_run_policy(request)),
        ("elasticPolicy", dict(_get_elastic_policy(request))),
    ):
        if fields:
            spec[name] = fields
    return {
        "apiVersion": PYTORCH_JOBS.api_version,
        "kind": PYTORCH_JOBS.kind,
        "metadata": manifest_common.build_metadata(
            request, namespace, attempt, {labels.RUNTIME: runtimes.dump_raw_runtime(runtime)}
        ),
        "spec": spec,
    }


def get_num_nodes(request: TrainJobRequest, runtime: Mapping[str, Any]) -> int:
    """Return the number of nodes of a request, by default that of the runtime."""
    return (request.work.trainer.num_nodes if request.work.trainer else None) or runtimes.get_num_nodes(runtime)


def _render_replica_specs(
    request: TrainJobRequest, runtime: Mapping[str, Any], pod_template: dict[str, Any]
) -> dict[str, Any]:
    """Render one master and the other nodes as workers; the nodes of an elastic job are all workers."""
    nodes = get_num_nodes(request, runtime)
    replicas = {"Worker": nodes} if _get_elastic_policy(request) else {"Master": 1, "Worker": nodes - 1}
    restart_policy = _get_restart_policy(request)
    return {
        name: {"replicas": count, "restartPolicy": restart_policy, "template": copy.deepcopy(pod_template)}
        for name, count in replicas.items()
        if count
    }


def _get_restart_policy(request: TrainJobRequest) -> str:
    if policy := get_pytorch_job(request).restart_policy:
        return policy
    # Without a limit a failure of the training fails the job: retries are the decision of the orchestrator.
    has_restarts = _get_elastic_policy(request) or _render_run_policy(request).get("backoffLimit")
    return "OnFailure" if has_restarts else "Never"


def _render_run_policy(request: TrainJobRequest) -> dict[str, Any]:
    # No cleanPodPolicy: the job succeeds with its master, while the workers may still be running.
    policy: dict[str, Any] = manifest_common.build_lifecycle_fields(request)
    if request.policy.delete_after_seconds is not None:
        policy["ttlSecondsAfterFinished"] = request.policy.delete_after_seconds
    if queue := runtime_patches.get_volcano_queue(request.work.patches):
        policy["schedulingPolicy"] = {"queue": queue}
    for option in (request.work.distributed, get_pytorch_job(request)):
        policy = merge_patches(policy, option.run_policy if option else {})
    return policy


def _get_elastic_policy(request: TrainJobRequest) -> Mapping[str, Any]:
    return get_pytorch_job(request).elastic_policy


def _render_num_processes(request: TrainJobRequest, runtime: Mapping[str, Any], pod_template: Mapping[str, Any]) -> str:
    """Render `nprocPerNode` as Trainer does: one process per GPU, or per CPU without GPUs."""
    if runtimes.get_ml_policy(runtime) != "torch":
        return "1"
    requested = request.work.trainer.num_proc_per_node if request.work.trainer else None
    runtime_default = runtime["spec"]["mlPolicy"]["torch"].get("numProcPerNode")
    if requested or runtime_default:
        return str(requested or runtime_default)
    containers = pod_template["spec"]["containers"]
    container = next(container for container in containers if container["name"] == MAIN_CONTAINER)
    per_node = container.get("resources") or {}
    amounts = {**(per_node.get("requests") or {}), **(per_node.get("limits") or {})}
    if any("gpu" in name for name in amounts):
        return "auto"
    return str(max(1, int(resources.parse_quantity(amounts.get("cpu", 1)))))


def _render_pod_template(
    request: TrainJobRequest, runtime: Mapping[str, Any], config: TrainingOperatorBackendConfig
) -> dict[str, Any]:
    """Render the pod template: runtime, patches, initializers, trainer, DistributedConfig; the later ones win."""
    job = runtimes.find_trainer_job(runtime) or {}
    pod: dict[str, Any] = copy.deepcopy(job["template"]["spec"]["template"])
    for patch in runtime_patches.list_pod_patches(request.work.patches, runtime):
        pod = merge_patches(pod, patch)
    pod = _add_sources(pod, request, runtime, config)
    if request.policy.checkpoints is not None:
        grace = {"terminationGracePeriodSeconds": request.policy.checkpoints.grace}
        pod = merge_patches(pod, {"spec": {**manifest_common.build_checkpoints_patch(request), **grace}})
    for container in pod["spec"]["containers"]:
        if container["name"] == runtimes.NODE:
            _apply_trainer(container, request, runtimes.get_ml_policy(runtime))
            container["name"] = MAIN_CONTAINER
    if request.work.distributed is not None:
        pod = _apply_distributed(pod, request.work.distributed)
    # The operator uses the restartPolicy of the replica, and warns about one in the pod template.
    pod["spec"].pop("restartPolicy", None)
    return pod


def _apply_trainer(container: dict[str, Any], request: TrainJobRequest, policy: str | None) -> None:
    trainer = request.work.trainer
    if trainer is not None:
        command, args = _render_command(request, trainer, policy)
        fields = {"image": trainer.image, "command": command, "args": args}
        container.update({name: value for name, value in fields.items() if value is not None})
        per_node = trainer.resources_per_node or {}
        _merge_resources(container, per_node, per_node)
    env = manifest_common.build_env(manifest_common.build_trainer_env(request))
    container["env"] = _merge_named(container.get("env") or [], env)


def _render_command(
    request: TrainJobRequest, trainer: TrainerRequest, policy: str | None
) -> tuple[list[str] | None, list[str] | None]:
    """Render command and args; None keeps those of the runtime."""
    if trainer.code is None:
        # Not escaped: a user who writes a container command can use Kubernetes' $(NAME).
        return (
            None if trainer.command is None else list(trainer.command),
            None if trainer.args is None else list(trainer.args),
        )
    launcher: Launcher = "torchrun" if policy == "torch" else "python"
    return manifest_common.render_function(request, trainer, trainer.code, launcher)


def _apply_distributed(pod: dict[str, Any], config: Distributed) -> dict[str, Any]:
    """Merge a DistributedConfig over a pod template and each of its containers."""
    for container in pod["spec"]["containers"]:
        for key, entries in (("env", config.env), ("envFrom", config.env_from)):
            if entries:
                container[key] = _merge_named(container.get(key) or [], [dict(entry) for entry in entries])
        _merge_resources(container, config.requests, config.limits)
    spec = {
        "nodeSelector": config.node_selector,
        "affinity": config.affinity,
        "tolerations": [dict(toleration) for toleration in config.tolerations],
    }
    metadata = {"labels": config.labels, "annotations": config.annotations}
    return merge_patches(pod, {"metadata": _drop_empty(metadata), "spec": _drop_empty(spec)})


def _add_sources(
    pod: dict[str, Any], request: TrainJobRequest, runtime: Mapping[str, Any], config: TrainingOperatorBackendConfig
) -> dict[str, Any]:
    """Mount the volume claims of a request, and add init containers that download the other sources in every pod."""
    for role, source in request.initializer_sources():
        if source.storage_uri.startswith(manifest_common.PVC_SCHEME):
            pod = merge_patches(pod, {"spec": manifest_common.build_pvc_patch(role, source.storage_uri)})
    initializers = [
        _render_initializer(role, source, request, runtime, config) for role, source in _list_downloads(request)
    ]
    if not initializers:
        return pod
    mount = {"name": _INITIALIZER_VOLUME, "mountPath": _WORKSPACE_PATH}
    patch = {
        "initContainers": [{**container, "volumeMounts": [mount]} for container in initializers],
        "containers": [{"name": runtimes.NODE, "volumeMounts": [mount]}],
    }
    if not any(volume.get("name") == _INITIALIZER_VOLUME for volume in pod["spec"].get("volumes") or ()):
        patch["volumes"] = [{"name": _INITIALIZER_VOLUME, "emptyDir": {}}]
    return merge_patches(pod, {"spec": patch})


def _list_downloads(request: TrainJobRequest) -> Iterator[tuple[str, InitializerSource]]:
    for role, source in request.initializer_sources():
        if not source.storage_uri.startswith(manifest_common.PVC_SCHEME):
            yield role, source


def _render_initializer(
    role: str,
    source: InitializerSource,
    request: TrainJobRequest,
    runtime: Mapping[str, Any],
    config: TrainingOperatorBackendConfig,
) -> dict[str, Any]:
    """Render an init container from the initializer step of the runtime, or from the image of the configuration."""
    name = f"{role}-initializer"
    job = runtimes.find_ancestor_job(runtime, name)
    step = (runtimes.find_container(job, name) if job else None) or {}
    images = {"dataset": config.dataset_initializer_image, "model": config.model_initializer_image}
    uri = {"name": "STORAGE_URI", "value": source.storage_uri}
    env = [uri, *manifest_common.build_initializer_env(role, source, request)]
    return {
        **{key: step[key] for key in ("command", "args", "envFrom", "resources") if key in step},
        "name": name,
        "image": step.get("image") or images[role],
        "env": _merge_named(step.get("env") or [], env),
        # The images write no termination message; the end of the log has the error.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _merge_resources(container: dict[str, Any], requests: Mapping[str, Any], limits: Mapping[str, Any]) -> None:
    fields = {"requests": dict(sorted(requests.items())), "limits": dict(sorted(limits.items()))}
    if any(fields.values()):
        container["resources"] = merge_patches(container.get("resources") or {}, _drop_empty(fields))


def _merge_named(old: list[Any], new: list[Any]) -> list[Any]:
    """Merge two lists; of entries with the same name the last one wins, entries without a name come last."""
    named = {entry["name"]: entry for entry in (*old, *new) if "name" in entry}
    return [*named.values(), *(entry for entry in (*old, *new) if "name" not in entry)]


def _drop_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}
