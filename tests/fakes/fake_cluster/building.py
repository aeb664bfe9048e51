"""TrainJob + runtime → JobSet, as Trainer's plugins build it. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from fake_cluster.patching import strategic
from trainer_core.k8s.resources import JOBSETS

Raw = dict[str, Any]

ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_PORT = 29500
_GPU = "gpu"


def jobset(trainjob: Mapping[str, Any], runtime: Mapping[str, Any]) -> Raw:
    template = copy.deepcopy(runtime["spec"]["template"])
    policy = runtime["spec"].get("mlPolicy") or {}
    name, spec = trainjob["metadata"]["name"], trainjob["spec"]
    for step in steps_of(template["spec"]):
        _fill(step, spec, _ancestor(step))
    _set_counts(template["spec"], policy, node_count(spec, policy))
    for patch in patches(spec):
        template = strategic(template, patch)
    _enforce(template["spec"], policy, trainjob)
    metadata = template.get("metadata") or {}
    return {
        "apiVersion": JOBSETS.api_version,
        "kind": JOBSETS.kind,
        "metadata": {
            "name": name,
            "namespace": trainjob["metadata"]["namespace"],
            "labels": metadata.get("labels") or {},
            "annotations": metadata.get("annotations") or {},
            "ownerReferences": [owned_by(trainjob)],
        },
        "spec": {**template["spec"], "suspend": bool(spec.get("suspend"))},
    }


def owned_by(owner: Mapping[str, Any]) -> Raw:
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def node_count(spec: Mapping[str, Any], policy: Mapping[str, Any]) -> int:
    return int((spec.get("trainer") or {}).get("numNodes") or policy.get("numNodes") or 1)


def steps_of(jobset_spec: Mapping[str, Any]) -> list[Raw]:
    return jobset_spec.get("replicatedJobs") or []


def containers_of(step: Mapping[str, Any], name: str | None = None) -> list[Raw]:
    found = step["template"]["spec"]["template"]["spec"].get("containers") or []
    return [container for container in found if name in (None, container["name"])]


def patches(spec: Mapping[str, Any]) -> Iterator[Raw]:
    """Yield what a TrainJob changes of the runtime's template, whatever the version calls it."""
    for patch in spec.get("runtimePatches") or ():
        yield (patch.get("trainingRuntimeSpec") or {}).get("template") or {}
    for override in spec.get("podTemplateOverrides") or ():
        pod = {key: override[key] for key in ("metadata", "spec") if key in override}
        yield _for_steps(override, pod)
    for override in spec.get("podSpecOverrides") or ():
        yield _for_steps(override, {"spec": {key: override[key] for key in override if key != "targetJobs"}})


def _for_steps(override: Mapping[str, Any], pod: Raw) -> Raw:
    steps = [{"name": target["name"], "template": {"spec": {"template": pod}}} for target in override["targetJobs"]]
    return {"spec": {"replicatedJobs": steps}}


def _ancestor(step: Mapping[str, Any]) -> str | None:
    labels = (step["template"].get("metadata") or {}).get("labels") or {}
    return labels.get(ANCESTOR)


def _fill(step: Raw, spec: Mapping[str, Any], ancestor: str | None) -> None:
    """Put what the TrainJob says into the containers of a step."""
    if ancestor == "trainer":
        for container in containers_of(step, "node"):
            _fill_trainer(container, spec.get("trainer") or {})
    initializers = spec.get("initializer") or {}
    for role in ("dataset", "model"):
        if ancestor == f"{role}-initializer" and initializers.get(role):
            for container in containers_of(step, ancestor):
                _fill_initializer(container, initializers[role])


def _fill_trainer(container: Raw, trainer: Mapping[str, Any]) -> None:
    container.update({key: trainer[key] for key in ("image", "command", "args") if trainer.get(key)})
    _set_env(container, trainer.get("env") or ())
    if trainer.get("resourcesPerNode"):
        container["resources"] = strategic(container.get("resources") or {}, trainer["resourcesPerNode"])


def _fill_initializer(container: Raw, initializer: Mapping[str, Any]) -> None:
    _set_env(container, initializer.get("env") or ())
    if initializer.get("storageUri"):
        _set_env(container, [{"name": "STORAGE_URI", "value": initializer["storageUri"]}])
    if initializer.get("secretRef"):
        container.setdefault("envFrom", []).append({"secretRef": dict(initializer["secretRef"])})


def _set_env(container: Raw, entries: Any) -> None:
    known = {entry["name"]: entry for entry in container.get("env") or ()}
    known.update({entry["name"]: copy.deepcopy(entry) for entry in entries})
    if known:
        container["env"] = list(known.values())


def _set_counts(spec: Raw, policy: Mapping[str, Any], nodes: int) -> None:
    mpi = policy.get("mpi")
    for step in steps_of(spec):
        counted = step["name"] == "node" if mpi is not None else _ancestor(step) == "trainer"
        workers = nodes - 1 if mpi and mpi.get("runLauncherAsNode") and nodes > 1 else nodes
        if counted:
            step["template"]["spec"].update(parallelism=workers, completions=workers)


def _enforce(spec: Raw, policy: Mapping[str, Any], trainjob: Mapping[str, Any]) -> None:
    """Put what the ML policy injects into container `node` of the trainer."""
    trainer = trainjob["spec"].get("trainer")
    name, nodes = trainjob["metadata"]["name"], node_count(trainjob["spec"], policy)
    for step in steps_of(spec):
        for container in containers_of(step, "node") if _ancestor(step) == "trainer" else ():
            if policy.get("torch") is not None and trainer is not None:
                _set_env(container, _torch(name, nodes, trainer, container))
                container.setdefault("ports", []).append({"containerPort": _PORT})
            if policy.get("jax") is not None:
                _set_env(container, _jax(name, nodes))
            if policy.get("xgboost") is not None:
                _set_env(container, _xgboost(name, nodes * max(1, _gpus(container))))
            if policy.get("mpi") is not None:
                _set_env(
                    container, _mpi((trainer or {}).get("numProcPerNode") or policy["mpi"].get("numProcPerNode", 1))
                )


def _torch(name: str, nodes: int, trainer: Mapping[str, Any], container: Mapping[str, Any]) -> list[Raw]:
    processes = trainer.get("numProcPerNode") or ("auto" if _gpus(container) else _cpus(container))
    return [
        {"name": "PET_NNODES", "value": str(nodes)},
        {"name": "PET_NPROC_PER_NODE", "value": str(processes)},
        _completion_index("PET_NODE_RANK"),
        {"name": "PET_MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
        {"name": "PET_MASTER_PORT", "value": str(_PORT)},
    ]


def _jax(name: str, nodes: int) -> list[Raw]:
    return [
        {"name": "JAX_NUM_PROCESSES", "value": str(nodes)},
        _completion_index("JAX_PROCESS_ID"),
        {"name": "JAX_COORDINATOR_ADDRESS", "value": f"{name}-node-0-0.{name}:{_PORT}"},
    ]


def _xgboost(name: str, workers: int) -> list[Raw]:
    return [
        {"name": "DMLC_TRACKER_URI", "value": f"{name}-node-0-0.{name}"},
        {"name": "DMLC_TRACKER_PORT", "value": str(_PORT)},
        _completion_index("DMLC_TASK_ID"),
        {"name": "DMLC_NUM_WORKER", "value": str(workers)},
    ]


def _mpi(slots: int) -> list[Raw]:
    return [
        {"name": "OMPI_MCA_orte_default_hostfile", "value": "/etc/mpi/hostfile"},
        {"name": "OMPI_MCA_plm_rsh_args", "value": "-o ConnectionAttempts=10"},
        {"name": "OMPI_MCA_orte_keep_fqdn_hostnames", "value": "true"},
        {"name": "OMPI_MCA_orte_set_default_slots", "value": str(slots)},
    ]


def _completion_index(variable: str) -> Raw:
    field = f"metadata.annotations['{COMPLETION_INDEX}']"
    return {"name": variable, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": field}}}


def _gpus(container: Mapping[str, Any]) -> int:
    for part in ("requests", "limits"):
        for name, amount in ((container.get("resources") or {}).get(part) or {}).items():
            if _GPU in name:
                return int(amount)
    return 0


def _cpus(container: Mapping[str, Any]) -> int:
    resources = container.get("resources") or {}
    amount = str((resources.get("requests") or {}).get("cpu") or (resources.get("limits") or {}).get("cpu") or 1)
    cores = int(amount[:-1]) // 1000 if amount.endswith("m") else int(float(amount))
    return max(1, cores)
