"""What a role must permit, and the RBAC objects that grant it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainer_core.cluster.kinds import Kind

__all__ = ["AIRFLOW", "ALL", "BOTH", "KFP", "ONLY_AIRFLOW", "Permission", "grant", "rules"]

_RBAC = "rbac.authorization.k8s.io"
_ACCOUNT = "system:serviceaccount:"

#: Who needs a permission: an Airflow worker or triggerer, the pods of a KFP run.
AIRFLOW = "airflow"
KFP = "kfp"
ONLY_AIRFLOW = frozenset({AIRFLOW})
BOTH = frozenset({AIRFLOW, KFP})
#: The verbs of what jobs are made of.
ALL = ("create", "get", "list", "patch", "delete")


@dataclass(frozen=True)
class Permission:
    """Something that a role permits.

    Attributes:
        verbs: What may be done,
        kind: to which kind of objects,
        part: or to which part of them, such as ``log``.
        loss: What does not work without it.
        essential: Nothing of use works without it.
        users: Who needs it.
    """

    verbs: tuple[str, ...]
    kind: Kind
    loss: str
    part: str | None = None
    essential: bool = False
    users: frozenset[str] = BOTH

    @property
    def resource(self) -> str:
        """Its name in a role."""
        return f"{self.kind.plural}/{self.part}" if self.part else self.kind.plural


def rules(permissions: Iterable[Permission]) -> list[dict[str, Any]]:
    """Return the rules of a role that grants permissions, one for each resource."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for each in permissions:
        verbs.setdefault((each.kind.group, each.resource), []).extend(each.verbs)
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": list(dict.fromkeys(given))}
        for (group, resource), given in verbs.items()
    ]


def grant(permissions: Iterable[Permission], user: str | None, namespace: str) -> list[dict[str, Any]]:
    """Return the roles and bindings that grant permissions to a user in a namespace.

    Args:
        permissions: What is to be granted.
        user: As the server knows the user; None where that is not known, for a name to be filled in.
        namespace: Where.
    """
    given = list(permissions)
    there = [each for each in given if each.kind.namespaced]
    everywhere = [each for each in given if not each.kind.namespaced]
    objects = _pair("Role", "trainjob-user", rules(there), user, namespace) if there else []
    return objects + (_pair("ClusterRole", "trainjob-runtimes", rules(everywhere), user) if everywhere else [])


def _pair(
    kind: str, name: str, granted: list[dict[str, Any]], user: str | None, namespace: str | None = None
) -> list[dict[str, Any]]:
    """A role and its binding."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    ref = {"apiGroup": _RBAC, "kind": kind, "name": name}
    head = {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": metadata}
    return [
        {**head, "rules": granted},
        {**head, "kind": f"{kind}Binding", "metadata": dict(metadata), "roleRef": ref, "subjects": [_subject(user)]},
    ]


def _subject(user: str | None) -> dict[str, str]:
    if user and user.startswith(_ACCOUNT):
        namespace, _, name = user.removeprefix(_ACCOUNT).partition(":")
        return {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    return {"apiGroup": _RBAC, "kind": "User", "name": user or "FILL-IN-YOUR-USER"}
