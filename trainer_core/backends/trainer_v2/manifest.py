"""Rendering of a TrainJob manifest from a request, its runtime and the server's schema. Pure.

`validation` has refused what the runtime cannot do; `schema_compat.check_spec` refuses here what the cluster's version
of Trainer cannot express.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from trainer_core.backends.trainer_v2 import distributed, schema_compat
from trainer_core.backends.trainer_v2.schema_compat import TrainJobSchema
from trainer_core.k8s import labels, manifest_common, resources, runtimes
from trainer_core.lifecycle.attempt_memory import apply_attempt_memory
from trainer_core.model.patches import merge_patches
from trainer_core.model.recipe import find_recipe
from trainer_core.model.request import PATCH_MANAGER, TrainerRequest, TrainJobRequest
from trainer_core.node import env as node_env
from trainer_core.packaging.argv_payload import Launcher

CACHE_SCHEME = "cache://"
#: Volume that initializers and nodes share; admission requires a mount of this name.
INITIALIZER_VOLUME = "initializer"
_WORKSPACE_PATH = "/workspace"
#: Default of `terminationGracePeriodSeconds` of a pod.
_DEFAULT_GRACE = 30
#: Launcher of a training function, by policy of the runtime.
_LAUNCHERS: dict[str | None, Launcher] = {"torch": "torchrun", "mpi": "mpirun"}


def render_trainjob(
    request: TrainJobRequest, runtime: Mapping[str, Any], schema: TrainJobSchema, namespace: str, attempt: int = 0
) -> dict[str, Any]:
    spec = {
        "runtimeRef": {
            "apiGroup": resources.TRAINJOBS.group,
            "kind": runtimes.get_kind(runtime).value,
            "name": runtimes.get_name(runtime),
        },
        **_render_initializer(request),
        # An empty trainer is not left out: without it the torch plugin does not set PET_NNODES and the like.
        "trainer": _render_trainer(apply_attempt_memory(request), runtime),
        **schema_compat.render_overrides(build_patches(request, runtime, schema), schema),
        **manifest_common.build_lifecycle_fields(request),
    }
    schema_compat.check_spec(spec, schema)
    return {
        "apiVersion": resources.TRAINJOBS.api_version,
        "kind": resources.TRAINJOBS.kind,
        "metadata": manifest_common.build_metadata(request, namespace, attempt, _build_annotations(request, runtime)),
        "spec": spec,
    }


def _build_annotations(request: TrainJobRequest, runtime: Mapping[str, Any]) -> dict[str, str]:
    annotations = {labels.RUNTIME: runtimes.dump_raw_runtime(runtime)}
    restarts = runtimes.describe_restart_limit(runtime)
    if restarts is None and request.policy.checkpoints is not None:
        restarts = "resumed from checkpoints"
    return {**annotations, labels.RESTARTS: restarts} if restarts else annotations


def build_patches(request: TrainJobRequest, runtime: Mapping[str, Any], schema: TrainJobSchema) -> list[dict[str, Any]]:
    """Build the `spec.runtimePatches` of a request.

    Each patch belongs to a manager. That of this library is merged from a DistributedConfig, the request's own
    RuntimePatch, and what checkpoints and sources need of the pods; later ones take precedence. With the jobs of
    ``trainingRuntimeSpec.template.spec`` by name, and the pod specs in them:

        DistributedConfig        {"node": {"nodeSelector": {"gpu": "a100"}}}
        RuntimePatch             {"node": {"nodeSelector": {"zone": "b"}, "affinity": {...}}}
        checkpoints on a claim   {"node": {"volumes": [{"name": "trainjob-checkpoints", ...}]}}
        → one patch              {"node": {"nodeSelector": {"gpu": "a100", "zone": "b"}, "affinity": {...}, …}}
    """
    own = next((patch for patch in request.work.patches if patch.get("manager") == PATCH_MANAGER), {})
    others = [dict(patch) for patch in request.work.patches if patch is not own]
    layers = (distributed.build_patch(request, runtime), own, _build_pod_patch(request, runtime, schema))
    merged: dict[str, Any] = functools.reduce(merge_patches, layers, {})
    return [*others, {"manager": PATCH_MANAGER, **merged}] if merged else others


def _render_initializer(request: TrainJobRequest) -> dict[str, Any]:
    initializers = {
        role: _drop_unset(
            storageUri=source.storage_uri, env=manifest_common.build_initializer_env(role, source, request) or None
        )
        for role, source in request.initializer_sources()
        if not source.storage_uri.startswith(manifest_common.PVC_SCHEME)
    }
    return {"initializer": initializers} if initializers else {}


def _render_trainer(request: TrainJobRequest, runtime: Mapping[str, Any]) -> dict[str, Any]:
    trainer, distributed_env = request.work.trainer, distributed.get_env(request)
    if trainer is None:
        return _drop_unset(env=distributed_env or None, resourcesPerNode=distributed.get_resources(request))
    policy = runtimes.get_ml_policy(runtime)
    env = manifest_common.build_trainer_env(request)
    if trainer.code is not None and policy is None:
        env[node_env.NODES] = str(trainer.num_nodes or runtimes.get_num_nodes(runtime))
    names = sorted({*env, *(entry["name"] for entry in distributed_env)})
    command, args = _render_command(request, trainer, policy, names)
    return _drop_unset(
        image=trainer.image,
        command=command,
        args=args,
        env=[*manifest_common.build_env(env), *distributed_env] or None,
        numNodes=trainer.num_nodes,
        numProcPerNode=trainer.num_proc_per_node,
        resourcesPerNode=_render_resources(trainer) or distributed.get_resources(request),
    )


def _render_resources(trainer: TrainerRequest) -> dict[str, Any] | None:
    per_node = dict(sorted((trainer.resources_per_node or {}).items()))
    return {"requests": per_node, "limits": dict(per_node)} if per_node else None


def _render_command(
    request: TrainJobRequest, trainer: TrainerRequest, policy: str | None, exported: list[str]
) -> tuple[list[str] | None, list[str] | None]:
    """Render command and args; None keeps those of the runtime."""
    if trainer.program is not None:
        dataset, recipe = getattr(request.work.initializer, "dataset", None), find_recipe(trainer.program)
        args = recipe.to_args(trainer.config or {}, dataset.storage_uri if dataset else None)
        return list(recipe.command), [manifest_common.escape_variable_references(arg) for arg in args]
    if trainer.kind == "container" or trainer.code is None:
        # Not escaped: a user who writes a container command can use Kubernetes' $(NAME).
        return (
            None if trainer.command is None else list(trainer.command),
            None if trainer.args is None else list(trainer.args),
        )
    return manifest_common.render_function(request, trainer, trainer.code, _LAUNCHERS.get(policy, "python"), exported)


def _build_pod_patch(request: TrainJobRequest, runtime: Mapping[str, Any], schema: TrainJobSchema) -> dict[str, Any]:
    """Build the changes to pods: claim and grace of checkpoints, claims of pvc:// sources, mount for cache://."""
    pods: dict[str, dict[str, Any]] = {}
    for job in distributed.list_node_jobs(runtime):
        patches = [
            manifest_common.build_pvc_patch(role, source.storage_uri)
            for role, source in request.initializer_sources()
            if source.storage_uri.startswith(manifest_common.PVC_SCHEME)
        ]
        if request.policy.checkpoints is not None:
            grace = _build_grace(request.policy.checkpoints.grace, runtime, job)
            patches = [manifest_common.build_checkpoints_patch(request), grace, *patches]
        pods[job] = functools.reduce(merge_patches, patches, {})
    if schema.requires_initializer_mount and any(
        source.storage_uri.startswith(CACHE_SCHEME) for _, source in request.initializer_sources()
    ):
        pods.update(_build_cache_mount(runtime))
    jobs = [{"name": name, "template": {"spec": {"template": {"spec": spec}}}} for name, spec in pods.items() if spec]
    return {"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}} if jobs else {}


def _build_grace(grace: int, runtime: Mapping[str, Any], job: str) -> dict[str, Any]:
    """Build the change of `terminationGracePeriodSeconds`, if any; Trainer before 2.3 has no field for it."""
    pod = runtimes.get_pod_spec(runtimes.find_replicated_job(runtime, job) or {})
    same = grace == pod.get("terminationGracePeriodSeconds", _DEFAULT_GRACE)
    return {} if same else {"terminationGracePeriodSeconds": grace}


def _build_cache_mount(runtime: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Build the mount that Trainer's own cache runtime lacks, although its admission requires it since 2.3."""
    name = runtimes.DATASET_INITIALIZER
    job = runtimes.find_replicated_job(runtime, name)
    container = runtimes.find_container(job, name) if job else None
    if container is None or any(m.get("name") == INITIALIZER_VOLUME for m in container.get("volumeMounts") or ()):
        return {}
    mount = {"name": INITIALIZER_VOLUME, "mountPath": _WORKSPACE_PATH}
    pod: dict[str, Any] = {"containers": [{"name": name, "volumeMounts": [mount]}]}
    if INITIALIZER_VOLUME not in runtimes.list_volumes(runtime, job or {}):
        pod["volumes"] = [{"name": INITIALIZER_VOLUME, "emptyDir": {}}]
    return {name: pod}


def _drop_unset(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
