"""The classes of a RuntimePatch: the fields of a runtime that one TrainJob may change, down to its containers.

Each class is one object of ``spec.runtimePatches[].trainingRuntimeSpec`` of a TrainJob and has exactly the fields that
can be patched there. Dicts in them use Kubernetes' field names and are sent unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.base import validation
from trainer_core.base.secrets import redact

_ENV_SOURCES = ("configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef", "fileKeyRef")


class _Patch:
    """One object of the tree."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object with Kubernetes' field names, without unset fields."""
        return {_camel(name): _to_plain(value) for name, value in vars(self).items() if _is_set(value)}


@dataclass
class ContainerPatch(_Patch):
    """Change one container.

    Upstream: ``…spec.template.spec.containers[]`` of a replicated job.

    Args:
        name: Name of an existing container of the runtime.
        env: EnvVar dicts, merged into the container's by name. For the training container use the trainer's ``env``.
        volume_mounts: VolumeMount dicts, merged into the container's; one per volume.
        security_context: A SecurityContext dict.

    Raises:
        ValueError: An entry lacks a required field.
    """

    name: str
    env: list[dict[str, Any]] | None = None
    volume_mounts: list[dict[str, Any]] | None = None
    security_context: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _check_container_name(self.name)
        for entry in _entries("env", self.env):
            _check_env_entry(entry)
        for entry in _entries("volume_mounts", self.volume_mounts):
            _check_mount(entry)
        _check_dict("security_context", self.security_context)


@dataclass
class PodSpecPatch(_Patch):
    """Change the pods of one replicated job.

    Upstream: ``…spec.template.spec`` of a replicated job.

    Args:
        service_account_name: ``serviceAccountName``.
        volumes: ``volumes``: Volume dicts, merged into the runtime's by name.
        init_containers: Changes to init containers.
        containers: Changes to containers.
        image_pull_secrets: ``imagePullSecrets``, such as ``[{"name": "registry"}]``.
        security_context: ``securityContext``: a PodSecurityContext dict.
        node_selector: ``nodeSelector``: labels that a node must have.
        affinity: ``affinity``: an Affinity dict.
        tolerations: ``tolerations``: Toleration dicts; they replace all of the runtime's.
        scheduling_gates: ``schedulingGates``, such as ``[{"name": "example.com/gate"}]``.
        termination_grace_period_seconds: ``terminationGracePeriodSeconds``, in seconds. Requires Trainer 2.3.

    Raises:
        ValueError: A value has the wrong type.
    """

    service_account_name: str | None = None
    volumes: list[dict[str, Any]] | None = None
    init_containers: list[ContainerPatch] | None = None
    containers: list[ContainerPatch] | None = None
    image_pull_secrets: list[dict[str, Any]] | None = None
    security_context: dict[str, Any] | None = None
    node_selector: dict[str, str] | None = None
    affinity: dict[str, Any] | None = None
    tolerations: list[dict[str, Any]] | None = None
    scheduling_gates: list[dict[str, Any]] | None = None
    termination_grace_period_seconds: int | None = None

    def __post_init__(self) -> None:
        if self.service_account_name is not None:
            validation.check_string("service_account_name", self.service_account_name, "trainer")
        for name in ("volumes", "image_pull_secrets", "scheduling_gates"):
            for entry in _entries(name, getattr(self, name)):
                _check_named(name, entry)
        _entries("tolerations", self.tolerations)
        _check_patches("init_containers", self.init_containers, ContainerPatch)
        _check_patches("containers", self.containers, ContainerPatch)
        _check_dict("security_context", self.security_context)
        _check_dict("affinity", self.affinity)
        validation.check_labels("node_selector", self.node_selector)
        validation.check_count("termination_grace_period_seconds", self.termination_grace_period_seconds, minimum=0)


@dataclass
class PodTemplatePatch(_Patch):
    """Change the pod template of one replicated job.

    Args:
        metadata: ``{"labels": …, "annotations": …}`` of the pods.
        spec: Changes to the pods.

    Raises:
        ValueError: A value has the wrong type.
    """

    metadata: dict[str, Any] | None = None
    spec: PodSpecPatch | None = None

    def __post_init__(self) -> None:
        _check_metadata(self.metadata)
        check_patch("spec", self.spec, PodSpecPatch)


@dataclass
class JobSpecPatch(_Patch):
    """Change the Job of one replicated job.

    Args:
        template: Changes to its pod template.

    Raises:
        ValueError: A value has the wrong type.
    """

    template: PodTemplatePatch | None = None

    def __post_init__(self) -> None:
        check_patch("template", self.template, PodTemplatePatch)


@dataclass
class JobTemplatePatch(_Patch):
    """Change the Job template of one replicated job.

    Args:
        metadata: ``{"labels": …, "annotations": …}`` of the Jobs.
        spec: Changes to the Job.

    Raises:
        ValueError: A value has the wrong type.
    """

    metadata: dict[str, Any] | None = None
    spec: JobSpecPatch | None = None

    def __post_init__(self) -> None:
        _check_metadata(self.metadata)
        check_patch("spec", self.spec, JobSpecPatch)


@dataclass
class ReplicatedJobPatch(_Patch):
    """Change one replicated job of the runtime.

    Args:
        name: Its name, such as ``"node"`` or ``"launcher"``.
        template: Changes to its Job template.

    Raises:
        ValueError: The name is empty, or a value has the wrong type.
    """

    name: str
    template: JobTemplatePatch | None = None

    def __post_init__(self) -> None:
        validation.check_string("ReplicatedJobPatch name", self.name, "node")
        check_patch("template", self.template, JobTemplatePatch)


@dataclass
class JobSetSpecPatch(_Patch):
    """Change the JobSet.

    Args:
        replicated_jobs: Changes to its replicated jobs, at most one entry for each.

    Raises:
        ValueError: A value has the wrong type.
    """

    replicated_jobs: list[ReplicatedJobPatch] | None = None

    def __post_init__(self) -> None:
        _check_patches("replicated_jobs", self.replicated_jobs, ReplicatedJobPatch)


@dataclass
class JobSetTemplatePatch(_Patch):
    """Change the JobSet template.

    Args:
        metadata: ``{"labels": …, "annotations": …}`` of the JobSet.
        spec: Changes to the JobSet.

    Raises:
        ValueError: A value has the wrong type.
    """

    metadata: dict[str, Any] | None = None
    spec: JobSetSpecPatch | None = None

    def __post_init__(self) -> None:
        _check_metadata(self.metadata)
        check_patch("spec", self.spec, JobSetSpecPatch)


@dataclass
class TrainingRuntimeSpecPatch(_Patch):
    """Change the spec of a runtime.

    Args:
        template: Changes to its JobSet template.

    Raises:
        ValueError: A value has the wrong type.
    """

    template: JobSetTemplatePatch | None = None

    def __post_init__(self) -> None:
        check_patch("template", self.template, JobSetTemplatePatch)


def merge_patches(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return one patch merged over another: dicts by key, lists of named objects by name.

    Other lists, such as tolerations, are replaced.
    """
    result = dict(base)
    for key, value in patch.items():
        result[key] = _merge_values(result.get(key), value)
    return result


def check_patch(what: str, value: object, kind: type[Any]) -> None:
    """Refuse a value that is not a patch of the given class; None is accepted.

    Raises:
        ValueError: The value is something else.
    """
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{what} must be a {kind.__name__}, got {type(value).__name__}")


def _merge_values(old: Any, new: Any) -> Any:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return merge_patches(old, new)
    if _all_named(old) and _all_named(new):
        by_name = {entry["name"]: entry for entry in old}
        for entry in new:
            by_name[entry["name"]] = merge_patches(by_name.get(entry["name"], {}), entry)
        return list(by_name.values())
    return new


def _all_named(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, Mapping) and "name" in entry for entry in value)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _is_set(value: object) -> bool:
    return value is not None and value not in ([], {})


def _to_plain(value: Any) -> Any:
    if isinstance(value, _Patch):
        return value.to_dict()
    if isinstance(value, list):
        return [_to_plain(entry) for entry in value]
    return copy.deepcopy(value)


def _check_container_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ValueError("Container name must be a non-empty string")


def _check_dict(what: str, value: object) -> None:
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{what} must be a dict with Kubernetes' field names, got {type(value).__name__}")


def _check_metadata(metadata: object) -> None:
    _check_dict("metadata", metadata)
    if isinstance(metadata, dict):
        unknown = [key for key in metadata if key not in ("labels", "annotations")]
        if unknown:
            raise ValueError(
                f"metadata {validation.list_names(unknown)} cannot be patched; only labels and annotations can be"
            )
        validation.check_labels("metadata labels", metadata.get("labels"))
        validation.check_annotations("metadata annotations", metadata.get("annotations"))


def _check_patches(what: str, values: object, kind: type[Any]) -> None:
    if values is None:
        return
    if not isinstance(values, list):
        raise ValueError(f"{what} must be a list of {kind.__name__}, got {type(values).__name__}")
    names = []
    for value in values:
        if not isinstance(value, kind):
            raise ValueError(f"each of {what} must be a {kind.__name__}, got {type(value).__name__}")
        names.append(value.name)
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(
            f"{what} names {validation.list_names(duplicates)} twice; merge the changes into one {kind.__name__}"
        )


def _entries(what: str, values: object) -> list[dict[str, Any]]:
    if values is None:
        return []
    if not isinstance(values, list):
        raise ValueError(f"{what} must be a list of dictionaries")
    for value in values:
        if not isinstance(value, dict):
            raise ValueError(f"Each {what} entry must be a dictionary")
    return values


def _check_named(what: str, entry: dict[str, Any]) -> None:
    if "name" not in entry:
        raise ValueError(f"Each {what} entry must have a 'name' key")
    if not isinstance(entry["name"], str) or not entry["name"].strip():
        raise ValueError(f"{what} 'name' must be a non-empty string")


def _check_env_entry(entry: dict[str, Any]) -> None:
    _check_named("env", entry)
    if ("value" in entry) == ("valueFrom" in entry):
        raise ValueError("Each env entry must have either 'value' or 'valueFrom' key")
    if "value" in entry and not isinstance(entry["value"], str):
        raise ValueError(
            f"env 'value' of {redact(entry['name'])} must be a string, got {type(entry['value']).__name__}"
        )
    if "valueFrom" not in entry:
        return
    if not isinstance(entry["valueFrom"], dict):
        raise ValueError("env 'valueFrom' must be a dictionary")
    if not any(source in entry["valueFrom"] for source in _ENV_SOURCES):
        raise ValueError(f"env 'valueFrom' must contain one of: {', '.join(_ENV_SOURCES)}")


def _check_mount(entry: dict[str, Any]) -> None:
    _check_named("volume_mounts", entry)
    if "mountPath" not in entry:
        raise ValueError("Each volume_mounts entry must have a 'mountPath' key")
    path = entry["mountPath"]
    if not isinstance(path, str) or not path.strip():
        raise ValueError("volume_mounts 'mountPath' must be a non-empty string")
    if not path.startswith("/"):
        raise ValueError(f"volume_mounts 'mountPath' must be an absolute path (start with /): {path}")
