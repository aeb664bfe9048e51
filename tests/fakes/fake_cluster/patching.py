"""The patches that a server takes: JSON merge, JSON patch, server-side apply and strategic merge."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from fake_cluster.answers import RefusedError

#: Keys by which strategic merge finds an element of a list again; other lists are replaced as a whole.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "schedulingGates": "name",
    "replicatedJobs": "name",
    "ports": "containerPort",
}


def merged(target: Any, patch: Any) -> Any:
    """Return a JSON merge patch (RFC 7386) of something; both are left as they are."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def strategic(target: Any, patch: Any, keys: dict[str, str] | None = None) -> Any:
    """Return a strategic merge: as `merged`, but elements of well-known lists are merged by their key."""
    known = {**_KEYS, **(keys or {})}
    if not isinstance(patch, dict) or not isinstance(target, dict):
        return copy.deepcopy(patch)
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif key in known and isinstance(value, list):
            result[key] = _merged_list(result.get(key) or [], value, known[key], keys)
        elif key in result:
            result[key] = strategic(result[key], value, keys)
        else:
            result[key] = copy.deepcopy(value)
    return result


def _merged_list(target: list[Any], patch: list[Any], key: str, keys: dict[str, str] | None) -> list[Any]:
    result = {element.get(key): element for element in target}
    for element in patch:
        name = element.get(key)
        result[name] = strategic(result[name], element, keys) if name in result else copy.deepcopy(element)
    return list(result.values())


def applied(target: dict[str, Any] | None, configuration: dict[str, Any]) -> dict[str, Any]:
    """Return what server-side apply makes of an object.

    An approximation: fields that a manager no longer names stay, and there are no conflicts between managers.
    """
    return strategic(target or {}, configuration, {"runtimePatches": "manager"})


def json_patched(target: Any, operations: Sequence[dict[str, Any]]) -> Any:
    """Return a JSON patch (RFC 6902) of something."""
    document = {"": copy.deepcopy(target)}
    for operation in operations:
        try:
            _OPERATIONS[operation["op"]](document, operation)
        except (KeyError, IndexError, TypeError, ValueError):
            raise RefusedError(
                422, f"the server rejected our request due to an error in our request: {operation}"
            ) from None
    return document[""]


def _parent(document: Any, pointer: str) -> tuple[Any, Any]:
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")]
    place = document
    for part in parts[:-1]:
        place = place[int(part)] if isinstance(place, list) else place[part]
    last: Any = parts[-1]
    if isinstance(place, list):
        last = len(place) if last == "-" else int(last)
    return place, last


def _read(document: Any, pointer: str) -> Any:
    place, key = _parent(document, pointer)
    return place[key]


def _add(document: Any, operation: dict[str, Any]) -> None:
    place, key = _parent(document, operation["path"])
    if isinstance(place, list):
        place.insert(key, operation["value"])
    else:
        place[key] = operation["value"]


def _remove(document: Any, operation: dict[str, Any]) -> None:
    place, key = _parent(document, operation["path"])
    del place[key]


def _replace(document: Any, operation: dict[str, Any]) -> None:
    _read(document, operation["path"])
    place, key = _parent(document, operation["path"])
    place[key] = operation["value"]


def _move(document: Any, operation: dict[str, Any]) -> None:
    value = _read(document, operation["from"])
    _remove(document, {"path": operation["from"]})
    _add(document, {"path": operation["path"], "value": value})


def _copy(document: Any, operation: dict[str, Any]) -> None:
    value = copy.deepcopy(_read(document, operation["from"]))
    _add(document, {"path": operation["path"], "value": value})


def _test(document: Any, operation: dict[str, Any]) -> None:
    if _read(document, operation["path"]) != operation["value"]:
        raise ValueError(operation)


_OPERATIONS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}
