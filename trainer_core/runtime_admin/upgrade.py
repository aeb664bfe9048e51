"""Converts a runtime of Kubeflow Trainer 2.0 or 2.1 to one of 2.2 and later. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from trainer_core.k8s.runtimes import FRAMEWORK_LABEL
from trainer_core.runtime_admin.accessors import get_mapping
from trainer_core.runtime_admin.ml_policies import NEWEST

_TORCH = "spec.mlPolicy.torch"


def upgrade_runtime(runtime: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a runtime without the fields that Trainer 2.2 removed, and one line for each change."""
    upgraded: dict[str, Any] = copy.deepcopy(dict(runtime))
    policy: dict[str, Any] = dict(get_mapping(upgraded, "spec", "mlPolicy"))
    changes = []
    if policy.get("torch") is not None:
        changes += _remove_processes(policy["torch"])
        changes += _remove_elastic_policy(policy)
        upgraded["spec"]["mlPolicy"] = policy
    changes += _add_framework(upgraded, policy)
    return upgraded, changes


def _remove_processes(torch: dict[str, Any]) -> list[str]:
    if "numProcPerNode" not in torch:
        return []
    number = torch.pop("numProcPerNode")
    if isinstance(number, int):
        moved = f"set num_proc_per_node={number} in the trainer of each TrainJob (spec.trainer.numProcPerNode)"
    else:
        moved = f"{number!r} is what Trainer computes from the resources of the container node without the field"
    return [f"{_TORCH}.numProcPerNode was removed: {moved}"]


def _remove_elastic_policy(policy: dict[str, Any]) -> list[str]:
    if "elasticPolicy" not in policy["torch"]:
        return []
    elastic = get_mapping(policy["torch"], "elasticPolicy")
    del policy["torch"]["elasticPolicy"]
    lost = ", ".join(name for name in ("maxRestarts", "maxNodes", "metrics") if elastic.get(name) is not None)
    without = f"; {lost}: Trainer 2.2 and later have no elastic training" if lost else ""
    nodes = elastic.get("minNodes")
    if nodes is None or policy.get("numNodes") is not None:
        return [f"{_TORCH}.elasticPolicy was removed{without}"]
    policy["numNodes"] = nodes
    return [f"{_TORCH}.elasticPolicy was removed: minNodes became spec.mlPolicy.numNodes{without}"]


def _add_framework(runtime: dict[str, Any], policy: Mapping[str, Any]) -> list[str]:
    labels = get_mapping(runtime, "metadata", "labels")
    framework = next((name for name in NEWEST if policy.get(name) is not None and name != "mpi"), None)
    if labels.get(FRAMEWORK_LABEL) or framework is None:
        return []
    runtime["metadata"] = {**get_mapping(runtime, "metadata"), "labels": {**labels, FRAMEWORK_LABEL: framework}}
    return [f"metadata.labels: {FRAMEWORK_LABEL}={framework} was added, so that the Kubeflow SDK lists the runtime"]
