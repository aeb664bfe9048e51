"""Reading TrainingRuntime and ClusterTrainingRuntime objects, as plain data. Pure functions without I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from trainer_core.base import resources
from trainer_core.k8s import labels, resources as k8s_resources
from trainer_core.model.backend_names import OWN_RECIPES
from trainer_core.model.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType

#: Label with the framework of a runtime.
FRAMEWORK_LABEL = "trainer.kubeflow.org/framework"
#: Label of a replicated job's template: the part of the TrainJob whose values the controller puts into it.
ANCESTOR_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
_SUPPORT_LABEL = "trainer.kubeflow.org/support"

TRAINER = "trainer"
DATASET_INITIALIZER = "dataset-initializer"
MODEL_INITIALIZER = "model-initializer"
#: Name of the training container, in any replicated job; also the prefix of the names of node steps.
NODE = "node"
#: Container that receives the TrainJob's values, by ancestor label.
CONTAINER_BY_ANCESTOR = {TRAINER: NODE, DATASET_INITIALIZER: DATASET_INITIALIZER, MODEL_INITIALIZER: MODEL_INITIALIZER}
#: Fields of `spec.mlPolicy` that configure how nodes find each other; a runtime has at most one of them.
ML_POLICIES = ("torch", "mpi", "jax", "xgboost", "flux")
#: Those with which the nodes wait for each other.
_RENDEZVOUS = ("torch", "jax", "xgboost")
#: Environment variables that the controller sets in the training container, by policy; other values are overwritten.
RESERVED_ENV: Mapping[str, tuple[str, ...]] = {
    "torch": ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
    "mpi": (
        "OMPI_MCA_orte_default_hostfile",
        "OMPI_MCA_plm_rsh_args",
        "OMPI_MCA_orte_keep_fqdn_hostnames",
        "OMPI_MCA_orte_set_default_slots",
    ),
    "jax": ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"),
    "xgboost": ("DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER"),
}

_MPIRUN = ("mpirun", "--hostfile", "/etc/mpi/hostfile")
_TORCHRUN = ("torchrun",)
_PYTHON = ("python3",)
_MIG_PREFIX = "nvidia.com/mig-"
_UNKNOWN = ("Unknown", "Unknown")


def dump_raw_runtime(raw: Mapping[str, Any]) -> str:
    """Parse a raw runtime and serialize it for an annotation; `load_runtime` reads it."""
    return dump_runtime(parse_runtime(raw))


def dump_runtime(runtime: Runtime) -> str:
    """Serialize a runtime for an annotation; `load_runtime` reads it."""
    text: bytes = _get_adapter().dump_json(runtime, exclude_none=True)
    return text.decode()


def load_runtime(annotations: Mapping[str, str]) -> Runtime | None:
    """Return the runtime that was recorded when the job was submitted; None if the annotation is missing."""
    try:
        runtime: Runtime = _get_adapter().validate_json(annotations.get(labels.RUNTIME, ""))
    except ValueError:
        return None
    return runtime


@cache
def _get_adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Runtime)


def parse_runtime(raw: Mapping[str, Any]) -> Runtime:
    container = find_trainer_container(raw) or {}
    device, device_count = get_device(container)
    framework = get_framework(raw)
    trainer = RuntimeTrainer(
        trainer_type=TrainerType.BUILTIN_TRAINER if get_program(framework) else TrainerType.CUSTOM_TRAINER,
        framework=framework,
        image=container.get("image", ""),
        num_nodes=get_num_nodes(raw),
        device=device,
        device_count=device_count,
        command=get_command(framework, get_ml_policy(raw)),
    )
    return Runtime(name=get_name(raw), trainer=trainer, kind=get_kind(raw), pretrained_model=_get_pretrained_model(raw))


def get_command(framework: str, policy: str | None) -> tuple[str, ...]:
    """Return the command with which a framework starts training code."""
    if policy == "mpi":
        return _MPIRUN
    return get_program(framework) or (_TORCHRUN if policy == "torch" else _PYTHON)


def get_program(framework: str) -> tuple[str, ...]:
    """Return the program of a recipe, which the runtimes of a framework run instead of functions; empty for others."""
    if framework not in OWN_RECIPES:
        return ()
    from trainer_core.model.recipe import find_recipe  # Only for these runtimes.

    recipe = find_recipe(framework)
    return () if recipe.runs_functions else recipe.command


def get_name(raw: Mapping[str, Any]) -> str:
    return str(raw["metadata"]["name"])


def get_kind(raw: Mapping[str, Any]) -> RuntimeKind:
    """Return the kind of a runtime; items of a list may lack it."""
    if "kind" in raw:
        return RuntimeKind(raw["kind"])
    namespaced = raw["metadata"].get("namespace")
    resource = k8s_resources.TRAINING_RUNTIMES if namespaced else k8s_resources.CLUSTER_TRAINING_RUNTIMES
    return RuntimeKind(resource.kind)


def get_ml_policy(raw: Mapping[str, Any]) -> str | None:
    """Return the policy in `spec.mlPolicy`, one of `ML_POLICIES`; None for independent nodes."""
    ml_policy = _get_spec(raw).get("mlPolicy") or {}
    return next((policy for policy in ML_POLICIES if ml_policy.get(policy) is not None), None)


def get_framework(raw: Mapping[str, Any]) -> str:
    """Return the framework of a runtime: its label, else its policy, else ``plain``."""
    runtime_labels = raw["metadata"].get("labels") or {}
    return runtime_labels.get(FRAMEWORK_LABEL) or get_ml_policy(raw) or "plain"


def is_deprecated(raw: Mapping[str, Any]) -> bool:
    """Return whether the support label of a runtime is ``deprecated``."""
    return (raw["metadata"].get("labels") or {}).get(_SUPPORT_LABEL) == "deprecated"


def get_num_nodes(raw: Mapping[str, Any]) -> int:
    """Return `spec.mlPolicy.numNodes`, the default number of nodes of a job."""
    return int((_get_spec(raw).get("mlPolicy") or {}).get("numNodes") or 1)


def list_replicated_jobs(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the replicated jobs of a runtime (`spec.template.spec.replicatedJobs`)."""
    jobs: list[dict[str, Any]] = _get_path(_get_spec(raw), "template", "spec").get("replicatedJobs") or []
    return jobs


def describe_restart_limit(raw: Mapping[str, Any]) -> str | None:
    """Return the limits of restarts that a runtime sets; None if it leaves them to the defaults."""
    limits = {"maxRestarts": _get_path(_get_spec(raw), "template", "spec", "failurePolicy").get("maxRestarts")}
    for job in list_replicated_jobs(raw):
        limits[f"{job.get('name')}.backoffLimit"] = _get_path(job, "template", "spec").get("backoffLimit")
    return ", ".join(f"{name}: {limit}" for name, limit in limits.items() if limit is not None) or None


def restarts_nodes_together(raw: Mapping[str, Any]) -> bool:
    """Return whether a runtime restarts all nodes or none if one ends; True where they do not wait for each other."""
    if get_ml_policy(raw) not in _RENDEZVOUS:
        return True
    job = _get_path(find_trainer_job(raw) or {}, "template", "spec")
    restarts = _get_path(_get_spec(raw), "template", "spec", "failurePolicy").get("maxRestarts")
    return restarts is not None and job.get("backoffLimit") == 0 and job.get("podReplacementPolicy") == "Failed"


def find_replicated_job(raw: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the replicated job of a name, None if the runtime has none."""
    return next((job for job in list_replicated_jobs(raw) if job.get("name") == name), None)


def find_ancestor_job(raw: Mapping[str, Any], ancestor: str) -> dict[str, Any] | None:
    """Return the replicated job with an ancestor label, None if the runtime has none."""
    return next((job for job in list_replicated_jobs(raw) if _get_ancestor(job) == ancestor), None)


def find_trainer_job(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the replicated job that receives the trainer's values, None if no job has the label."""
    return find_ancestor_job(raw, TRAINER)


def find_trainer_container(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the container that receives the trainer's values, None if the runtime has none."""
    job = find_trainer_job(raw)
    return find_container(job, NODE) if job else None


def list_further_images(raw: Mapping[str, Any]) -> list[str | None]:
    """Return the images of all containers except the trainer's, whose image a job can set, and initializers."""
    jobs = [
        job for job in list_replicated_jobs(raw) if _get_ancestor(job) not in (DATASET_INITIALIZER, MODEL_INITIALIZER)
    ]
    trainer = find_trainer_container(raw)
    pods = [get_pod_spec(job) for job in jobs]
    containers = [each for pod in pods for field in ("containers", "initContainers") for each in pod.get(field) or ()]
    return [each.get("image") for each in containers if each is not trainer]


def get_pod_spec(replicated_job: Mapping[str, Any]) -> dict[str, Any]:
    return _get_path(replicated_job, "template", "spec", "template", "spec")


def list_volumes(raw: Mapping[str, Any], replicated_job: Mapping[str, Any]) -> set[str]:
    """Return the volumes that pods of a replicated job can mount: of the pod spec and of `volumeClaimPolicies`."""
    policies = _get_path(_get_spec(raw), "template", "spec").get("volumeClaimPolicies") or ()
    claims = [template["metadata"]["name"] for policy in policies for template in policy.get("templates") or ()]
    return {*(volume["name"] for volume in get_pod_spec(replicated_job).get("volumes") or ()), *claims}


def find_container(replicated_job: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return a container of a replicated job, None if it has none of that name."""
    containers = get_pod_spec(replicated_job).get("containers") or []
    return next((container for container in containers if container.get("name") == name), None)


def get_device(container: Mapping[str, Any]) -> tuple[str, str]:
    """Return the device type and count of a container's limits, such as ``("gpu", "2")``; else ``Unknown``."""
    limits = _get_path(container, "resources").get("limits") or {}
    for resource in _list_device_resources(limits):
        try:
            device = resources.detect_device({resource: limits[resource]})
        except ValueError:
            continue  # This quantity is unsupported; another resource may still name a device.
        if device:
            return device
    return _UNKNOWN


def _list_device_resources(limits: Mapping[str, Any]) -> Iterator[str]:
    """Yield the resources that count as devices, accelerators first."""
    slices = sorted(resource for resource in limits if resource.startswith(_MIG_PREFIX))
    order = ("nvidia.com/gpu", "google.com/tpu", *slices, "huawei.com/Ascend910", "cpu")
    return (resource for resource in order if resource in limits)


def _get_pretrained_model(raw: Mapping[str, Any]) -> str | None:
    job = find_ancestor_job(raw, MODEL_INITIALIZER)
    container = find_container(job, MODEL_INITIALIZER) if job else None
    env = (container or {}).get("env") or []
    return next((entry.get("value") for entry in env if entry.get("name") == "STORAGE_URI"), None)


def _get_ancestor(replicated_job: Mapping[str, Any]) -> str | None:
    template_labels = _get_path(replicated_job, "template", "metadata").get("labels") or {}
    return template_labels.get(ANCESTOR_LABEL)


def _get_spec(raw: Mapping[str, Any]) -> dict[str, Any]:
    return _get_path(raw, "spec")


def _get_path(data: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """Return the object at a path; an empty one if a part of the path is missing or null."""
    value: Any = data
    for key in path:
        value = value.get(key) or {}
    result: dict[str, Any] = value
    return result
