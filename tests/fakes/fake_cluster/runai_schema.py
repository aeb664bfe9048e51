"""The definitions of Run:ai's kinds. Run:ai publishes none: these are written from its documents (specs B1, B2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Raw = dict[str, Any]

_GROUP, _VERSION = "run.ai", "v2alpha1"
_ANY: Raw = {"x-kubernetes-preserve-unknown-fields": True}
_OF = {
    "text": {"type": "string"},
    "number": {"type": "integer"},
    "switch": {"type": "boolean"},
    "thing": {"type": "object", **_ANY},
}
#: Fields of one value, by its type.
_VALUES = {
    "text": (
        *("arguments", "command", "cpu", "cpuLimit", "gpu", "gpuLimit", "gpuMemory", "image", "imagePullPolicy"),
        *("ingressUrl", "memory", "memoryLimit", "migProfile", "name", "namePrefix", "nodePool", "nodePools"),
        *("nodeType", "podAffinitySchedulingRule", "podAffinityTopology", "seccompProfileType", "serviceType"),
        *("supplementalGroups", "userId", "username", "workingDir", "imagePullSecrets"),
    ),
    "number": (
        *("autoDeletionTimeAfterCompletionSeconds", "backoffLimit", "completions", "gpuDevices", "parallelism"),
        *("preemptionLimit", "processes", "runAsGid", "runAsUid", "slotsPerWorker"),
    ),
    "switch": (
        *("active", "allowPrivilegeEscalation", "createHomeDir", "hostIpc", "hostNetwork", "largeShm"),
        *("mountPropagation", "mpi", "podAffinity", "runAsNonRoot", "runAsUser", "stdin"),
        *("terminateAfterPreemption", "tty"),
    ),
}
#: Fields of several values, by their type.
_ITEMS = {
    "text": ("annotations", "capabilities", "environment", "extendedResources", "labels"),
    "thing": ("exposedUrls", "gitSync", "nfs", "ports", "pvcs", "s3", "tolerations", "volumes"),
}
_OPTIONS = {
    "imagePullPolicy": ["Always", "IfNotPresent", "Never"],
    "podAffinitySchedulingRule": ["hard", "soft"],
    "seccompProfileType": ["RuntimeDefault", "Unconfined"],
    "serviceType": ["LoadBalancer", "NodePort", "ClusterIP"],
}


def _fields() -> Raw:
    found: Raw = {"baseWorkload": {"type": "string"}, "usage": {"type": "string", "enum": ["Submit", "Template"]}}
    for kind, names in _VALUES.items():
        for name in names:
            value = {**_OF[kind], **({"enum": _OPTIONS[name]} if name in _OPTIONS else {})}
            found[name] = {"type": "object", "required": ["value"], "properties": {"value": value}}
    for kind, names in _ITEMS.items():
        item = {"type": "object", "properties": {"value": _OF[kind], "deleted": _OF["switch"]}}
        for name in names:
            items = {"type": "object", "additionalProperties": item}
            found[name] = {"type": "object", "required": ["items"], "properties": {"items": items}}
    return found


def _definition(kind: str, plural: str, properties: Mapping[str, Any]) -> Raw:
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "status": {"type": "object", **_ANY},
            **properties,
        },
    }
    version = {"name": _VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{_GROUP}"},
        "spec": {
            "group": _GROUP,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


_SPEC = {"type": "object", "properties": _fields()}
_JOB = {
    "jobType": {"type": "string", "enum": ["MPIJob", "PyTorchJob", "TFJob", "XGBoostJob"]},
    "workers": {"type": "object", "required": ["value"], "properties": {"value": {"type": "integer", "minimum": 1}}},
}
DEFINITIONS = (
    _definition("TrainingWorkload", "trainingworkloads", {"spec": _SPEC}),
    _definition(
        "DistributedWorkload",
        "distributedworkloads",
        {"spec": {"type": "object", "properties": {**_fields(), **_JOB}}, "masterSpec": _SPEC},
    ),
)
