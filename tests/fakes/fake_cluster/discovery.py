"""What a server says about itself: version, groups and kinds, OpenAPI v3."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from fake_cluster.resource_kinds import ResourceKinds
from trainer_core.k8s.resources import ApiResource

VERSION = {
    "major": "1",
    "minor": "33",
    "gitVersion": "v1.33.1",
    "gitCommit": "0" * 40,
    "gitTreeState": "clean",
    "buildDate": "2025-05-15T00:00:00Z",
    "goVersion": "go1.24.2",
    "compiler": "gc",
    "platform": "linux/amd64",
}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def core() -> dict[str, Any]:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def groups(registry: ResourceKinds) -> dict[str, Any]:
    named = itertools.groupby(
        sorted({(kind.group, kind.version) for kind in registry if kind.group}), lambda key: key[0]
    )
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name, versions) for name, versions in named]}


def group(registry: ResourceKinds, name: str) -> dict[str, Any] | None:
    """Return ``/apis/<group>``."""
    versions = sorted({(kind.group, kind.version) for kind in registry if kind.group == name})
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if versions else None


def _group(name: str, versions: Iterable[tuple[str, str]]) -> dict[str, Any]:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for _, version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def resources(registry: ResourceKinds, name: str, version: str) -> dict[str, Any] | None:
    """Return ``/api/v1`` or ``/apis/<group>/<version>``."""
    listed = []
    for kind in registry:
        if (kind.group, kind.version) == (name, version):
            listed.append(_resource(kind, kind.plural, _VERBS))
            if registry.has_status(kind):
                listed.append(_resource(kind, f"{kind.plural}/status", ["get", "patch", "update"]))
    if not listed:
        return None
    place = f"{name}/{version}" if name else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": place, "resources": listed}


def _resource(kind: ApiResource, name: str, verbs: list[str]) -> dict[str, Any]:
    singular = kind.kind.lower() if "/" not in name else ""
    return {"name": name, "singularName": singular, "namespaced": kind.namespaced, "kind": kind.kind, "verbs": verbs}


def openapi_index(registry: ResourceKinds) -> dict[str, Any]:
    places = sorted({f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}" for kind in registry})
    return {
        "paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}?hash={abs(hash(place)):X}"} for place in places}
    }


def openapi(definitions: Iterable[dict[str, Any]], name: str, version: str) -> dict[str, Any] | None:
    """Return ``/openapi/v3/apis/<group>/<version>``, made from CustomResourceDefinitions."""
    schemas, paths = {}, {}
    for definition in definitions:
        spec = definition["spec"]
        for served in spec["versions"]:
            if (spec["group"], served["name"]) == (name, version):
                kind = ApiResource(
                    name, version, spec["names"]["plural"], spec["names"]["kind"], spec["scope"] == "Namespaced"
                )
                schemas[_schema_name(kind)] = {**served["schema"]["openAPIV3Schema"], **_about(kind)}
                paths[kind.build_path("{namespace}")] = {"get": _about(kind, single=True)}
    if not schemas:
        return None
    info = {"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _schema_name(kind: ApiResource) -> str:
    return ".".join([*reversed(kind.group.split(".")), kind.version, kind.kind])


def _about(kind: ApiResource, single: bool = False) -> dict[str, Any]:
    about = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    return {"x-kubernetes-group-version-kind": about if single else [about]}
