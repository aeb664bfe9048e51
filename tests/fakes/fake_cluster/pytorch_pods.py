"""PyTorchJob → the pods of its replicas, with the environment that the Training Operator gives (specs C4). Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from fake_cluster.building import owned_by
from trainer_core.k8s.resources import PODS

Raw = dict[str, Any]

_PREFIX = "training.kubeflow.org"
JOB_NAME = f"{_PREFIX}/job-name"
REPLICA_TYPE = f"{_PREFIX}/replica-type"
REPLICA_INDEX = f"{_PREFIX}/replica-index"
_PORT_NAME = "pytorchjob-port"
_PORT = 23456
_MAIN = "pytorch"


def replicas_of(job: Mapping[str, Any]) -> dict[str, tuple[Raw, int]]:
    """Return the replica specs of a job by type, each with its number of replicas; the master first."""
    specs = job["spec"]["pytorchReplicaSpecs"]
    found = {kind: specs[kind] for kind in ("Master", "Worker") if kind in specs}
    return {kind: (spec, int(spec.get("replicas", 1))) for kind, spec in found.items()}


def type_of(pod: Mapping[str, Any]) -> str:
    """Return the type of the replica that a pod is, in lower case."""
    return str((pod["metadata"].get("labels") or {}).get(REPLICA_TYPE, ""))


def index_of(pod: Mapping[str, Any]) -> int:
    return int((pod["metadata"].get("labels") or {}).get(REPLICA_INDEX, 0))


def pod(job: Mapping[str, Any], kind: str, index: int) -> Raw:
    name, replica = job["metadata"]["name"], replicas_of(job)[kind][0]
    template = copy.deepcopy(replica["template"])
    metadata, spec = template.get("metadata") or {}, template["spec"]
    for container in spec["containers"]:
        if container["name"] == _MAIN and _port_of(container) is None:
            container.setdefault("ports", []).append({"name": _PORT_NAME, "containerPort": _PORT})
        container.setdefault("env", []).extend(_environment(job, kind, index))
    if kind == "Worker" and "Master" in replicas_of(job):
        spec.setdefault("initContainers", []).append(_waits_for_the_master())
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
    policy = replica.get("restartPolicy", "OnFailure")
    return {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": {
            "name": f"{name}-{kind.lower()}-{index}",
            "namespace": job["metadata"]["namespace"],
            "labels": {**(metadata.get("labels") or {}), **_labels(job, kind, index)},
            "annotations": dict(metadata.get("annotations") or {}),
            "ownerReferences": [owned_by(job)],
        },
        "spec": {
            "schedulerName": "default-scheduler",
            **spec,
            "restartPolicy": "Never" if policy == "ExitCode" else policy,
        },
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }


def _labels(job: Mapping[str, Any], kind: str, index: int) -> dict[str, str]:
    leads = kind == "Master" or ("Master" not in replicas_of(job) and index == 0)
    return {
        JOB_NAME: job["metadata"]["name"],
        f"{_PREFIX}/operator-name": "pytorchjob-controller",
        REPLICA_TYPE: kind.lower(),
        REPLICA_INDEX: str(index),
        **({f"{_PREFIX}/job-role": "master"} if leads else {}),
    }


def _waits_for_the_master() -> Raw:
    """Where names lead to this machine, there is nothing to wait for."""
    return {"name": "init-pytorch", "image": "alpine:3.10", "command": ["sh", "-c", "true"]}


def _environment(job: Mapping[str, Any], kind: str, index: int) -> list[Raw]:
    known: dict[str, Any] = {"PYTHONUNBUFFERED": "1"}
    processes, elastic = job["spec"].get("nprocPerNode"), job["spec"].get("elasticPolicy")
    if "Master" in replicas_of(job):
        known.update(_with_a_master(job, kind, index))
    if processes is not None:
        known["PET_NPROC_PER_NODE"] = processes
    known.update(_elastic(job, elastic) if elastic is not None else {"PET_NNODES": _total(job)})
    return [{"name": name, "value": str(value)} for name, value in known.items()]


def _with_a_master(job: Mapping[str, Any], kind: str, index: int) -> dict[str, Any]:
    address, port = f"{job['metadata']['name']}-master-0", _port(job, "Master")
    rank = index + 1 if kind == "Worker" else index
    processes = str(job["spec"].get("nprocPerNode"))
    return {
        "MASTER_PORT": port,
        "PET_MASTER_PORT": port,
        "MASTER_ADDR": address,
        "PET_MASTER_ADDR": address,
        "WORLD_SIZE": _total(job) * (int(processes) if processes.isdecimal() else 1),
        "RANK": rank,
        "PET_NODE_RANK": rank,
    }


def _elastic(job: Mapping[str, Any], policy: Mapping[str, Any]) -> dict[str, Any]:
    host = policy.get("rdzvHost") or f"{job['metadata']['name']}-worker-0"
    known = {
        "PET_RDZV_ENDPOINT": f"{host}:{policy.get('rdzvPort') or _port(job, 'Worker')}",
        "PET_RDZV_BACKEND": policy.get("rdzvBackend", "c10d"),
        "PET_NNODES": replicas_of(job)["Worker"][1],
    }
    if "minReplicas" in policy or "maxReplicas" in policy:
        known["PET_NNODES"] = f"{policy['minReplicas']}:{policy['maxReplicas']}"
    if policy.get("rdzvConf"):
        known["PET_RDZV_CONF"] = ",".join(f"{one['key']}={one['value']}" for one in policy["rdzvConf"])
    if policy.get("standalone"):
        known["PET_STANDALONE"] = ""
    told = {"PET_MAX_RESTARTS": "maxRestarts", "PET_NPROC_PER_NODE": "nProcPerNode", "PET_RDZV_ID": "rdzvId"}
    return {**known, **{name: policy[key] for name, key in told.items() if policy.get(key) is not None}}


def _total(job: Mapping[str, Any]) -> int:
    return sum(count for _, count in replicas_of(job).values())


def _port(job: Mapping[str, Any], kind: str) -> int:
    containers = replicas_of(job)[kind][0]["template"]["spec"]["containers"]
    main = next(container for container in containers if container["name"] == _MAIN)
    return _port_of(main) or _PORT


def _port_of(container: Mapping[str, Any]) -> int | None:
    ports = container.get("ports") or ()
    return next((port["containerPort"] for port in ports if port.get("name") == _PORT_NAME), None)
