"""Differences between two runtimes, and the patch between them. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainer_core.base import resources

Raw = Mapping[str, Any]

#: Defaults in the CRDs of Trainer 2.3.
_DEFAULTS: Mapping[str, Any] = {
    "spec.mlPolicy.flux.numProcPerNode": 1,
    "spec.mlPolicy.mpi.mpiImplementation": "OpenMPI",
    "spec.mlPolicy.mpi.numProcPerNode": 1,
    "spec.mlPolicy.mpi.runLauncherAsNode": False,
    "spec.mlPolicy.mpi.sshAuthMountPath": "/root/.ssh",
    "spec.podGroupPolicy.coscheduling.scheduleTimeoutSeconds": 60,
    "spec.podGroupPolicy.volcano.networkTopology.highestTierAllowed": 1,
    "spec.podGroupPolicy.volcano.networkTopology.mode": "hard",
    "spec.template.spec.failurePolicy.restartStrategy": "Recreate",
    "spec.template.spec.replicatedJobs[].groupName": "default",
    "spec.template.spec.replicatedJobs[].replicas": 1,
    "spec.template.spec.volumeClaimPolicies[].retentionPolicy.whenDeleted": "Delete",
}
#: Defaults of pod fields, by the end of their path.
_POD_DEFAULTS: Mapping[str, Any] = {
    "ports[].protocol": "TCP",
    "grpc.service": "",
    "fileKeyRef.optional": False,
    "iscsi.iscsiInterface": "default",
    "azureDisk.fsType": "ext4",
    "azureDisk.readOnly": False,
    "rbd.keyring": "/etc/ceph/keyring",
    "rbd.pool": "rbd",
    "rbd.user": "admin",
    "scaleIO.fsType": "xfs",
    "scaleIO.storageMode": "ThinProvisioned",
    "Ref.name": "",
    "configMap.name": "",
    "secret.name": "",
    "imagePullSecrets[].name": "",
}
#: Immutable fields: ``self == oldSelf`` in the CRDs.
_IMMUTABLE = re.compile(
    r"spec\.template\.spec\.((network|successPolicy|failurePolicy|startupPolicy|volumeClaimPolicies)\b"
    r"|replicatedJobs\[[^]]*\]\.dependsOn\b)"
)
_QUANTITIES = re.compile(r"\.(limits|requests|capacity)\.[^\[\]]+$")
_KEYS = ("name", "jobName")


@dataclass(frozen=True)
class Change:
    """A field in which the desired runtime differs from the live one.

    Attributes:
        path: Path of the field.
        before: Value in the live runtime; None if absent.
        after: Value in the desired runtime; None if absent.
        fixed: Whether the API server refuses the change, so that the runtime must be deleted and created again. That
            does not affect running TrainJobs: since Trainer 2.3 each has a copy of its runtime.
    """

    path: str
    before: Any
    after: Any
    fixed: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def list_changes(live: Raw, desired: Raw) -> list[Change]:
    """Return the changes from the live runtime to the desired one.

    Fields that servers add are ignored: defaults, ``managedFields`` and the like. So are labels and annotations that
    only the live runtime has, because another client may have set them.
    """
    changes = [Change(path, before, after) for path, before, after in _list_metadata_differences(live, desired)]
    for path, before, after in _list_differences(live.get("spec") or {}, desired.get("spec") or {}, "spec"):
        changes.append(Change(path, before, after, _is_fixed(live, desired, path)))
    return changes


def build_patch(live: Raw, desired: Raw) -> dict[str, Any]:
    """Return the JSON merge patch from the live runtime to the desired one; empty if they are equal."""
    metadata: dict[str, Any] = {}
    for path, _, after in _list_metadata_differences(live, desired):
        _, part, key = path.split(".", 2)
        metadata.setdefault(part, {})[key] = after
    spec = _build_merge_patch(live.get("spec") or {}, desired.get("spec") or {}, "spec")
    return {name: part for name, part in (("metadata", metadata), ("spec", spec)) if part}


Difference = tuple[str, Any, Any]


def _list_metadata_differences(live: Raw, desired: Raw) -> Iterator[Difference]:
    for part in ("labels", "annotations"):
        current = (live.get("metadata") or {}).get(part) or {}
        for key, value in ((desired.get("metadata") or {}).get(part) or {}).items():
            if current.get(key) != value:
                yield f"metadata.{part}.{key}", current.get(key), value


def _list_differences(before: Any, after: Any, path: str) -> Iterator[Difference]:
    """Yield the differences below a path. Absent, null and the default are equal."""
    if _is_equal(before, after, path):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from _list_differences(before.get(key), after.get(key), f"{path}.{key}")
        return
    old, new = _index_by_name(before), _index_by_name(after)
    if old and new and [each for each in old if each in new] == [each for each in new if each in old]:
        for name in dict.fromkeys([*old, *new]):
            yield from _list_differences(old.get(name), new.get(name), f"{path}[{name}]")
        return
    yield path, before, after


def _is_equal(before: Any, after: Any, path: str) -> bool:
    if before == after or (after is None and before == _get_default(path)):
        return True
    if path.endswith(".metadata") and not any((before or {}).values()) and not after:
        # Go programs write ``creationTimestamp: null`` into templates.
        return True
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return False
    if _QUANTITIES.search(path) and None not in (before, after):
        return bool(_parse_quantity(before) == _parse_quantity(after))
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return not any(_differ(old, new, f"{path}[]") for old, new in zip(before, after, strict=True))
    return False


def _differ(before: Any, after: Any, path: str) -> bool:
    return next(_list_differences(before, after, path), None) is not None


def _get_default(path: str) -> Any:
    general = re.sub(r"\[[^]]*\]", "[]", path)
    if general in _DEFAULTS:
        return _DEFAULTS[general]
    return next((value for end, value in _POD_DEFAULTS.items() if general.endswith(end)), None)


def _parse_quantity(quantity: Any) -> Any:
    try:
        return resources.parse_quantity(quantity)
    except ValueError:
        return quantity


def _index_by_name(value: Any) -> dict[str, Any]:
    """Return the items of a list by name; empty if an item has no unique name."""
    if not isinstance(value, list):
        return {}
    names = [next((each[key] for key in _KEYS if key in each), None) for each in value if isinstance(each, Mapping)]
    by_name = {str(name): each for name, each in zip(names, value, strict=False) if name is not None}
    return by_name if len(by_name) == len(value) else {}


def _is_fixed(live: Raw, desired: Raw, path: str) -> bool:
    """Return whether the API server refuses the change: it compares only values that exist before and after."""
    match = _IMMUTABLE.match(path)
    if match is None:
        return False
    return _has_value(live, match.group()) and _has_value(desired, match.group())


def _has_value(data: Any, path: str) -> bool:
    for key, name in re.findall(r"([^.\[\]]+)|\[([^]]*)\]", path):
        data = _index_by_name(data).get(name) if name else (data or {}).get(key)
        if data is None:
            return False
    return True


def _build_merge_patch(before: Raw, after: Raw, path: str) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    for key in dict.fromkeys([*before, *after]):
        old, new, below = before.get(key), after.get(key), f"{path}.{key}"
        if not _differ(old, new, below):
            continue
        # A JSON merge patch replaces lists as a whole.
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            patch[key] = _build_merge_patch(old, new, below)
        else:
            patch[key] = new
    return patch
