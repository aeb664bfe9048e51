"""Workload of Run:ai → the pod that runs it, and the PyTorchJob of one with several nodes (specs B1, B3). Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from fake_cluster.building import owned_by
from trainer_core.backends.training_operator.parse import PYTORCH_JOBS
from trainer_core.k8s.resources import PODS

Raw = dict[str, Any]
_SECRET = "SECRET:"


def value(spec: Mapping[str, Any], name: str, default: Any = None) -> Any:
    return (spec.get(name) or {}).get("value", default)


def inherited(base: Mapping[str, Any], spec: Mapping[str, Any]) -> Raw:
    """Return a spec with what it inherits: single fields and single items, unless it has or removes them."""
    found: Raw = {name: field for name, field in base.items() if name not in ("name", "usage")}
    for name, field in spec.items():
        if isinstance(field, dict) and "items" in field:
            items = {**(found.get(name) or {}).get("items", {}), **field["items"]}
            found[name] = {"items": {label: item for label, item in items.items() if not item.get("deleted")}}
        else:
            found[name] = field
    return found


def pod(workload: Mapping[str, Any], spec: Mapping[str, Any], attempt: int) -> Raw:
    template = _template(workload["metadata"]["name"], spec)
    return {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": {
            **template["metadata"],
            "name": f"{workload['metadata']['name']}-0-{attempt}",
            "namespace": workload["metadata"]["namespace"],
            "ownerReferences": [owned_by(workload)],
        },
        "spec": {**template["spec"], "schedulerName": "runai-scheduler", "restartPolicy": "Never"},
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }


def pytorch_job(workload: Mapping[str, Any]) -> Raw:
    metadata, spec = workload["metadata"], workload["spec"]
    counts = {"Master": (1, workload.get("masterSpec") or spec), "Worker": (value(spec, "workers"), spec)}
    replicas = {
        kind: {"replicas": count, "restartPolicy": "Never", "template": _template("pytorch", given)}
        for kind, (count, given) in counts.items()
    }
    policy = {"suspend": value(spec, "active", True) is False, "cleanPodPolicy": "None"}
    return {
        "apiVersion": PYTORCH_JOBS.api_version,
        "kind": PYTORCH_JOBS.kind,
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "ownerReferences": [owned_by(workload)],
        },
        "spec": {"runPolicy": policy, "pytorchReplicaSpecs": replicas},
    }


def _template(container: str, spec: Mapping[str, Any]) -> Raw:
    claims = _items(spec, "pvcs")
    amounts = {name: value(spec, name) for name in ("cpu", "memory") if value(spec, name)}
    limits = {name: value(spec, f"{name}Limit") for name in ("cpu", "memory") if value(spec, f"{name}Limit")}
    gpu = str(value(spec, "gpu", "0"))
    if gpu.isdecimal() and gpu != "0":
        limits["nvidia.com/gpu"] = gpu
    main = {
        "name": container,
        "image": value(spec, "image", ""),
        "env": [_variable(name, text) for name, text in sorted(_items(spec, "environment").items())],
        "resources": {"requests": amounts, "limits": limits},
        "volumeMounts": [
            {"name": label, "mountPath": claim["path"], "readOnly": bool(claim.get("readOnly"))}
            for label, claim in claims.items()
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        **{theirs: shlex.split(value(spec, ours)) for theirs, ours in _WORDS.items() if value(spec, ours)},
    }
    volumes = [
        {"name": label, "persistentVolumeClaim": {"claimName": claim["claimName"]}} for label, claim in claims.items()
    ]
    metadata = {"labels": _items(spec, "labels"), "annotations": _items(spec, "annotations")}
    return {"metadata": metadata, "spec": {"containers": [main], **({"volumes": volumes} if volumes else {})}}


_WORDS = {"command": "command", "args": "arguments"}


def _items(spec: Mapping[str, Any], name: str) -> Raw:
    return {label: item["value"] for label, item in (spec.get(name) or {}).get("items", {}).items()}


def _variable(name: str, text: str) -> Raw:
    if not text.startswith(_SECRET):
        return {"name": name, "value": text}
    secret, _, key = text.removeprefix(_SECRET).partition(",")
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
