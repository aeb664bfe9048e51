"""Converts between plain data and the model classes of the `kubernetes` client, such as ``V1EnvVar``.

The client's own deserializer drops unknown keys; `create_model` refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainer_core.base import validation
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.base.text import missing_extra

_CONTAINER = re.compile(r"(?P<kind>[Ll]ist|[Dd]ict)[\[(](str, )?(?P<item>.*)[\])]")
_SIMPLE: dict[str, type[Any]] = {"str": str, "int": int, "bool": bool}


def create_models(what: str, data: Any, kind: str) -> list[Any]:
    """Return model objects, such as ``V1EnvVar``, for a list of objects and dicts, or for a single one."""
    if isinstance(data, (list, tuple)):
        return [create_model(f"{what}[{index}]", each, kind) for index, each in enumerate(data)]
    if isinstance(data, Mapping) or hasattr(data, "attribute_map"):
        return [create_model(what, data, kind)]
    raise ValueError(f"{what} must be a list of {kind} objects or dicts, got {type(data).__name__}")


def create_model(what: str, data: Any, kind: str) -> Any:
    """Return the model object for a dict in Kubernetes' spelling, without unknown keys. An object is returned."""
    validation.check_size(what, data)
    if not isinstance(data, Mapping) and type(data).__name__ != kind:
        raise ValueError(f"{what} must be a {kind} or a dict, got {type(data).__name__}")
    models = _import_models()
    cls = getattr(models, kind)
    values = {}
    attributes = {key: name for name, key in cls.attribute_map.items()}
    for key, value in to_plain_data(data).items():
        if key not in attributes:
            raise ValueError(
                f"{validation.list_names([f'{what}.{key}'])} is not known; {kind} has {', '.join(attributes)}"
            )
        name = attributes[key]
        values[name] = _convert(f"{what}.{key}", value, cls.openapi_types[name])
    try:
        model = cls(**values)
    except ValueError as error:  # The client checks required attributes.
        raise ValueError(f"{what}: {error}") from error
    return data if data == model else model


def to_plain_data(value: Any) -> Any:
    """Return an object of the client or of pydantic as plain data in Kubernetes' spelling, without null values."""
    if hasattr(value, "attribute_map"):
        value = {key: getattr(value, name, None) for name, key in value.attribute_map.items()}
    elif hasattr(value, "model_dump"):
        value = value.model_dump(by_alias=True, exclude_none=True, mode="json")
    if isinstance(value, Mapping):
        return {str(key): to_plain_data(item) for key, item in value.items() if item is not None}
    return [to_plain_data(item) for item in value] if isinstance(value, (list, tuple)) else value


def _convert(what: str, value: Any, kind: str) -> Any:
    """Return a value of a type in the client's notation, such as ``V1EnvVar``, ``list[str]`` or ``dict(str, str)``.

    Since version 34 of the client: ``List[str]`` and ``Dict[str, str]``.
    """
    container = _CONTAINER.fullmatch(kind)
    if container and container["kind"].lower() == "list":
        if not isinstance(value, list):
            raise ValueError(f"{what} must be a list, got {type(value).__name__}")
        return [_convert(f"{what}[{index}]", each, container["item"]) for index, each in enumerate(value)]
    if container:
        validation.check_mapping(what, value, "{'key': 'value'}")
        return {key: _convert(f"{what}.{key}", each, container["item"]) for key, each in value.items()}
    if kind not in _SIMPLE:
        return value if kind == "object" else create_model(what, value, kind)
    has_type = isinstance(value, _SIMPLE[kind]) and isinstance(value, bool) == (kind == "bool")
    if not has_type and not validation.is_placeholder(value):
        raise ValueError(f"{what} must be of type {kind}, got {type(value).__name__}")
    return value


def _import_models() -> Any:
    try:
        from kubernetes.client import models  # Takes half a second.
    except ImportError as error:
        message = missing_extra("DistributedConfig", str(error.name), "kubernetes")
        raise BackendUnavailableError(message, transient=False) from error
    return models
