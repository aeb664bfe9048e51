"""Objects of the cluster that a step's pod refers to: volumes, and variables from secrets, config maps and fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kfp_backend.kubelet import expand
from kfp_backend.task_config import PodSpec

#: CustomResourceDefinition of Argo's Workflows, which an API server needs before a backend uses it.
WORKFLOW_DEFINITION: Mapping[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "workflows.argoproj.io"},
    "spec": {
        "group": "argoproj.io",
        "names": {"kind": "Workflow", "plural": "workflows", "singular": "workflow"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


class PodNotStartedError(Exception):
    """A pod refers to something that is not there; on a cluster it would be pending for ever."""


class Api(Protocol):
    """What is used of an API server, such as `fake_cluster.Cluster`."""

    def add(self, raw: Mapping[str, Any]) -> dict[str, Any]: ...

    def update(
        self, kind: str, name: str, edit: Callable[[dict[str, Any]], None], namespace: str | None = ...
    ) -> None: ...

    def delete(self, kind: str, name: str, namespace: str | None = ...) -> object: ...


@dataclass
class Objects:
    """Objects of the namespace of the runs."""

    #: Holds a folder for each claim; that of a fake cluster lets its pods mount the same claims.
    claims_folder: Path
    claims: set[str] = field(default_factory=set)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    config_maps: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Folders of this machine that each step sees at the same path, such as one with a kubeconfig.
    host_folders: list[Path] = field(default_factory=list)
    #: API server that has a Workflow for each run and a Pod for each step; None for none.
    api: Api | None = None

    def claim(self, name: str) -> Path:
        if name not in self.claims:
            raise PodNotStartedError(f'persistentvolumeclaim "{name}" not found')
        folder = self.claims_folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def mounts(self, pod: PodSpec, folder: Path) -> dict[str, Path]:
        """Return folders by mount path; what secrets and config maps hold is written below a folder."""
        volumes = {volume["name"]: volume for volume in pod.volumes}
        found = {str(path): path for path in self.host_folders}
        for mount in pod.volume_mounts:
            source = self._volume(volumes[mount["name"]], folder) / mount.get("subPath", "")
            source.mkdir(parents=True, exist_ok=True)
            found[mount["mountPath"].rstrip("/")] = source
        return found

    def environment(self, pod: PodSpec, fields: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
        values = dict(own)
        for variable in pod.environment:
            source = variable.get("valueFrom")
            if source is None:
                values[variable["name"]] = expand(variable.get("value", ""), values)
            elif "fieldRef" in source:
                values[variable["name"]] = fields[source["fieldRef"]["fieldPath"]]
            else:
                value = self._value(source)
                if value is not None:
                    values[variable["name"]] = value
        return values

    def _value(self, source: Mapping[str, Any]) -> str | None:
        is_secret = "secretKeyRef" in source
        reference = source["secretKeyRef" if is_secret else "configMapKeyRef"]
        held = (self.secrets if is_secret else self.config_maps).get(reference["name"], {})
        if reference["key"] not in held and not reference.get("optional"):
            kind = "secret" if is_secret else "configmap"
            raise PodNotStartedError(f"CreateContainerConfigError: {kind} {reference['name']!r} not found")
        return held.get(reference["key"])

    def _volume(self, volume: Mapping[str, Any], folder: Path) -> Path:
        if "persistentVolumeClaim" in volume:
            return self.claim(volume["persistentVolumeClaim"]["claimName"])
        is_secret = "secret" in volume
        source = volume["secret" if is_secret else "configMap"]
        name = source["secretName" if is_secret else "name"]
        held = (self.secrets if is_secret else self.config_maps).get(name)
        if held is None and not source.get("optional"):
            raise PodNotStartedError(f"FailedMount: {name!r} not found")
        target = folder / "volumes" / str(volume["name"])
        target.mkdir(parents=True, exist_ok=True)
        _write_files(target, held or {})
        return target


def _write_files(folder: Path, values: Mapping[str, str]) -> None:
    for key, value in values.items():
        (folder / key).write_text(value, encoding="utf-8")
