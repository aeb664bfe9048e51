"""What a training function returned: work that was not done is no result."""

from __future__ import annotations

import io
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

#: What works only when it is read, awaited or called.
_LAZY = (Awaitable, AsyncIterator, Iterator, partial, BuiltinFunctionType, FunctionType, MethodType)
_CONTAINERS = (dict, list, tuple, set)
#: How deep containers in containers are looked into, which may contain themselves.
_DEPTH = 3


def unwrap(value: Any) -> Any:
    """Return a value with the results of the futures that it is or has. Raises the exception of a future."""
    if _is_future(value) and value.done():
        return value.result()
    if type(value) is dict:
        return {key: unwrap(each) if _is_future(each) else each for key, each in value.items()}
    if type(value) in (list, tuple) and any(map(_is_future, value)):
        return type(value)(map(unwrap, value))
    return value


def find_undone(value: Any, depth: int = _DEPTH) -> str | None:
    """Return what a value consists of, if all of it is work that was not done, such as ``dict of generator``."""
    if isinstance(value, _CONTAINERS):
        first = None
        for each in value.values() if isinstance(value, dict) else value:
            undone = find_undone(each, depth - 1) if depth else None
            if undone is None:
                return None
            first = first or undone
        return first and f"{type(value).__name__} of {first}"
    is_lazy = isinstance(value, _LAZY) and not isinstance(value, io.IOBase)
    return type(value).__name__ if is_lazy or _is_future(value) else None


def _is_future(value: Any) -> bool:
    # Not imported: where nothing has imported it, there are none.
    return isinstance(value, getattr(sys.modules.get("concurrent.futures"), "Future", ()))
