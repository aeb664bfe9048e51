"""Permissions that a backend needs, and the RBAC objects that grant them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainer_core.k8s import resources
from trainer_core.k8s.resources import ApiResource

_RBAC_GROUP = "rbac.authorization.k8s.io"
_SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"

#: Users of a permission: Airflow's workers and triggerer; the pods of a Kubeflow Pipelines run.
AIRFLOW = "airflow"
KFP = "kfp"
ONLY_AIRFLOW = frozenset({AIRFLOW})
ALL_USERS = frozenset({AIRFLOW, KFP})
#: Verbs on the resources that jobs consist of.
MANAGE_VERBS = ("create", "get", "list", "patch", "delete")


@dataclass(frozen=True)
class RequiredPermission:
    """A permission that a backend needs."""

    verbs: tuple[str, ...]
    api_resource: ApiResource
    #: What does not work without it.
    consequence: str
    subresource: str | None = None
    #: Whether the backend is useless without it.
    required: bool = False
    users: frozenset[str] = ALL_USERS

    @property
    def resource_name(self) -> str:
        """Name of the resource in a role, such as ``pods/log``."""
        return f"{self.api_resource.plural}/{self.subresource}" if self.subresource else self.api_resource.plural


def list_pod_permissions(job: str) -> tuple[RequiredPermission, ...]:
    """Return what every backend on Kubernetes needs to read of the pods and events of its jobs."""
    return (
        RequiredPermission(
            ("list", "watch"), resources.PODS, f"no steps, no results, no reason why a {job} does not start or fails"
        ),
        RequiredPermission(
            ("get",), resources.PODS, "no logs, no progress, no traceback of a failure", subresource="log"
        ),
        RequiredPermission(
            ("list",),
            resources.EVENTS,
            "no reason why a pod is not scheduled or why an image cannot be pulled; waits for an autoscaler or a queue "
            "are limited by scheduling_grace",
        ),
        RequiredPermission(
            ("create",),
            resources.EVENTS,
            "`kubectl describe` has no event with the reason why a job was ended by its waiter",
        ),
    )


CREATE_SECRETS = RequiredPermission(
    ("create",), resources.SECRETS, "literal tokens are refused; use a SecretRef instead", users=ONLY_AIRFLOW
)
CREATE_CLAIMS = RequiredPermission(
    ("create", "delete"), resources.VOLUME_CLAIMS, "`initialize` cannot create the volume claim that it writes to"
)
READ_CLAIMS = RequiredPermission(
    ("get",), resources.VOLUME_CLAIMS, "a claim that only one node can mount is not refused as place of checkpoints"
)


def build_rules(permissions: Iterable[RequiredPermission]) -> list[dict[str, Any]]:
    """Return the rules of a role that grants permissions, one rule for each resource."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for permission in permissions:
        key = (permission.api_resource.group, permission.resource_name)
        verbs.setdefault(key, []).extend(permission.verbs)
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": list(dict.fromkeys(granted))}
        for (group, resource), granted in verbs.items()
    ]


def build_rbac_objects(
    permissions: Iterable[RequiredPermission], user: str | None, namespace: str
) -> list[dict[str, Any]]:
    """Return the roles and role bindings that grant permissions to a user."""
    permissions = list(permissions)
    namespaced = [each for each in permissions if each.api_resource.namespaced]
    cluster_wide = [each for each in permissions if not each.api_resource.namespaced]
    objects = []
    if namespaced:
        objects += _build_role_and_binding("Role", "trainjob-user", build_rules(namespaced), user, namespace)
    if cluster_wide:
        objects += _build_role_and_binding("ClusterRole", "trainjob-runtimes", build_rules(cluster_wide), user)
    return objects


def _build_role_and_binding(
    kind: str, name: str, rules: list[dict[str, Any]], user: str | None, namespace: str | None = None
) -> list[dict[str, Any]]:
    api_version = f"{_RBAC_GROUP}/v1"
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    role = {"apiVersion": api_version, "kind": kind, "metadata": metadata, "rules": rules}
    binding = {
        "apiVersion": api_version,
        "kind": f"{kind}Binding",
        "metadata": dict(metadata),
        "roleRef": {"apiGroup": _RBAC_GROUP, "kind": kind, "name": name},
        "subjects": [_build_subject(user)],
    }
    return [role, binding]


def _build_subject(user: str | None) -> dict[str, str]:
    if user and user.startswith(_SERVICE_ACCOUNT_PREFIX):
        namespace, _, name = user.removeprefix(_SERVICE_ACCOUNT_PREFIX).partition(":")
        return {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    return {"apiGroup": _RBAC_GROUP, "kind": "User", "name": user or "FILL-IN-YOUR-USER"}
