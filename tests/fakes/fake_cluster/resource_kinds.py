"""Which kinds the server has, and which of them a path or an object is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.backends.runai.parse import DISTRIBUTED_WORKLOADS, TRAINING_WORKLOADS
from trainer_core.backends.training_operator.parse import PYTORCH_JOBS
from trainer_core.k8s import resources
from trainer_core.k8s.resources import ApiResource

NAMESPACES = ApiResource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = ApiResource("", "v1", "nodes", "Node", namespaced=False)
POD_DISRUPTION_BUDGETS = ApiResource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
_OTHERS = (
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    ApiResource("", "v1", "services", "Service"),
    ApiResource("", "v1", "serviceaccounts", "ServiceAccount"),
    *(PYTORCH_JOBS, TRAINING_WORKLOADS, DISTRIBUTED_WORKLOADS),
)
_WITH_STATUS = {
    *(
        resources.PODS,
        resources.JOBS,
        resources.VOLUME_CLAIMS,
        resources.JOBSETS,
        resources.TRAINJOBS,
        PYTORCH_JOBS,
    ),
    *(TRAINING_WORKLOADS, DISTRIBUTED_WORKLOADS),
    NAMESPACES,
    POD_DISRUPTION_BUDGETS,
}


@dataclass(frozen=True)
class Address:
    """What a path is about: a collection, an object, or a part of an object."""

    kind: ApiResource
    namespace: str | None = None
    name: str | None = None
    part: str | None = None


def stored_as(kind: ApiResource) -> tuple[str, str]:
    """Return the group and plural that a kind is kept under: events of both APIs are the same objects."""
    return ("", kind.plural) if kind == resources.EVENTS_V1 else (kind.group, kind.plural)


class ResourceKinds:
    """The kinds of a server."""

    def __init__(self) -> None:
        ours = [kind for kind in vars(resources).values() if isinstance(kind, ApiResource)]
        self._kinds = {(kind.group, kind.version, kind.plural): kind for kind in (*ours, *_OTHERS)}
        self._with_status = set(_WITH_STATUS)

    def __iter__(self) -> Iterator[ApiResource]:
        return iter(self._kinds.values())

    def define(self, definition: Mapping[str, Any]) -> list[ApiResource]:
        """Serve the kinds of a CustomResourceDefinition."""
        spec, names = definition["spec"], definition["spec"]["names"]
        namespaced = spec["scope"] == "Namespaced"
        served = [version for version in spec["versions"] if version.get("served")]
        defined = []
        for version in served:
            kind = ApiResource(spec["group"], version["name"], names["plural"], names["kind"], namespaced)
            self._kinds[kind.group, kind.version, kind.plural] = kind
            if "status" in version.get("subresources", {}):
                self._with_status.add(kind)
            defined.append(kind)
        return defined

    def has_status(self, kind: ApiResource) -> bool:
        """Whether status is written apart from the rest."""
        return kind in self._with_status

    def of(self, raw: Mapping[str, Any]) -> ApiResource:
        for kind in self:
            if (kind.api_version, kind.kind) == (raw.get("apiVersion"), raw.get("kind")):
                return kind
        raise LookupError(f'no matches for kind "{raw.get("kind")}" in version "{raw.get("apiVersion")}"')

    def named(self, name: str) -> ApiResource:
        """Return the kind of a name such as ``Pod`` or ``pods``; the first where several groups have one."""
        for kind in self:
            if name in (kind.kind, kind.plural):
                return kind
        raise LookupError(f"no kind {name}")

    def address(self, path: str) -> Address | None:
        """Return what a path is about, or None where the server has nothing."""
        head, *rest = path.strip("/").split("/")
        if head == "api" and len(rest) >= 2:
            group, (version, *rest) = "", rest
        elif head == "apis" and len(rest) >= 3:
            group, version, *rest = rest
        else:
            return None
        namespace = None
        if len(rest) >= 3 and rest[0] == "namespaces" and (group, version, rest[2]) in self._kinds:
            _, namespace, *rest = rest
        kind = self._kinds.get((group, version, rest[0]))
        if kind is None or len(rest) > 3 or (namespace is not None) > kind.namespaced:
            return None
        name, part = [*rest[1:], None, None][:2]
        return Address(kind, namespace, name, part)
