"""How two runtimes differ, and what a server would refuse to change. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainer_core import resources

__all__ = ["Change", "changes", "patch"]

Raw = Mapping[str, Any]

#: What the server puts where nothing was given (the defaults of Trainer 2.3's CRDs).
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
#: Defaults inside pods, by the end of the path.
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
#: What the server refuses to change once it is set: ``self == oldSelf`` in the CRDs.
_FIXED = re.compile(
    r"spec\.template\.spec\.((network|successPolicy|failurePolicy|startupPolicy|volumeClaimPolicies)\b"
    r"|replicatedJobs\[[^]]*\]\.dependsOn\b)"
)
_QUANTITIES = re.compile(r"\.(limits|requests|capacity)\.[^\[\]]+$")
_KEYS = ("name", "jobName")


@dataclass(frozen=True)
class Change:
    """One place where the wanted runtime differs from the live one.

    Attributes:
        path: Where.
        before: What the live runtime has; None for nothing.
        after: What is wanted; None for nothing.
        fixed: The server refuses the change: the runtime must be deleted and created again. TrainJobs that run are
            not touched by that; since Trainer 2.3 each keeps a copy of its runtime.
    """

    path: str
    before: Any
    after: Any
    fixed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def changes(live: Raw, wanted: Raw) -> list[Change]:
    """Return what must change for the live runtime to be the wanted one.

    What servers add does not count: defaults, ``managedFields`` and the like. Neither do labels and annotations that
    only the live runtime has: they may be another program's.

    Args:
        live: As a server returned it.
        wanted: As it stands in a file.
    """
    found = [Change(path, before, after) for path, before, after in _metadata(live, wanted)]
    for path, before, after in _differences(live.get("spec") or {}, wanted.get("spec") or {}, "spec"):
        found.append(Change(path, before, after, _is_fixed(live, wanted, path)))
    return found


def patch(live: Raw, wanted: Raw) -> dict[str, Any]:
    """Return the JSON merge patch that makes the live runtime the wanted one; empty if there is nothing to do."""
    metadata: dict[str, Any] = {}
    for path, _, after in _metadata(live, wanted):
        _, part, key = path.split(".", 2)
        metadata.setdefault(part, {})[key] = after
    spec = _merge_patch(live.get("spec") or {}, wanted.get("spec") or {}, "spec")
    return {**({"metadata": metadata} if metadata else {}), **({"spec": spec} if spec else {})}


Difference = tuple[str, Any, Any]


def _metadata(live: Raw, wanted: Raw) -> Iterator[Difference]:
    for part in ("labels", "annotations"):
        there = (live.get("metadata") or {}).get(part) or {}
        for key, value in ((wanted.get("metadata") or {}).get(part) or {}).items():
            if there.get(key) != value:
                yield f"metadata.{part}.{key}", there.get(key), value


def _differences(before: Any, after: Any, path: str) -> Iterator[Difference]:
    """Everything below a path that is not the same; missing and null are the same, and so is a default left out."""
    if _same(before, after, path):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from _differences(before.get(key), after.get(key), f"{path}.{key}")
        return
    old, new = _named(before), _named(after)
    if old and new and [each for each in old if each in new] == [each for each in new if each in old]:
        for name in dict.fromkeys([*old, *new]):
            yield from _differences(old.get(name), new.get(name), f"{path}[{name}]")
        return
    yield path, before, after


def _same(before: Any, after: Any, path: str) -> bool:
    if before == after or (after is None and before == _default(path)):
        return True
    if path.endswith(".metadata") and not any((before or {}).values()) and not after:
        # Programs written in Go leave ``creationTimestamp: null`` in templates.
        return True
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return False
    if _QUANTITIES.search(path) and None not in (before, after):
        return bool(_amount(before) == _amount(after))
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return not any(True for pair in zip(before, after, strict=True) for _ in _differences(*pair, f"{path}[]"))
    return False


def _default(path: str) -> Any:
    general = re.sub(r"\[[^]]*\]", "[]", path)
    if general in _DEFAULTS:
        return _DEFAULTS[general]
    return next((value for end, value in _POD_DEFAULTS.items() if general.endswith(end)), None)


def _amount(quantity: Any) -> Any:
    try:
        return resources.parse_quantity(quantity)
    except ValueError:
        return quantity


def _named(value: Any) -> dict[str, Any]:
    """The items of a list by their names; empty unless each has one of its own."""
    if not isinstance(value, list):
        return {}
    names = [next((each[key] for key in _KEYS if key in each), None) for each in value if isinstance(each, Mapping)]
    found = {str(name): each for name, each in zip(names, value, strict=False) if name is not None}
    return found if len(found) == len(value) else {}


def _is_fixed(live: Raw, wanted: Raw, path: str) -> bool:
    """The server compares only where a value was and is: adding one, or taking it away, it allows."""
    match = _FIXED.match(path)
    if match is None:
        return False
    return _lies_at(live, match.group()) and _lies_at(wanted, match.group())


def _lies_at(data: Any, path: str) -> bool:
    for key, name in re.findall(r"([^.\[\]]+)|\[([^]]*)\]", path):
        data = _named(data).get(name) if name else (data or {}).get(key)
        if data is None:
            return False
    return True


def _merge_patch(before: Raw, after: Raw, path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in dict.fromkeys([*before, *after]):
        old, new, below = before.get(key), after.get(key), f"{path}.{key}"
        if not any(True for _ in _differences(old, new, below)):
            continue
        # A list cannot be patched in parts.
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found[key] = _merge_patch(old, new, below)
        else:
            found[key] = new
    return found
