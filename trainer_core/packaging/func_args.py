"""Check the arguments of a packaged function against its signature and convert them to its declared types."""

from __future__ import annotations

import ast
import inspect
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from trainer_core import validation
from trainer_core.secrets import redact
from trainer_core.validation import list_names

#: Types to which strings and numbers are converted, by the spelling of the annotation.
_TYPES = {"int": "int", "float": "float", "bool": "bool", "str": "str"} | dict.fromkeys(("list", "List"), "list")
_TYPES |= dict.fromkeys(("dict", "Dict"), "dict")
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


class PartialArgs(dict[str, Any]):
    """Arguments to which others are added later, so that required ones may be missing."""


def check_func_args(func: Callable[..., Any], args: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments as plain JSON data. Strings are not converted, because they may be templates."""
    plain = check_json(args)
    parameters = _signature(func)
    if parameters is not None:
        given = parameters if isinstance(args, PartialArgs) else plain
        _check_names(getattr(func, "__qualname__", type(func).__name__), parameters, plain, given)
    return plain


def check_json(args: Mapping[str, Any] | None, what: str = "func_args") -> dict[str, Any]:
    """Return a copy of the arguments as plain JSON data, without checking a signature."""
    if args is None:
        return {}
    if not isinstance(args, Mapping):
        raise ValueError(f"{what} must be a dict of keyword arguments such as {{'epochs': 3}}, got {redact(args)}")
    validation.check_size(what, args)
    return _plain_mapping(args, what)


def declared_types(func: Callable[..., Any]) -> dict[str, str]:
    """Return the simple types that a function declares, such as ``{"epochs": "int"}``; others are left out."""
    parameters = _signature(func) or {}
    named = (p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    kinds = {parameter.name: _simple(parameter.annotation) for parameter in named}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def coerce(args: Mapping[str, Any], types: Mapping[str, str], function: str = "the function") -> dict[str, Any]:
    """Convert arguments to the types that the function declares.

    Templates and command lines turn values into strings, and KFP turns numbers into floats: ``"10"`` and ``10.0``
    become 10, ``"true"`` becomes True, and JSON text (or a Python literal) becomes a list or dict. None stays None, and
    arguments without a declared type stay unchanged.
    """
    return {name: _coerced(name, value, types.get(name), function) for name, value in args.items()}


def _signature(func: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(func).parameters
    except (TypeError, ValueError):
        return None  # Some functions written in C have no signature.


def _check_names(
    name: str, parameters: Mapping[str, inspect.Parameter], args: Mapping[str, Any], given: Mapping[str, Any]
) -> None:
    named = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    positional = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    if positional:
        raise ValueError(
            f"{name} has positional-only parameters ({list_names(positional)}), but func_args are named; remove the /"
        )
    # First, because a misspelt name is also missing.
    unknown = [n for n in args if n not in named]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        known = f"its parameters are {list_names(named)}" if named else "it has no parameters"
        raise ValueError(f"{name} has no parameter {list_names(unknown)}; {known}")
    missing = [n for n, p in named.items() if p.default is p.empty and n not in given]
    if missing:
        raise ValueError(f"{name} requires {list_names(missing)}; add it to func_args")


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (str, int, float)):
        return _plain_scalar(value, where)
    if isinstance(value, Mapping):
        return _plain_mapping(value, where)
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise ValueError(f"{where} is a {type(value).__name__}, which is not JSON; {_remedy(value)}")


def _plain_scalar(value: Any, where: str) -> Any:
    """Return the plain value, also for an enum member or a subclass of int, float or str."""
    if isinstance(value, str):
        text = str.__str__(value)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f"{where} contains a lone surrogate, which UTF-8 cannot encode; decode the text correctly")
        return text
    if isinstance(value, int):
        return int(value)
    if not math.isfinite(value):
        raise ValueError(f"{where} is {float(value)}, which is not JSON; remove it, or pass it as a string")
    return float(value)


def _plain_mapping(value: Mapping[Any, Any], where: str) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"{where} has the key {redact(key)}, but JSON keys are strings; put it in quotes")
    return {_plain_scalar(k, where): _plain(v, f"{where}[{redact(str(k))}]") for k, v in value.items()}


def _remedy(value: Any) -> str:
    if hasattr(value, "__fspath__"):
        return "pass str(…)"
    if hasattr(value, "isoformat"):
        return "pass its isoformat()"
    if hasattr(value, "tolist"):
        return "pass its tolist()"
    if isinstance(value, (set, frozenset)):
        return "pass a sorted list"
    return "pass numbers, strings, lists and dicts"


def _simple(annotation: Any) -> str | None:
    if annotation is inspect.Parameter.empty:
        return None
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    try:
        return _simple_node(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError:
        return None  # The repr of an object that is not an expression, such as a class defined in a function.


def _simple_node(node: ast.expr) -> str | None:
    """Return the simple type of an annotation, which may be optional; None for other annotations."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _simple(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _one_beside_none([node.left, node.right])
    if isinstance(node, ast.Subscript):
        outer = _last_name(node.value)
        if outer in ("Optional", "Union"):
            return _one_beside_none(node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])
        return _TYPES.get(outer) if outer in ("list", "List", "dict", "Dict") else None
    return _TYPES.get(_last_name(node))


def _one_beside_none(nodes: list[ast.expr]) -> str | None:
    others = [node for node in nodes if not (isinstance(node, ast.Constant) and node.value is None)]
    return _simple_node(others[0]) if len(others) == 1 else None


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("typing", "t"):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _coerced(name: str, value: Any, kind: str | None, function: str) -> Any:
    convert = _CONVERTERS.get(kind or "")
    if value is None or convert is None:
        return value
    try:
        return convert(value)
    except (ValueError, TypeError, OverflowError, SyntaxError, RecursionError, MemoryError):
        article = "an" if kind == "int" else "a"
        raise ValueError(
            f"func_args.{name}: {_short(value)} is not {article} {kind} ({function}({name}: {kind}))"
        ) from None


def _to_int(value: Any) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            value = float(value)
    if not float(value).is_integer():
        raise ValueError
    return int(value)


def _to_float(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(float(value)):
        raise ValueError
    return float(value)


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _BOOLS[value.strip().lower()] if value.strip().lower() in _BOOLS else _refuse()
    return bool(value) if isinstance(value, (int, float)) and value in (0, 1) else _refuse()


def _to_str(value: Any) -> str:
    """Convert an unquoted number; a float or a list may have had another spelling."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _refuse()


def _to_list(value: Any) -> list[Any]:
    found = _literal(value) if isinstance(value, str) else value
    return list(found) if isinstance(found, (list, tuple)) else _refuse()


def _to_dict(value: Any) -> dict[str, Any]:
    found = _literal(value) if isinstance(value, str) else value
    return dict(found) if isinstance(found, Mapping) else _refuse()


def _literal(text: str) -> Any:
    """Parse JSON or a Python literal: templates render a list with single quotes."""
    try:
        found = json.loads(text)
    except ValueError:
        found = ast.literal_eval(text.strip())
    validation.check_size("it", found)
    return _plain(found, "it")


def _refuse() -> Any:
    raise ValueError


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "int": _to_int,
    "float": _to_float,
    "bool": _to_bool,
    "str": _to_str,
    "list": _to_list,
    "dict": _to_dict,
}


def _short(value: Any) -> str:
    if isinstance(value, (str, int, float)):
        return redact(value)
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
