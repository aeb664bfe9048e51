"""Check the arguments of a packaged function against its signature and convert them to its declared types."""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from enum import EnumMeta
from functools import lru_cache
from typing import Any, get_args

from trainer_core.base import validation
from trainer_core.base.secrets import redact
from trainer_core.base.text import WrittenText
from trainer_core.base.validation import list_names

#: Types to which strings and numbers are converted, by the spelling of the annotation.
_TYPES = {"int": "int", "float": "float", "bool": "bool", "str": "str"} | dict.fromkeys(("list", "List"), "list")
_TYPES |= dict.fromkeys(("dict", "Dict"), "dict")
_BOOLS = {"true": True, "1": True, "false": False, "0": False}
#: What stands for None in the text of a parameter that is optional and no str.
_NULLS = ("None", "null")
_NAME = re.compile(r"\b[A-Za-z_]\w*")
#: The base of an enum in a declared type, as `_spell` writes it.
_ENUM_BASE = re.compile(r"\((?:int|float|bool|str)\)")


class PartialArgs(dict[str, Any]):
    """Arguments to which others are added later, so that required ones may be missing."""


def check_func_args(func: Callable[..., Any], args: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments as plain JSON data. Only a `WrittenText` is converted: other strings may be templates."""
    parameters = _signature(func)
    if parameters is None or not isinstance(args, Mapping | None):
        return check_json(args)
    function = getattr(func, "__qualname__", type(func).__name__)
    written = {name: value for name, value in (args or {}).items() if isinstance(value, WrittenText)}
    plain = check_json({**(args or {}), **coerce(written, declared_types(func), function)})
    given = parameters if isinstance(args, PartialArgs) else plain
    _check_names(function, parameters, plain, given)
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
    """Return the simple types that a function declares, as written: ``{"epochs": "int | None"}``."""
    parameters = _signature(func) or {}
    scope = getattr(func, "__globals__", {})
    named = (p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    spelled = {p.name: _spell(p.annotation, scope) + (" = None" if p.default is None else "") for p in named}
    return {name: text for name, text in spelled.items() if read_type(text)[0] is not None}


@lru_cache(maxsize=1000)
def read_type(declared: str) -> tuple[str | None, bool]:
    """Return the simple type of a declared one, None if there is none, and whether it takes None."""
    annotation = declared.removesuffix(" = None")
    try:
        found = _list_alternatives(ast.parse(annotation.strip(), mode="eval").body)
    except SyntaxError:
        return None, True  # The repr of an object that is not an expression, such as a class defined in a function.
    others = found - {"None"}
    return others.pop() if len(others) == 1 else None, "None" in found or annotation != declared


def coerce(args: Mapping[str, Any], types: Mapping[str, str], function: str = "the function") -> dict[str, Any]:
    """Convert arguments to the types that the function declares.

    Templates and command lines turn values into strings, and KFP turns numbers into floats: ``"10"`` and ``10.0``
    become 10, ``"true"`` becomes True, and JSON text (or a Python literal) becomes a list or dict. None stays None, the
    text of None becomes None where that is declared, and arguments without a declared type stay unchanged.
    """
    return {name: _coerced(name, value, types.get(name, ""), function) for name, value in args.items()}


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
    if isinstance(value, WrittenText):
        value = value.value
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


def _spell(annotation: Any, scope: Mapping[str, Any]) -> str:
    """Return an annotation as written; of an enum, its name and base, of ``Annotated`` the type."""
    if isinstance(annotation, str):
        enums = {name: value for name, value in scope.items() if isinstance(value, EnumMeta)}
        return _NAME.sub(lambda name: _spell(enums[name[0]], {}) if name[0] in enums else name[0], annotation)
    if isinstance(annotation, EnumMeta):
        bases = {type(each.value).__name__ for each in annotation}  # type: ignore[var-annotated]
        return f"{annotation.__name__}({bases.pop()})" if len(bases) == 1 else annotation.__name__
    if hasattr(annotation, "__metadata__"):
        return f"Annotated[{_spell(annotation.__origin__, scope)}, ...]"
    text = inspect.formatannotation(annotation)
    if read_type(text)[0] is not None:
        return text
    if type(None) in get_args(annotation):
        return " | ".join("None" if each is type(None) else _spell(each, scope) for each in get_args(annotation))
    return text


def _list_alternatives(node: ast.expr) -> set[str | None]:
    """Return the simple types that an annotation allows, "None" for None, and None for any other."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _list_alternatives(ast.parse(node.value.strip(), mode="eval").body)
    if isinstance(node, ast.Constant):
        return {"None" if node.value is None else None}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _list_alternatives(node.left) | _list_alternatives(node.right)
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        return _list_alternatives(node.args[0])  # An enum, see `_spell`.
    if not isinstance(node, ast.Subscript):
        return {_TYPES.get(_last_name(node))}
    outer = _last_name(node.value)
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if outer == "Literal":
        names = {type(each.value).__name__ if isinstance(each, ast.Constant) else "" for each in items}
        return {"None" if name == "NoneType" else _TYPES.get(name) for name in names}
    if outer in ("Optional", "Union"):
        return set().union(*map(_list_alternatives, items), {"None"} if outer == "Optional" else ())
    if outer == "Annotated":
        return _list_alternatives(items[0])
    return {_TYPES.get(outer) if outer in ("list", "List", "dict", "Dict") else None}


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("typing", "t"):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _coerced(name: str, value: Any, declared: str, function: str) -> Any:
    kind, is_optional = read_type(declared)
    where = f"func_args.{name}"
    if kind is None or value is None:
        return _plain(value, where)
    known = value.value if isinstance(value, WrittenText) else value
    if is_optional and (known is None or (kind != "str" and known in _NULLS)):
        return None
    try:
        converted = _CONVERTERS[kind](str(value) if kind == "str" and known is not value else known)
    except (ValueError, TypeError, OverflowError, SyntaxError, RecursionError, MemoryError):
        article, remedy = "an" if kind == "int" else "a", "; put it in quotes" if kind == "str" else ""
        signature = f"{function}({name}: {_ENUM_BASE.sub('', declared)})"
        raise ValueError(f"{where}: {_short(value)} is not {article} {kind} ({signature}){remedy}") from None
    return _plain(converted, where)


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
