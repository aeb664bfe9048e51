"""Convert the return value of a training function into JSON data, and find its metrics and artifacts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Set
from enum import Enum
from numbers import Complex, Integral, Number, Real
from typing import Any

#: Arrays up to this size become lists; larger ones belong in a file.
_MAX_ARRAY = 10_000
#: Levels of lists and dicts. A program that reads much deeper JSON fails.
_MAX_DEPTH = 100
_MAX_REASON = 100
_NOT_FINITE = "null instead of a number that is not finite"
_NOT_JSON = "null instead of a value that is not JSON"
_NO_METRIC = "no metric, because it is not a finite number"
_NO_KEY = "left out, because the key is not JSON or there twice"

#: What became null or was left out: why, and the place with the reason, by place.
_Lost = dict[str, tuple[str, str]]


class NotJsonError(ValueError):
    """A value that has no JSON form; the message is the reason, or empty."""


def to_json_data(value: Any) -> tuple[Any, str]:
    """Convert a return value into JSON data, with a note that names what became null; empty if nothing did.

    Never raises: ``{"day": date(2026, 1, 2), "loss": nan, "raw": b""}`` →
    ``{"day": "2026-01-02", "loss": None, "raw": None}``.
    """
    lost: _Lost = {}
    try:
        data = _convert(value, "result", lost, ())
    except Exception as error:  # noqa: BLE001 -- conversion runs code of other libraries; the training has succeeded
        kind, _, reason = _describe(value, error).partition(": ")
        note = f"the function returned {kind}, which is not JSON: return numbers, strings, lists and dicts"
        return None, f"{note} ({reason})" if reason else note
    for name, number in _as_dict(_as_dict(data).get("metrics")).items():
        if not is_finite_number(number) and not isinstance(number, bool):
            lost.setdefault(f"result.metrics.{name}", (_NO_METRIC, f"result.metrics.{name}"))
    places: dict[str, list[str]] = {}
    for why, place in lost.values():
        places.setdefault(why, []).append(place)
    return data, "; ".join(f"{why}: {', '.join(each)}" for why, each in places.items())


def extract_metrics(result: Any) -> dict[str, float | None]:
    """Return the numbers of a result: of its ``metrics`` entry if it has one, otherwise of its top level.

    What else it has by name is None: it is not a finite number, and no earlier report replaces it.
    """
    top = dict(_as_dict(result))
    entry, _ = top.pop("metrics", None), top.pop("artifacts", None)
    source = entry if isinstance(entry, dict) else top
    return {
        **{str(name): float(value) for name, value in source.items() if is_finite_number(value)},
        **{str(name): None for name, value in {**top, **source}.items() if not is_finite_number(value)},
    }


def extract_artifacts(result: Any) -> dict[str, str]:
    """Return the URIs in the ``artifacts`` entry of a result, by name. Values that are not strings are left out."""
    entry = _as_dict(_as_dict(result).get("artifacts"))
    return {str(name): uri for name, uri in entry.items() if isinstance(uri, str)}


def is_finite_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # An int can be too large for a float.
        return False


def to_text(text: str) -> str:
    """Return the text of a string, also of a subclass. A lone surrogate cannot be encoded as UTF-8."""
    return str.__str__(text).encode("utf-8", "replace").decode("utf-8")


def _as_dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _convert_item(value: Any, where: str, lost: _Lost, above: tuple[int, ...]) -> Any:
    try:
        return _convert(value, where, lost, above)
    except Exception as error:  # noqa: BLE001 -- as in `to_json_data`
        lost[where] = (_NOT_JSON, f"{where} ({_describe(value, error)})")
        return None


def _convert(value: Any, where: str, lost: _Lost, above: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return _convert_scalar(value, where, lost)
    if id(value) in above or len(above) == _MAX_DEPTH:
        raise NotJsonError("contains itself" if id(value) in above else f"more than {_MAX_DEPTH} levels")
    above = (*above, id(value))
    if isinstance(value, Mapping):
        return _convert_items(value.items(), where, lost, above)
    if isinstance(value, (list, tuple)):
        return [_convert_item(item, f"{where}[{index}]", lost, above) for index, item in enumerate(value)]
    if isinstance(value, Set):
        items = [_convert_item(item, where, lost, above) for item in value]
        is_of_numbers = all(isinstance(item, (int, float)) for item in items)
        return sorted(items, key=None if is_of_numbers else json.dumps)
    if hasattr(type(value), "__dataclass_fields__"):
        from dataclasses import fields  # Takes time.

        items = [(field.name, getattr(value, field.name)) for field in fields(value)]
        return _convert_items(items, where, lost, above)
    return _convert(_simplify(value), where, lost, above)


def _convert_items(items: Any, where: str, lost: _Lost, above: tuple[int, ...]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, item in items:
        try:
            name = to_text(key) if isinstance(key, str) else _convert(key, where, {}, above)
            name = name if isinstance(name, str) else json.dumps(name)
        except Exception as error:  # noqa: BLE001 -- as in `to_json_data`
            name = _describe(key, error)
            lost[f"{where}.{name}"] = (_NO_KEY, f"a key of {where} ({name})")
            continue
        if name in data:
            lost[f"{where}.{name}"] = (_NO_KEY, f"{where}.{name}")
        else:
            data[name] = _convert_item(item, f"{where}.{name}", lost, above)
    return data


def _convert_scalar(value: Any, where: str, lost: _Lost) -> Any:
    """Return the plain value, also for an enum member or a subclass of int, float or str."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return to_text(value)
    if isinstance(value, int):
        int.__repr__(value)  # Python refuses to print an int of thousands of digits.
        return int(value)
    if math.isfinite(value):
        return float(value)
    lost[where] = (_NOT_FINITE, where)
    return None


def _simplify(value: Any) -> Any:
    """Return the text of a date or path, or the numbers of a numpy or torch value, without importing either library."""
    from datetime import date, time  # Takes time.

    if isinstance(value, Enum):
        return value.value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    shape, kind = getattr(value, "shape", None), getattr(getattr(value, "dtype", None), "kind", None)
    if kind == "m":  # A numpy duration is an Integral.
        raise NotJsonError
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) or (isinstance(value, Number) and not isinstance(value, Complex)):
        return float(value)  # type: ignore[arg-type]
    if not isinstance(shape, tuple) or not hasattr(value, "tolist"):
        raise NotJsonError
    if math.prod(shape) > _MAX_ARRAY:
        raise NotJsonError(f"more than {_MAX_ARRAY} values; write it to a file")
    if kind == "M":
        # Its list would have integers for nanoseconds.
        return json.loads(json.dumps(value.astype(str).tolist()).replace('"NaT"', "NaN"))
    plain = value.tolist()
    return float(value) if type(plain) is type(value) else plain


def _describe(value: Any, error: Exception) -> str:
    """Return the type of a value, and why it has no JSON form: ``Device: RuntimeError: CUDA error``."""
    reason = str(error) if isinstance(error, NotJsonError) else f"{type(error).__name__}: {error}"
    return ": ".join(filter(None, [type(value).__name__, " ".join(reason.split())[:_MAX_REASON]]))
