"""Conditions of tasks: the part of CEL that KFP's compiler writes.

Such as ``inputs.parameter_values['pipelinechannel--wait-metric'] >= 0.95`` and ``!(…) && int(…) == 1``.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|&&|\|\||!=|!|[^'"&|!]+|.""", re.DOTALL)
_WORDS = {"&&": " and ", "||": " or ", "!": " not "}
_LITERALS = {"true": True, "false": False, "null": None}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "double": float,
    "int": int,
    "parseJson": json.loads,
    "string": str,
}


class ConditionError(Exception):
    """A condition has no value: the driver fails."""


def evaluate(condition: str, parameters: Mapping[str, Any]) -> bool:
    text = "".join(_WORDS.get(token, token) for token in _TOKEN.findall(condition)).strip()
    try:
        value = _evaluate(ast.parse(text, mode="eval").body, parameters)
    except (KeyError, SyntaxError, TypeError, ValueError) as error:
        raise ConditionError(f"evaluation error: {condition}: {error!r}") from error
    if not isinstance(value, bool):
        raise ConditionError(f"evaluation error: return type is not bool, got {value!r}")
    return value


def _evaluate(node: ast.expr, parameters: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) if name in _LITERALS:
            return _LITERALS[name]
        case ast.Subscript(value=value, slice=key):
            known = parameters if ast.unparse(value) == "inputs.parameter_values" else _evaluate(value, parameters)
            return known[_evaluate(key, parameters)]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, parameters)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, parameters)
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_evaluate(value, parameters) for value in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(_evaluate(value, parameters) for value in values)
        case ast.Compare(left=left, ops=[comparison], comparators=[right]):
            return _compare(type(comparison), _evaluate(left, parameters), _evaluate(right, parameters))
        case ast.Call(func=ast.Name(id=name), args=[argument]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_evaluate(argument, parameters))
    raise ConditionError(f"not a condition that KFP's compiler writes: {ast.unparse(node)}")


def _compare(comparison: type[ast.cmpop], left: Any, right: Any) -> Any:
    """Compare as CEL does: values of two types are unequal, and none is the smaller one."""
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (left, right))
    if numbers or type(left) is type(right):
        return _COMPARISONS[comparison](left, right)
    if comparison in (ast.Eq, ast.NotEq):
        return comparison is ast.NotEq
    raise TypeError(f"no such overload: {type(left).__name__} and {type(right).__name__}")
