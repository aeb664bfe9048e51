"""Structural schemas: unknown fields, defaults, and a translation for jsonschema. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
_ANY = "x-kubernetes-preserve-unknown-fields"
_RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
#: Not of the schema, but of every object.
_ENVELOPE = ("apiVersion", "kind", "metadata")


def prune(value: Any, schema: Schema, path: str = "") -> list[str]:
    """Remove fields that a schema does not know, and return their paths."""
    if isinstance(value, list):
        found = [prune(item, schema.get("items") or {}, f"{path}[{index}]") for index, item in enumerate(value)]
        return [unknown for paths in found for unknown in paths]
    if not isinstance(value, dict) or schema.get(_ANY):
        return []
    unknown = []
    for key in [key for key in value if path or key not in _ENVELOPE]:
        place = f"{path}.{key}" if path else key
        inner = _field(schema, key)
        if inner is None:
            del value[key]
            unknown.append(place)
        else:
            unknown += prune(value[key], inner, place)
    return unknown


def _field(schema: Schema, key: str) -> Schema | None:
    properties = schema.get("properties") or {}
    if key in properties:
        return properties[key]
    further = schema.get("additionalProperties")
    if further:
        return further if isinstance(further, dict) else {_ANY: True}
    return None


def fill_defaults(value: Any, schema: Schema) -> None:
    """Fill in defaults, in place."""
    if isinstance(value, list):
        for item in value:
            fill_defaults(item, schema.get("items") or {})
    if not isinstance(value, dict):
        return
    for key, inner in (schema.get("properties") or {}).items():
        if "default" in inner and value.get(key) is None:
            value[key] = copy.deepcopy(inner["default"])
        if key in value:
            fill_defaults(value[key], inner)
    further = schema.get("additionalProperties")
    if isinstance(further, dict):
        for key in value:
            fill_defaults(value[key], further)


def translated(schema: Any) -> Any:
    """Return a schema of OpenAPI v3 as JSON Schema."""
    if not isinstance(schema, dict):
        return schema
    result = {key: value for key, value in schema.items() if not key.startswith("x-") and key != "format"}
    if "properties" in schema:
        result["properties"] = {name: translated(inner) for name, inner in schema["properties"].items()}
    for key in ("items", "additionalProperties", "not"):
        if key in schema:
            result[key] = translated(schema[key])
    for key in ("anyOf", "allOf", "oneOf"):
        if key in schema:
            result[key] = [translated(inner) for inner in schema[key]]
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
        result.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    if schema.get("nullable") and "type" in result:
        result["type"] = [result["type"], "null"]
    if schema.get("format") in _RANGES:
        least, most = _RANGES[schema["format"]]
        result.setdefault("minimum", least)
        result.setdefault("maximum", most)
    return result


def duplicates(value: Any, schema: Schema, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and key of every element of a list that another one before it has, too."""
    if isinstance(value, dict):
        for key in value:
            yield from duplicates(value[key], _field(schema, key) or {}, f"{path}.{key}" if path else key)
    if not isinstance(value, list):
        return
    seen: list[Any] = []
    for index, item in enumerate(value):
        key = list_key(item, schema)
        if key is not None and key in seen:
            yield f"{path}[{index}]", key
        seen.append(key)
        yield from duplicates(item, schema.get("items") or {}, f"{path}[{index}]")


def list_key(item: Any, schema: Schema) -> Any:
    """Return by what an element of a list is known; None where that is only its place."""
    kind = schema.get("x-kubernetes-list-type")
    if kind == "set":
        return item
    if kind == "map" and isinstance(item, dict):
        return {key: item.get(key) for key in schema["x-kubernetes-list-map-keys"]}
    return None
