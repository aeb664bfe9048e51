"""Between the plain values of a workload's fields and Run:ai's wrapped ones. Pure.

Run:ai wraps every value so that policies can say more of it: ``{"value": 1}`` for one value, ``{"items": {label:
{"value": 1}}}`` for several; `usage` and `baseWorkload` alone are plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainer_core.runai.parts import Part, Removed
from trainer_core.secrets import SecretRef

if TYPE_CHECKING:
    from trainer_core.runai.spec import TrainingWorkloadSpec

__all__ = ["READING", "from_wire", "secret_text", "to_wire", "unwrap", "wrap"]

#: Fields that are not wrapped.
_PLAIN = ("usage", "baseWorkload")
_SECRET = "SECRET:"  # noqa: S105 -- how Run:ai marks a reference
_DELETED = {"deleted": True}
#: The context of a validation of what a server has: it sets fields that others must not.
READING = {"reading": True}


def wrap(value: Any) -> dict[str, Any]:
    """Return a value as Run:ai wraps it: a dict becomes items, everything else a value."""
    if isinstance(value, Mapping):
        return {"items": {str(label): _wrapped(item) for label, item in value.items()}}
    return _wrapped(value)


def unwrap(raw: Any) -> Any:
    """Return what `wrap` was given.

    Raises:
        ValueError: It is wrapped in another way.
    """
    if isinstance(raw, Mapping) and raw.keys() == {"value"}:
        return raw["value"]
    if isinstance(raw, Mapping) and raw.keys() == {"items"} and isinstance(raw["items"], Mapping):
        return {label: _item(label, item) for label, item in raw["items"].items()}
    raise ValueError(f"it is neither {{'value': …}} nor {{'items': …}}: {str(raw)[:80]}")


def secret_text(ref: SecretRef) -> str:
    """Return an entry of a Secret as Run:ai refers to it in an environment variable."""
    return f"{_SECRET}{ref.name},{ref.key}"


def to_wire(spec: TrainingWorkloadSpec) -> dict[str, Any]:
    """Return the fields of a workload as Run:ai takes them, without those that are not set."""
    found: dict[str, Any] = {}
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if name != "extra" and value is not None:
            found[str(field.alias)] = value if field.alias in _PLAIN else wrap(value)
    return {**found, **spec.extra}


def from_wire(raw: Mapping[str, Any]) -> TrainingWorkloadSpec:
    """Return the fields of a workload from its ``spec``; what is not known, or wrapped unusually, is ``extra``.

    Raises:
        ValueError: A value cannot be right.
    """
    from trainer_core.runai.spec import TrainingWorkloadSpec  # It is written in terms of this module.

    names = {str(field.alias): name for name, field in TrainingWorkloadSpec.model_fields.items() if name != "extra"}
    plain: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for key, value in raw.items():
        try:
            plain[names[key]] = value if key in _PLAIN else _read(names[key], unwrap(value))
        except (KeyError, ValueError):
            extra[key] = value
    return TrainingWorkloadSpec.judged({**plain, "extra": extra}, READING)


def _wrapped(value: Any) -> dict[str, Any]:
    if isinstance(value, Removed):
        return dict(_DELETED)
    if isinstance(value, SecretRef):
        return {"value": secret_text(value)}
    return {"value": value.wire() if isinstance(value, Part) else value}


def _item(label: str, raw: Any) -> Any:
    if raw == _DELETED:
        return Removed()
    if not isinstance(raw, Mapping) or raw.keys() != {"value"}:
        raise ValueError(f"item {label!r} is neither {{'value': …}} nor {{'deleted': true}}: {str(raw)[:80]}")
    return raw["value"]


def _read(name: str, value: Any) -> Any:
    if name == "environment":
        return {label: _secret(item) for label, item in value.items()}
    if isinstance(value, Mapping):
        return {label: _with_extra(name, item) for label, item in value.items()}
    return value


def _secret(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_SECRET):
        name, _, key = value.removeprefix(_SECRET).partition(",")
        try:
            return SecretRef(name, key)
        except ValueError:
            return value
    return value


def _with_extra(name: str, item: Any) -> Any:
    """Members that the model does not know go into the item's ``extra``."""
    if not isinstance(item, Mapping):
        return item
    from trainer_core.runai.spec import ITEMS  # As above.

    known = {str(field.alias) for field in ITEMS[name].model_fields.values()}
    extra = {key: value for key, value in item.items() if key not in known}
    return {**{key: value for key, value in item.items() if key in known}, "extra": extra}
