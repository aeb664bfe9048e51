"""The RuntimePatch tree, field by field: what of a runtime one job may change, down to its containers.

Each class stands for one object of ``spec.runtimePatches[].trainingRuntimeSpec`` (specs.md A3) and knows only the
fields that can be patched there. Plain dicts inside are in Kubernetes' own spelling and travel as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core import checks

__all__ = [
    "ContainerPatch",
    "JobSetSpecPatch",
    "JobSetTemplatePatch",
    "JobSpecPatch",
    "JobTemplatePatch",
    "PodSpecPatch",
    "PodTemplatePatch",
    "ReplicatedJobPatch",
    "TrainingRuntimeSpecPatch",
    "check_patch",
    "merged",
]

_ENV_SOURCES = ("configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef", "fileKeyRef")


class _Patch:
    """One object of the tree."""

    def to_dict(self) -> dict[str, Any]:
        """Return it in Kubernetes' spelling, without the fields that are not set."""
        return {_camel(name): _plain(value) for name, value in vars(self).items() if _is_set(value)}


@dataclass
class ContainerPatch(_Patch):
    """Change one container.

    Args:
        name: A container that the runtime has.
        env: EnvVar dicts, merged into its own by name. For the training container use the trainer's ``env``.
        volume_mounts: VolumeMount dicts, merged into its own; one for each volume.
        security_context: A SecurityContext dict.

    Raises:
        ValueError: An entry lacks what Kubernetes demands.
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
    """Change the pods: where they run, what they mount, as whom.

    Args:
        service_account_name: Whom the pods run as.
        volumes: Volume dicts, merged into the runtime's by name.
        init_containers: Changes to its init containers.
        containers: Changes to its containers.
        image_pull_secrets: Such as ``[{"name": "registry"}]``.
        security_context: A PodSecurityContext dict.
        node_selector: Labels that a machine must have.
        affinity: An Affinity dict.
        tolerations: Toleration dicts, in place of all of the runtime's.
        scheduling_gates: Such as ``[{"name": "example.com/gate"}]``.
        termination_grace_period_seconds: How long a pod has to end when it is told to. From Trainer 2.3 on.

    Raises:
        ValueError: A value is of the wrong kind.
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
            checks.check_text("service_account_name", self.service_account_name, "trainer")
        for name in ("volumes", "image_pull_secrets", "scheduling_gates"):
            for entry in _entries(name, getattr(self, name)):
                _check_named(name, entry)
        _entries("tolerations", self.tolerations)
        _check_patches("init_containers", self.init_containers, ContainerPatch)
        _check_patches("containers", self.containers, ContainerPatch)
        _check_dict("security_context", self.security_context)
        _check_dict("affinity", self.affinity)
        checks.check_labels("node_selector", self.node_selector)
        checks.check_count("termination_grace_period_seconds", self.termination_grace_period_seconds, minimum=0)


@dataclass
class PodTemplatePatch(_Patch):
    """Change the pod template.

    Args:
        metadata: ``{"labels": …, "annotations": …}`` of the pods.
        spec: Changes to the pods.

    Raises:
        ValueError: A value is of the wrong kind.
    """

    metadata: dict[str, Any] | None = None
    spec: PodSpecPatch | None = None

    def __post_init__(self) -> None:
        _check_metadata(self.metadata)
        check_patch("spec", self.spec, PodSpecPatch)


@dataclass
class JobSpecPatch(_Patch):
    """Change the Job.

    Args:
        template: Changes to its pod template.

    Raises:
        ValueError: A value is of the wrong kind.
    """

    template: PodTemplatePatch | None = None

    def __post_init__(self) -> None:
        check_patch("template", self.template, PodTemplatePatch)


@dataclass
class JobTemplatePatch(_Patch):
    """Change the Job template.

    Args:
        metadata: ``{"labels": …, "annotations": …}`` of the Jobs.
        spec: Changes to the Job.

    Raises:
        ValueError: A value is of the wrong kind.
    """

    metadata: dict[str, Any] | None = None
    spec: JobSpecPatch | None = None

    def __post_init__(self) -> None:
        _check_metadata(self.metadata)
        check_patch("spec", self.spec, JobSpecPatch)


@dataclass
class ReplicatedJobPatch(_Patch):
    """Change one of the runtime's replicated jobs.

    Args:
        name: Which, such as ``"node"`` or ``"launcher"``.
        template: Changes to its Job template.

    Raises:
        ValueError: The name is empty, or a value is of the wrong kind.
    """

    name: str
    template: JobTemplatePatch | None = None

    def __post_init__(self) -> None:
        checks.check_text("ReplicatedJobPatch name", self.name, "node")
        check_patch("template", self.template, JobTemplatePatch)


@dataclass
class JobSetSpecPatch(_Patch):
    """Change the JobSet.

    Args:
        replicated_jobs: Changes to its replicated jobs, each named once.

    Raises:
        ValueError: A value is of the wrong kind.
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
        ValueError: A value is of the wrong kind.
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
        ValueError: A value is of the wrong kind.
    """

    template: JobSetTemplatePatch | None = None

    def __post_init__(self) -> None:
        check_patch("template", self.template, JobSetTemplatePatch)


def merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return one patch laid over another, as Kubernetes lays them: dicts key by key, lists of named things by name.

    Any other list, such as tolerations, is replaced.
    """
    result = dict(base)
    for key, value in patch.items():
        result[key] = _merged_value(result.get(key), value)
    return result


def check_patch(what: str, value: object, kind: type[Any]) -> None:
    """Refuse what is not a patch of that kind; None passes.

    Raises:
        ValueError: It is something else.
    """
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{what} must be a {kind.__name__}, got {type(value).__name__}")


def _merged_value(old: Any, new: Any) -> Any:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return merged(old, new)
    if _all_named(old) and _all_named(new):
        by_name = {entry["name"]: entry for entry in old}
        for entry in new:
            by_name[entry["name"]] = merged(by_name.get(entry["name"], {}), entry)
        return list(by_name.values())
    return new


def _all_named(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, Mapping) and "name" in entry for entry in value)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _is_set(value: object) -> bool:
    return value is not None and value not in ([], {})


def _plain(value: Any) -> Any:
    if isinstance(value, _Patch):
        return value.to_dict()
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return copy.deepcopy(value)


def _check_container_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ValueError("Container name must be a non-empty string")


def _check_dict(what: str, value: object) -> None:
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{what} must be a dict in Kubernetes' spelling, got {type(value).__name__}")


def _check_metadata(metadata: object) -> None:
    _check_dict("metadata", metadata)
    if isinstance(metadata, dict):
        unknown = [str(key) for key in metadata if key not in ("labels", "annotations")]
        if unknown:
            raise ValueError(f"metadata {', '.join(unknown)} cannot be patched; only labels and annotations can")
        checks.check_labels("metadata labels", metadata.get("labels"))
        checks.check_annotations("metadata annotations", metadata.get("annotations"))


def _check_patches(what: str, values: object, kind: type[Any]) -> None:
    if values is None:
        return
    if not isinstance(values, list):
        raise ValueError(f"{what} must be a list of {kind.__name__}, got {type(values).__name__}")
    names = []
    for value in values:
        check_patch(f"each of {what}", value, kind)
        names.append(value.name)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{what} names {', '.join(twice)} twice; put the changes into one {kind.__name__}")


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
        raise ValueError(f"env 'value' of {entry['name']} must be a text, got {type(entry['value']).__name__}")
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
