"""TrainingRuntimes of a cluster → what they offer. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from trainer_core import resources
from trainer_core.cluster import kinds, marks
from trainer_core.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType

__all__ = [
    "ANCESTOR",
    "CONTAINERS",
    "DATASET_INITIALIZER",
    "FRAMEWORK",
    "MODEL_INITIALIZER",
    "NODE",
    "POLICIES",
    "RESERVED",
    "TRAINER",
    "command",
    "container",
    "device",
    "framework",
    "is_deprecated",
    "job",
    "job_of",
    "jobs",
    "kind",
    "name",
    "num_nodes",
    "pod_spec",
    "policy",
    "record",
    "recorded",
    "runtime",
    "trainer_container",
    "trainer_job",
    "volumes",
    "written",
]

#: Label that says what a runtime trains with.
FRAMEWORK = "trainer.kubeflow.org/framework"
#: Label of a replicated job's template: which part of a TrainJob is put into it.
ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
_SUPPORT = "trainer.kubeflow.org/support"

TRAINER = "trainer"
DATASET_INITIALIZER = "dataset-initializer"
MODEL_INITIALIZER = "model-initializer"
#: The container that trains, in whichever job.
NODE = "node"
#: The container of each ancestor that takes the TrainJob's values.
CONTAINERS = {TRAINER: NODE, DATASET_INITIALIZER: DATASET_INITIALIZER, MODEL_INITIALIZER: MODEL_INITIALIZER}
#: Ways in which nodes learn of each other; a runtime has one of them or none.
POLICIES = ("torch", "mpi", "jax", "xgboost", "flux")
#: Environment variables of the trainer that the controller sets by policy, over whatever is said elsewhere.
RESERVED: Mapping[str, tuple[str, ...]] = {
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

_COMMANDS = {"torch": ("torchrun",), "torchtune": ("tune", "run")}
_MPIRUN = ("mpirun", "--hostfile", "/etc/mpi/hostfile")
_PYTHON = ("python3",)
_MIG = "nvidia.com/mig-"
_UNKNOWN = ("Unknown", "Unknown")


def record(raw: Mapping[str, Any]) -> str:
    """Return what a raw runtime offers as the text of an annotation, to be read back by `recorded`."""
    return written(runtime(raw))


def written(found: Runtime) -> str:
    """Return a runtime as the text of an annotation, to be read back by `recorded`."""
    text: bytes = _adapter().dump_json(found, exclude_none=True)
    return text.decode()


def recorded(annotations: Mapping[str, str]) -> Runtime | None:
    """Return the runtime of a job as it was when the job was submitted; None where nobody wrote it down."""
    try:
        found: Runtime = _adapter().validate_json(annotations.get(marks.RUNTIME, ""))
    except ValueError:
        return None
    return found


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Runtime)


def runtime(raw: Mapping[str, Any]) -> Runtime:
    """Return a runtime as the API reference knows it."""
    node = trainer_container(raw) or {}
    found, count = device(node)
    trains_with = framework(raw)
    builtin = trains_with == "torchtune"
    trainer = RuntimeTrainer(
        trainer_type=TrainerType.BUILTIN_TRAINER if builtin else TrainerType.CUSTOM_TRAINER,
        framework=trains_with,
        image=node.get("image", ""),
        num_nodes=num_nodes(raw),
        device=found,
        device_count=count,
        command=command(trains_with, policy(raw)),
    )
    return Runtime(name=name(raw), trainer=trainer, kind=kind(raw), pretrained_model=_pretrained_model(raw))


def command(framework: str, policy: str | None) -> tuple[str, ...]:
    """Return how a framework starts training code."""
    return _MPIRUN if policy == "mpi" else _COMMANDS.get(framework, _PYTHON)


def name(raw: Mapping[str, Any]) -> str:
    """Return its name."""
    return str(raw["metadata"]["name"])


def kind(raw: Mapping[str, Any]) -> RuntimeKind:
    """Return its scope; lists may leave the kind of their items out."""
    if "kind" in raw:
        return RuntimeKind(raw["kind"])
    namespaced = raw["metadata"].get("namespace")
    return RuntimeKind((kinds.TRAINING_RUNTIMES if namespaced else kinds.CLUSTER_TRAINING_RUNTIMES).kind)


def policy(raw: Mapping[str, Any]) -> str | None:
    """Return how its nodes learn of each other; None for nodes that are on their own."""
    given = _spec(raw).get("mlPolicy") or {}
    return next((way for way in POLICIES if given.get(way) is not None), None)


def framework(raw: Mapping[str, Any]) -> str:
    """Return what it trains with: its label, else its policy, else ``plain``."""
    labels = raw["metadata"].get("labels") or {}
    return labels.get(FRAMEWORK) or policy(raw) or "plain"


def is_deprecated(raw: Mapping[str, Any]) -> bool:
    """Say whether its makers advise against it."""
    return (raw["metadata"].get("labels") or {}).get(_SUPPORT) == "deprecated"


def num_nodes(raw: Mapping[str, Any]) -> int:
    """Return how many nodes it starts for a job that does not say."""
    return int((_spec(raw).get("mlPolicy") or {}).get("numNodes") or 1)


def jobs(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return its replicated jobs."""
    found: list[dict[str, Any]] = _at(_spec(raw), "template", "spec").get("replicatedJobs") or []
    return found


def job(raw: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the replicated job of a name, None where there is none."""
    return next((found for found in jobs(raw) if found.get("name") == name), None)


def job_of(raw: Mapping[str, Any], ancestor: str) -> dict[str, Any] | None:
    """Return the replicated job that takes the values of an ancestor, None where none is labelled so."""
    return next((found for found in jobs(raw) if _ancestor(found) == ancestor), None)


def trainer_job(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the replicated job that takes a trainer's values, None where none is labelled so."""
    return job_of(raw, TRAINER)


def trainer_container(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the container that a trainer's values are put into, None where there is none."""
    found = trainer_job(raw)
    return container(found, NODE) if found else None


def pod_spec(replicated_job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod spec of a replicated job."""
    return _at(replicated_job, "template", "spec", "template", "spec")


def volumes(raw: Mapping[str, Any], replicated_job: Mapping[str, Any]) -> set[str]:
    """Return the names of the volumes that a job's pods can mount: their own, and those JobSet makes of claims."""
    policies = _at(_spec(raw), "template", "spec").get("volumeClaimPolicies") or ()
    claims = [template["metadata"]["name"] for each in policies for template in each.get("templates") or ()]
    return {*(volume["name"] for volume in pod_spec(replicated_job).get("volumes") or ()), *claims}


def container(replicated_job: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return a container of a replicated job, None where it has none of that name."""
    containers = pod_spec(replicated_job).get("containers") or []
    return next((found for found in containers if found.get("name") == name), None)


def device(node: Mapping[str, Any]) -> tuple[str, str]:
    """Name what a container computes on and how many of it, by its limits: ``("gpu", "2")``."""
    limits = _at(node, "resources").get("limits") or {}
    for resource in _devices(limits):
        try:
            found = resources.device({resource: limits[resource]})
        except ValueError:
            continue  # Somebody else's quantity: what it offers besides is still of use.
        if found:
            return found
    return _UNKNOWN


def _devices(limits: Mapping[str, Any]) -> Iterator[str]:
    """The resources that count as devices, the most telling first (specs.md D1)."""
    slices = sorted(resource for resource in limits if resource.startswith(_MIG))
    order = ("nvidia.com/gpu", "google.com/tpu", *slices, "huawei.com/Ascend910", "cpu")
    return (resource for resource in order if resource in limits)


def _pretrained_model(raw: Mapping[str, Any]) -> str | None:
    step = job_of(raw, MODEL_INITIALIZER)
    found = container(step, MODEL_INITIALIZER) if step else None
    env = (found or {}).get("env") or []
    return next((entry.get("value") for entry in env if entry.get("name") == "STORAGE_URI"), None)


def _ancestor(replicated_job: Mapping[str, Any]) -> str | None:
    labels = _at(replicated_job, "template", "metadata").get("labels") or {}
    return labels.get(ANCESTOR)


def _spec(raw: Mapping[str, Any]) -> dict[str, Any]:
    return _at(raw, "spec")


def _at(data: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """What lies at a path; nothing where a part of it is absent or null."""
    found: Any = data
    for key in path:
        found = found.get(key) or {}
    result: dict[str, Any] = found
    return result
