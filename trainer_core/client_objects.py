"""Objects of the kubernetes client, of plain data and back. The client's own reader drops what it does not know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainer_core import checks
from trainer_core.errors import BackendUnavailableError

__all__ = ["listed", "made", "plain"]

_CONTAINER = re.compile(r"(?P<kind>list|dict)[\[(](str, )?(?P<item>.*)[\])]")
_SIMPLE: dict[str, type[Any]] = {"str": str, "int": int, "bool": bool}


def listed(what: str, given: Any, kind: str) -> list[Any]:
    """Return objects of a class of the client, made of a list of objects and dicts, or of one that stands alone.

    Args:
        what: Where they stand, for messages.
        given: The list.
        kind: Name of the class, such as ``V1EnvVar``.

    Raises:
        ValueError: One of them is something else, or has a key that the class does not know.
        BackendUnavailableError: The client is not installed.
    """
    if isinstance(given, (list, tuple)):
        return [made(f"{what}[{index}]", each, kind) for index, each in enumerate(given)]
    if isinstance(given, Mapping) or hasattr(given, "attribute_map"):
        return [made(what, given, kind)]
    raise ValueError(f"{what} must be a list of {kind} objects or dicts, got {type(given).__name__}")


def made(what: str, given: Any, kind: str) -> Any:
    """Return an object of a class of the client, made of a dict in Kubernetes' spelling; one that is there passes.

    Args:
        what: Where it stands, for messages.
        given: The object, or the dict.
        kind: Name of the class.

    Raises:
        ValueError: It is something else, lacks what it must have, or has a key that the class does not know.
        BackendUnavailableError: The client is not installed.
    """
    if not isinstance(given, Mapping) and type(given).__name__ != kind:
        raise ValueError(f"{what} must be a {kind} or a dict, got {type(given).__name__}")
    models = _models()
    cls = getattr(models, kind)
    values = {}
    keys = {key: name for name, key in cls.attribute_map.items()}
    for key, value in plain(given).items():
        if key not in keys:
            raise ValueError(f"{what}.{key} is not known; {kind} has {', '.join(keys)}")
        values[keys[key]] = _value(f"{what}.{key}", value, cls.openapi_types[keys[key]])
    try:
        found = cls(**values)
    except ValueError as error:  # The client's own check of what must be there.
        raise ValueError(f"{what}: {error}") from error
    return given if given == found else found


def plain(value: Any) -> Any:
    """Return what an object of a client or a model says, as plain data in Kubernetes' spelling, without its nulls."""
    if hasattr(value, "attribute_map"):
        value = {key: getattr(value, name, None) for name, key in value.attribute_map.items()}
    elif hasattr(value, "model_dump"):
        value = value.model_dump(by_alias=True, exclude_none=True, mode="json")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items() if item is not None}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _value(what: str, value: Any, kind: str) -> Any:
    """A value of a kind as the client writes them: ``str``, ``V1EnvVarSource``, ``list[str]``, ``dict(str, str)``."""
    container = _CONTAINER.fullmatch(kind)
    if container and container["kind"] == "list":
        if not isinstance(value, list):
            raise ValueError(f"{what} must be a list, got {type(value).__name__}")
        return [_value(f"{what}[{index}]", each, container["item"]) for index, each in enumerate(value)]
    if container:
        checks.check_mapping(what, value, "{'key': 'value'}")
        return {key: _value(f"{what}.{key}", each, container["item"]) for key, each in value.items()}
    if kind not in _SIMPLE:
        return value if kind == "object" else made(what, value, kind)
    right = isinstance(value, _SIMPLE[kind]) and isinstance(value, bool) == (kind == "bool")
    if not right and not checks.is_placeholder(value):
        raise ValueError(f"{what} must be of type {kind}, got {type(value).__name__}")
    return value


def _models() -> Any:
    try:
        from kubernetes.client import models  # Takes half a second.
    except ImportError as error:
        raise BackendUnavailableError(
            f"DistributedConfig is made of objects of the `{error.name}` package, which is not installed: "
            'pip install "trainjob-workflows[kubernetes]"'
        ) from error
    return models
