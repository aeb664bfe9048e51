"""The fields of ``spec.mlPolicy`` of a runtime, which differ between versions of Kubeflow Trainer. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeAlias

from trainer_core.k8s.runtimes import FRAMEWORK_LABEL
from trainer_core.runtime_admin.accessors import get_mapping

#: Fields of each policy, by the name of the policy.
MlPolicyFields: TypeAlias = Mapping[str, tuple[str, ...]]

#: Fields of the torch policy that Trainer 2.2 removed.
REMOVED_FIELDS = ("numProcPerNode", "elasticPolicy")

_TORCH = "spec.mlPolicy.torch"
_MPI = ("numProcPerNode", "mpiImplementation", "sshAuthMountPath", "runLauncherAsNode")
_FIRST: MlPolicyFields = {"torch": REMOVED_FIELDS, "mpi": _MPI}
_SECOND: MlPolicyFields = {"torch": (), "mpi": _MPI, "jax": (), "xgboost": (), "flux": ("numProcPerNode",)}
NEWEST: MlPolicyFields = {**_SECOND, "torch": ("envInjection",)}
#: The fields of all versions, for a runtime whose cluster is not known yet.
ANY: MlPolicyFields = {**NEWEST, "torch": ("envInjection", *REMOVED_FIELDS)}
VERSIONS: Mapping[str, MlPolicyFields] = {"2.0": _FIRST, "2.1": _FIRST, "2.2": _SECOND, "2.3": NEWEST}


def get_fields(version: str) -> MlPolicyFields:
    """Return the fields of a version of Trainer, such as ``2.1`` or ``v2.1.0``."""
    fields = VERSIONS.get(".".join(version.removeprefix("v").split(".")[:2]))
    if fields is None:
        raise ValueError(f"Trainer version {version!r} is unknown; the known versions are {', '.join(VERSIONS)}")
    return fields


def parse_openapi(document: Mapping[str, Any]) -> MlPolicyFields | None:
    """Return the fields of the OpenAPI v3 document of Trainer's API group; None if it has no runtimes."""
    for schema in document.get("components", {}).get("schemas", {}).values():
        kinds = [gvk.get("kind") for gvk in schema.get("x-kubernetes-group-version-kind") or ()]
        if "ClusterTrainingRuntime" in kinds:
            spec = schema["properties"]["spec"]["properties"]["mlPolicy"]["properties"]
            return {name: tuple(policy.get("properties", ())) for name, policy in spec.items() if name != "numNodes"}
    return None


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
