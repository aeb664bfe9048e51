"""Whatever a training function returns → plain JSON data, or a sentence that says why not."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

__all__ = ["NotJsonError", "plain"]

#: An array up to this many numbers becomes a list; a longer one is data, which belongs into a file.
_MAX_ARRAY = 10_000


class NotJsonError(ValueError):
    """A value that JSON cannot hold; the message is for the user."""


def plain(value: Any) -> tuple[Any, list[str]]:
    """Turn a returned value into JSON data.

    Tuples become lists, paths become text, and numbers and small arrays of numpy or torch become plain numbers
    and lists. NaN and infinity, which JSON lacks, become null.

    Returns:
        The data, and where in it a number became null.

    Raises:
        NotJsonError: It holds something else; the message names it.
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
    """The plain value, also of an enum member or a number that only derives from int, float or str."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # Half a surrogate pair is no text that UTF-8 can carry.
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
    """The numbers of a numpy or torch value; neither library is imported for it."""
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
