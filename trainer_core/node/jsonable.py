"""Convert the return value of a training function into JSON data."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

#: Arrays up to this size become lists; larger ones belong in a file.
_MAX_ARRAY = 10_000


class NotJsonError(ValueError):
    """A value that cannot be converted to JSON; the message is for the user."""


def to_json_data(value: Any) -> tuple[Any, list[str]]:
    """Convert a return value into JSON data.

    Tuples become lists, paths become strings, and numbers and small arrays of numpy or torch become numbers and lists.
    NaN and infinity become null.
    """
    lost: list[str] = []
    return _plain(value, "result", lost), lost


def _plain(value: Any, where: str, lost: list[str]) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return _scalar(value, where, lost)
    if isinstance(value, Mapping):
        return {_key(key, where): _plain(item, f"{where}.{key}", lost) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{index}]", lost) for index, item in enumerate(value)]
    if isinstance(value, os.PathLike):
        return _plain(os.fsdecode(value), where, lost)
    return _plain(_numbers(value, where), where, lost)


def _scalar(value: Any, where: str, lost: list[str]) -> Any:
    """Return the plain value, also for an enum member or a subclass of int, float or str."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # A lone surrogate cannot be encoded as UTF-8.
        return str.__str__(value).encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, int):
        return int(value)
    if math.isfinite(value):
        return float(value)
    lost.append(where)
    return None


def _key(key: Any, where: str) -> str:
    if isinstance(key, str):
        return str(_scalar(key, where, []))
    if isinstance(key, (int, float)) and not isinstance(key, bool):
        return repr(_scalar(key, where, []))
    raise NotJsonError(_sentence(key, f"a key of {where}"))


def _numbers(value: Any, where: str) -> Any:
    """Return the numbers of a numpy or torch value, without importing either library."""
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple) or not hasattr(value, "tolist") or math.prod(shape) > _MAX_ARRAY:
        raise NotJsonError(_sentence(value, where))
    numbers = value.tolist()
    if type(numbers) is type(value):
        raise NotJsonError(_sentence(value, where))
    return numbers


def _sentence(value: Any, where: str) -> str:
    kind = type(value).__name__
    holds = f"the function returned {kind}" if where == "result" else f"the function returned {kind} in {where}"
    return f"{holds}, which is not JSON: return numbers, strings, lists and dicts"
