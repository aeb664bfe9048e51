"""The fields of ``spec.mlPolicy`` of a runtime, which differ between versions of Kubeflow Trainer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

#: Fields of each policy, by the name of the policy.
MlPolicyFields: TypeAlias = Mapping[str, tuple[str, ...]]

#: Fields of the torch policy that Trainer 2.2 removed.
REMOVED_FIELDS = ("numProcPerNode", "elasticPolicy")

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
