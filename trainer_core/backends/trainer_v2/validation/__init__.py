"""Validation of a request against its runtime and the cluster's Trainer version, before anything is created. Pure.

The server's admission does not catch every mistake: values for which the runtime has no place are dropped silently, and
names that are too long fail only when pods are created.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_core.backends.trainer_v2 import SCHEMES, distributed
from trainer_core.backends.trainer_v2.manifest import CACHE_SCHEME, INITIALIZER_VOLUME, build_patches
from trainer_core.backends.trainer_v2.schema_compat import TrainJobSchema
from trainer_core.backends.trainer_v2.validation import runtime_patches, torchtune
from trainer_core.base.errors import UnsupportedError
from trainer_core.base.naming import MAX_LABEL_LENGTH
from trainer_core.base.validation import check_reserved_env
from trainer_core.k8s import runtimes
from trainer_core.k8s.manifest_common import PVC_SCHEME, build_trainer_env, check_pvc_uri, check_reserved_metadata
from trainer_core.model.request import InitializerSource, TrainerRequest, TrainJobRequest
from trainer_core.model.storage_schemes import check_scheme

#: Length of the suffix ``-xxxxx`` that the Job controller appends to the name of a pod.
_POD_SUFFIX_LENGTH = 6
_TRAINERS = {"custom": "CustomTrainer", "container": "CustomTrainerContainer", "builtin": "BuiltinTrainer"}
#: Policies whose rendezvous host is ``<job>-node-0-0.<job>``, whatever the runtime's replicated job is called.
_RENDEZVOUS_POLICIES = ("torch", "jax", "xgboost", "flux")


def check_request(request: TrainJobRequest, runtime: Mapping[str, Any], schema: TrainJobSchema, namespace: str) -> None:
    """Check a request for what the server would reject, fail to run later, or drop silently."""
    check_reserved_metadata(request)
    request.check_options("kubernetes")
    _check_namespace(runtime, namespace)
    _check_deadline(request, schema)
    if request.work.workspace is not None:
        raise UnsupportedError("workspace is supported only by `initialize`; remove it")
    distributed.check_distributed(request, runtime)
    request = distributed.copy_resources_to_trainer(request)
    if request.work.trainer is not None:
        _check_trainer_kind(request.work.trainer, runtime)
        _check_num_processes(request.work.trainer, runtime)
    if request.work.trainer is not None or request.work.distributed is not None:
        _check_trainer_job(request, runtime, schema)
        _check_env(request, runtime)
    _check_num_nodes(request.work.trainer, runtime)
    _check_pod_names(request.work.trainer, runtime, request.require_name())
    patches = build_patches(request, runtime, schema)
    for role in ("dataset", "model"):
        _check_initializer_step(role, request, runtime, schema, patches)
    for role, source in request.initializer_sources():
        _check_source(role, source, runtime)
    runtime_patches.check_patches(patches, runtime)
    torchtune.check_recipe(request, runtime)


def list_warnings(request: TrainJobRequest, runtime: Mapping[str, Any]) -> list[str]:
    """Return warnings about a valid request, one line each."""
    warnings = []
    name = runtimes.get_name(runtime)
    if runtimes.is_deprecated(runtime):
        warnings.append(f"runtime {name!r} is deprecated; ask its administrator for the replacement")
    mpi = (runtime["spec"].get("mlPolicy") or {}).get("mpi") or {}
    if mpi.get("runLauncherAsNode") and request.work.trainer and request.work.trainer.num_nodes == 1:
        warnings.append(f"num_nodes=1: runtime {name!r} runs training on its launcher and on one more node")
    return warnings


def _check_namespace(runtime: Mapping[str, Any], namespace: str) -> None:
    runtime_namespace = runtime["metadata"].get("namespace")
    if runtime_namespace and runtime_namespace != namespace:
        raise UnsupportedError(
            f"runtime {runtimes.get_name(runtime)!r} is a TrainingRuntime of namespace {runtime_namespace!r}, but the "
            f"job is submitted to {namespace!r}; submit it to {runtime_namespace!r}, or use a ClusterTrainingRuntime"
        )


def _check_deadline(request: TrainJobRequest, schema: TrainJobSchema) -> None:
    if request.policy.active_deadline_seconds is not None and not schema.supports_active_deadline:
        raise UnsupportedError(
            "active_deadline_seconds needs Trainer 2.2 or later, and this cluster has an older version; remove it, and "
            "cancel the job when a wait with a timeout ends"
        )


def _check_trainer_kind(trainer: TrainerRequest, runtime: Mapping[str, Any]) -> None:
    name, framework = runtimes.get_name(runtime), runtimes.get_framework(runtime)
    if trainer.kind == "container" and trainer.image is None:
        return  # The program of the runtime, with another command or other arguments.
    program = trainer.program
    if (framework != program) if program else runtimes.get_program(framework):
        remedy = f"a runtime of {program}" if program else "a runtime such as torch-distributed, or a BuiltinTrainer"
        raise UnsupportedError(
            f"{_TRAINERS[trainer.kind]} can't be used with {name} runtime, whose framework is {framework}; use {remedy}"
        )
    if trainer.kind == "custom" and runtimes.get_ml_policy(runtime) == "flux":
        # The controller joins command and args with spaces and runs them in a shell.
        raise UnsupportedError(
            f"CustomTrainer can't be used with {name} runtime: Flux splits commands at spaces; use a "
            "CustomTrainerContainer whose command has no spaces in its words"
        )


def _check_trainer_job(request: TrainJobRequest, runtime: Mapping[str, Any], schema: TrainJobSchema) -> None:
    """Check that the runtime has a place for the trainer's values; otherwise the controller drops them."""
    name = runtimes.get_name(runtime)
    if runtimes.find_trainer_job(runtime) is None:
        raise UnsupportedError(
            f"runtime {name!r} has no replicated job with the label {runtimes.ANCESTOR_LABEL}={runtimes.TRAINER}, so "
            "the trainer's image, command and env would be dropped; ask its administrator to label the training job"
        )
    if runtimes.find_trainer_container(runtime) is None:
        raise UnsupportedError(
            f"runtime {name!r} has no container {runtimes.NODE!r} in its trainer job, so the trainer's image, command "
            f"and env would be dropped; ask its administrator to name the container {runtimes.NODE!r}"
        )
    # Only Trainer 2.3 drops resources if the runtime has no mlPolicy.
    resources = (request.work.trainer and request.work.trainer.resources_per_node) or distributed.get_resources(request)
    if resources and schema.supports_termination_grace_period and runtime["spec"].get("mlPolicy") is None:
        raise UnsupportedError(
            f"resources_per_node: runtime {name!r} has no mlPolicy, so Trainer 2.3 would drop them; ask its "
            "administrator for mlPolicy: {numNodes: 1}, or remove them"
        )


def _check_env(request: TrainJobRequest, runtime: Mapping[str, Any]) -> None:
    policy = runtimes.get_ml_policy(runtime)
    names = {*build_trainer_env(request), *(entry["name"] for entry in distributed.get_env(request))}
    reserved = runtimes.RESERVED_ENV.get(policy or "", ())
    check_reserved_env("trainer.env", names, reserved.__contains__, f"the {policy} policy of the runtime")


def _check_num_processes(trainer: TrainerRequest, runtime: Mapping[str, Any]) -> None:
    """Check the number of processes per node, which only the launchers of torch, MPI and Flux use."""
    requested, policy = trainer.num_proc_per_node, runtimes.get_ml_policy(runtime)
    if requested is None or policy in ("torch", "mpi", "flux"):
        return
    actual = max(1, torchtune.count_gpus(trainer, runtime)) if policy == "xgboost" else 1
    if requested != actual:
        raise UnsupportedError(
            f"num_proc_per_node={requested}: runtime {runtimes.get_name(runtime)!r} ({policy or 'no'} policy) always "
            f"starts {actual} on each node; remove it, or use a torch or mpi runtime"
        )


def _check_num_nodes(trainer: TrainerRequest | None, runtime: Mapping[str, Any]) -> None:
    policy, requested = runtimes.get_ml_policy(runtime), trainer.num_nodes if trainer else None
    if policy == "flux" and requested is None:
        raise UnsupportedError(f"num_nodes must be set with runtime {runtimes.get_name(runtime)!r}: Flux requires it")
    if policy == "mpi":
        _check_mpi_jobs(requested, runtime)
    is_multi_node = (requested or runtimes.get_num_nodes(runtime)) > 1
    if policy in _RENDEZVOUS_POLICIES and (is_multi_node or (trainer is not None and trainer.kind == "custom")):
        _check_rendezvous(runtime, policy)


def _check_mpi_jobs(requested: int | None, runtime: Mapping[str, Any]) -> None:
    missing = [name for name in ("launcher", runtimes.NODE) if runtimes.find_replicated_job(runtime, name) is None]
    if (requested or runtimes.get_num_nodes(runtime)) > 1 and missing:
        raise UnsupportedError(
            f"num_nodes must be 1: runtime {runtimes.get_name(runtime)!r} lacks replicated job {' and '.join(missing)}"
            ", which MPI needs for several nodes; ask its administrator to add it"
        )


def _check_rendezvous(runtime: Mapping[str, Any], policy: str | None) -> None:
    """Check that the rendezvous host exists: the first pod of the replicated job ``node`` in the job's subdomain."""
    trainer = runtimes.find_trainer_job(runtime) or {}
    network = runtime["spec"]["template"].get("spec", {}).get("network") or {}
    problem = None
    if trainer.get("name") != runtimes.NODE:
        problem = f"its trainer job is named {trainer.get('name')!r}, not {runtimes.NODE!r}"
    elif network.get("subdomain"):
        problem = f"its network.subdomain is {network['subdomain']!r}"
    elif network.get("enableDNSHostnames") is False:
        problem = "its network.enableDNSHostnames is false"
    if problem:
        raise UnsupportedError(
            f"runtime {runtimes.get_name(runtime)!r}: {problem}, so nodes cannot resolve the rendezvous host of the "
            f"{policy} policy; ask its administrator to change that"
        )


def _check_pod_names(trainer: TrainerRequest | None, runtime: Mapping[str, Any], name: str) -> None:
    """Check the length of pod names, which become label values: ``<job>-<replicated job>-<replica>-<index>-xxxxx``."""
    for job in runtimes.list_replicated_jobs(runtime):
        last = _count_pods(job, trainer, runtime) - 1
        suffix = f"-{job['name']}-{(job.get('replicas') or 1) - 1}-{last}"
        limit = MAX_LABEL_LENGTH - len(suffix) - _POD_SUFFIX_LENGTH
        if len(name) > limit:
            raise UnsupportedError(
                f"job name {name!r} has {len(name)} characters, so the pod name {name}{suffix}-xxxxx would exceed "
                f"{MAX_LABEL_LENGTH}; use at most {limit} with runtime {runtimes.get_name(runtime)!r}"
            )


def _count_pods(job: Mapping[str, Any], trainer: TrainerRequest | None, runtime: Mapping[str, Any]) -> int:
    is_mpi = runtimes.get_ml_policy(runtime) == "mpi"
    if job["name"] == (runtimes.NODE if is_mpi else (runtimes.find_trainer_job(runtime) or {}).get("name")):
        return (trainer.num_nodes if trainer else None) or runtimes.get_num_nodes(runtime)
    return int(job["template"].get("spec", {}).get("parallelism") or 1)


def _check_source(role: str, source: InitializerSource, runtime: Mapping[str, Any]) -> None:
    check_scheme(role, source.storage_uri, SCHEMES, "on a cluster")
    if source.storage_uri.startswith(PVC_SCHEME):
        check_pvc_uri(role, source.storage_uri)
        if runtimes.find_trainer_container(runtime) is None:
            raise UnsupportedError(
                f"initializer.{role}: runtime {runtimes.get_name(runtime)!r} has no trainer job with a container "
                f"{runtimes.NODE!r} to mount the volume in; use another runtime"
            )


def _check_initializer_step(
    role: str,
    request: TrainJobRequest,
    runtime: Mapping[str, Any],
    schema: TrainJobSchema,
    patches: list[dict[str, Any]],
) -> None:
    """Check that an initializer has its step in the runtime, and that a step without a default source gets one."""
    source = dict(request.initializer_sources()).get(role)
    step = f"{role}-initializer"
    if source is not None and not source.storage_uri.startswith((PVC_SCHEME, "file://")):
        _check_has_step(role, step, runtime)
        if schema.requires_initializer_mount and not source.storage_uri.startswith(CACHE_SCHEME):
            _check_mount(role, step, runtime, patches)
        return
    job = runtimes.find_ancestor_job(runtime, step)
    container = runtimes.find_container(job, step) if job else None
    if container is not None and not container.get("envFrom") and not _has_storage_uri(container):
        raise UnsupportedError(
            f"initializer.{role}: runtime {runtimes.get_name(runtime)!r} has a step {step!r} without a default source, "
            f"which would fail; add a {role} initializer, or use a runtime without that step"
        )


def _has_storage_uri(container: Mapping[str, Any]) -> bool:
    return any(entry.get("name") == "STORAGE_URI" for entry in container.get("env") or ())


def _check_has_step(role: str, step: str, runtime: Mapping[str, Any]) -> None:
    job = runtimes.find_replicated_job(runtime, step)
    missing = None
    if job is None:
        missing = f"no replicated job {step!r}"
    elif runtimes.find_container(job, step) is None:
        missing = f"no container {step!r} in its job of that name"
    elif runtimes.find_ancestor_job(runtime, step) is not job:
        missing = f"no label {runtimes.ANCESTOR_LABEL}={step} on its job {step!r}, so the source would be dropped"
    if missing:
        raise UnsupportedError(
            f"initializer.{role}: runtime {runtimes.get_name(runtime)!r} has {missing}; use a runtime with that step, "
            f"or run `initialize` first and use {PVC_SCHEME}<claim>/{role}"
        )


def _check_mount(role: str, step: str, runtime: Mapping[str, Any], patches: list[dict[str, Any]]) -> None:
    container = runtimes.find_container(runtimes.find_replicated_job(runtime, step) or {}, step) or {}
    mounts = [*(container.get("volumeMounts") or ()), *runtime_patches.list_volume_mounts(patches, step, step)]
    if not any(mount.get("name") == INITIALIZER_VOLUME for mount in mounts):
        raise UnsupportedError(
            f"initializer.{role}: container {step!r} of runtime {runtimes.get_name(runtime)!r} does not mount volume "
            f"{INITIALIZER_VOLUME!r} that it shares with the nodes; ask its administrator to add the mount"
        )
