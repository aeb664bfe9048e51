"""The Training Operator's admission webhook for PyTorchJobs: what it refuses, in which words (specs C4)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

Raw = Mapping[str, Any]

WEBHOOK = "validator.pytorchjob.training-operator.kubeflow.org"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_SPECS = "spec.pytorchReplicaSpecs"
_MAIN = "pytorch"
_MANAGERS = ("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue")


def problems(new: Raw, old: Raw | None) -> Iterator[str]:
    """Yield what is wrong with a PyTorchJob, in the words of the webhook."""
    name, spec = new["metadata"].get("name", ""), new["spec"]
    if not _NAME.fullmatch(name):
        why = "should match: a DNS-1035 label must consist of lower case alphanumeric characters or '-'"
        yield f"metadata.name: Invalid value: {json.dumps(name)}: {why}"
    yield from _run_policy(spec.get("runPolicy") or {}, ((old or {}).get("spec") or {}).get("runPolicy"))
    yield from _elastic(spec)
    for kind, replica in spec["pytorchReplicaSpecs"].items():
        yield from _replica(kind, replica)


def _run_policy(new: Raw, old: Raw | None) -> Iterator[str]:
    manager = new.get("managedBy")
    if manager is not None and manager not in _MANAGERS:
        known = ", ".join(json.dumps(each) for each in _MANAGERS)
        yield f"spec.runPolicy.managedBy: Unsupported value: {json.dumps(manager)}: supported values: {known}"
    if old is not None and old.get("managedBy") != manager:
        yield f"spec.runPolicy.managedBy: Invalid value: {json.dumps(manager)}: field is immutable"


def _elastic(spec: Raw) -> Iterator[str]:
    policy = spec.get("elasticPolicy")
    if policy is None:
        return
    if "Worker" not in spec["pytorchReplicaSpecs"]:
        yield f"{_SPECS}[Worker]: Required value: must be configured if elastic policy is used"
    if policy.get("nProcPerNode") is not None and spec.get("nprocPerNode") is not None:
        yield "spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with spec.nprocPerNode"


def _replica(kind: str, replica: Raw) -> Iterator[str]:
    place = f"{_SPECS}[{kind}]"
    if kind not in ("Master", "Worker"):
        yield f'{place}: Unsupported value: {json.dumps(kind)}: supported values: "Master", "Worker"'
    containers = ((replica.get("template") or {}).get("spec") or {}).get("containers") or ()
    if not containers:
        yield f"{place}.template.spec.containers: Required value: must be specified"
    for index, container in enumerate(containers):
        if not container.get("image"):
            yield f"{place}.template.spec.containers[{index}].image: Required value: must be required"
    if containers and _MAIN not in [container["name"] for container in containers]:
        yield f"{place}.template.spec.containers: Required value: must have at least one container with name {_MAIN}"
    if kind == "Master" and replica.get("replicas", 1) != 1:
        yield f"{place}.replicas: Forbidden: must be 1"
    if kind == "Worker" and replica.get("replicas", 1) < 1:
        yield f"{place}.replicas: Forbidden: must be at least 1"


def defaults(new: dict[str, Any], kueue: bool) -> None:
    """Do what Kueue's webhook does to a new job that waits in a queue."""
    if kueue and (new["metadata"].get("labels") or {}).get("kueue.x-k8s.io/queue-name"):
        new["spec"].setdefault("runPolicy", {})["suspend"] = True
