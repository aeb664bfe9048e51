"""Wire format of the fields of a Run:ai workload. Pure.

Run:ai wraps every value, so that policies can add constraints to it: ``{"value": 1}`` for a single value, and
``{"items": {label: {"value": 1}}}`` for several. Only ``usage`` and ``baseWorkload`` are not wrapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_core.backend_fields.runai_items import ItemModel, Removed
from trainer_core.secrets import SecretRef

_SECRET_PREFIX = "SECRET:"  # noqa: S105 -- the prefix of a reference
_DELETED = {"deleted": True}


def wrap(value: Any) -> dict[str, Any]:
    """Wrap the value of a field: a dict as items, anything else as a value."""
    if isinstance(value, Mapping):
        return {"items": {str(label): _wrap_item(item) for label, item in value.items()}}
    return _wrap_item(value)


def unwrap(raw: Any) -> Any:
    """Return the value that `wrap` wrapped."""
    if isinstance(raw, Mapping) and raw.keys() == {"value"}:
        return raw["value"]
    if isinstance(raw, Mapping) and raw.keys() == {"items"} and isinstance(raw["items"], Mapping):
        return {label: _unwrap_item(label, item) for label, item in raw["items"].items()}
    raise ValueError(f"expected {{'value': …}} or {{'items': …}}, got {str(raw)[:80]}")


def format_secret(ref: SecretRef) -> str:
    """Return the value of an environment variable that refers to an entry of a Secret."""
    return f"{_SECRET_PREFIX}{ref.name},{ref.key}"


def parse_secret_text(value: Any) -> Any:
    """Return the value of an environment variable, as a SecretRef if it refers to an entry of a Secret."""
    if isinstance(value, str) and value.startswith(_SECRET_PREFIX):
        name, _, key = value.removeprefix(_SECRET_PREFIX).partition(",")
        try:
            return SecretRef(name, key)
        except ValueError:
            return value
    return value


def _wrap_item(value: Any) -> dict[str, Any]:
    if isinstance(value, Removed):
        return dict(_DELETED)
    if isinstance(value, SecretRef):
        return {"value": format_secret(value)}
    return {"value": value.to_wire() if isinstance(value, ItemModel) else value}


def _unwrap_item(label: str, raw: Any) -> Any:
    if raw == _DELETED:
        return Removed()
    if not isinstance(raw, Mapping) or raw.keys() != {"value"}:
        raise ValueError(f"item {label!r}: expected {{'value': …}} or {{'deleted': true}}, got {str(raw)[:80]}")
    return raw["value"]
