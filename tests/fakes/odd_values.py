"""Odd values of arguments, and what a parameter with a declared type gets of each: the answer of a plain call.

The function of `SOURCE` has a parameter for each value and annotation, and writes what it got to a file, with the type.
So one job, one DAG or one step tries all values of a front end.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

#: Texts that YAML 1.1, JSON, Jinja, a shell or Python could take for something else.
TEXTS = (
    *(
        "0123",
        "12:30",
        "1:30:00",
        "0x1F",
        "0o17",
        "0b11",
        "1_000",
        "1,000",
        "00",
        "-0",
        "+5",
        ".5",
        "5.",
        "1.10",
        "1.0",
    ),
    *(
        "1e-5",
        "1E5",
        "1.5e5",
        "007.5",
        "NO",
        "yes",
        "on",
        "Off",
        "y",
        "~",
        "null",
        "None",
        "Null",
        "true",
        "True",
        "false",
    ),
    *("2026-01-01", "2026-01-01T10:00:00Z", ".inf", "NaN", "Infinity", "", " ", "a b ", "'quoted'", '"quoted"'),
    *(
        "[1, 2]",
        '{"a": 1}',
        "{x}",
        "{a: 1}",
        "pa$$word $(HOME) `x`",
        "a: b",
        "# note",
        "- x",
        "a #b",
        "=",
        "<<",
        "!!int 5",
    ),
    *("&a", "*a", "%x", "@x", "x\n", "\r\n", "\tx", "\u00e9 \u2028", "\U0001f600", "9007199254740993", "5"),
)
VALUES = (*TEXTS, None, True, False, 0, -1, 2**53, 1.1, 1e-5, 1e22, 2.0, [], [1, "1", None, 1e-5], {}, {"a": "0123"})
#: The simple type of each annotation, and whether it takes None.
ANNOTATIONS: dict[str, tuple[str | None, bool]] = {
    "": (None, False),
    "object": (None, False),
    "str": ("str", False),
    "str | None": ("str", True),
    "int": ("int", False),
    "Optional[int]": ("int", True),
    "float": ("float", False),
    "float | None": ("float", True),
    "bool": ("bool", False),
    "list[object]": ("list", False),
    "dict | None": ("dict", True),
    "Annotated[int, 'a note']": ("int", False),
    "Annotated[str | None, len]": ("str", True),
    "Literal['1', None]": ("str", True),
    "Literal[1, 2]": ("int", False),
    "Level": ("int", False),
    "Mode | None": ("str", True),
}
_KINDS = list(ANNOTATIONS.values())
#: What a value is for which a front end must refuse the whole job.
REFUSED = object()
#: Texts that mean something without quotes, as YAML 1.2 spells them.
_NULLS, _BOOLS = ("~", "null", "Null", "NULL"), {"true": True, "True": True, "false": False, "False": False}
_BOOLS |= {"TRUE": True, "FALSE": False}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def name_of(value: int, annotation: int) -> str:
    return f"p{value}_{annotation}"


def _write_source() -> str:
    spelled = [f": {annotation}" if annotation else "" for annotation in ANNOTATIONS]
    parameters = [
        f"{name_of(number, each)}{annotation} = 0"
        for number in range(len(VALUES))
        for each, annotation in enumerate(spelled)
    ]
    return "\n".join(
        [
            "import enum",
            "from typing import Annotated, Literal, Optional",
            "class Level(enum.IntEnum):",
            "    LOW = 1",
            "    HIGH = 2",
            "class Mode(str, enum.Enum):",
            "    FAST = 'fast'",
            "def train(out: str, " + ", ".join(parameters) + "):",
            "    given = dict(locals())",
            "    import json, pathlib",
            "    shown = {name: repr(value) for name, value in given.items()}",
            "    pathlib.Path(out).write_text(json.dumps(shown))",
            "    return len(given)",
            *(f"def one_{each}(x{annotation} = 0): return x" for each, annotation in enumerate(spelled)),
            "",
        ]
    )


SOURCE = _write_source()


def from_text(text: str, kind: str) -> Any:
    """What a text becomes for a simple type."""
    try:
        return _FROM_TEXT[kind](text)
    except (ValueError, SyntaxError, KeyError):
        return REFUSED


def _to_int(text: str) -> Any:
    if re.fullmatch(r"\s*[-+]?\d+(_\d+)*\s*", text):
        return int(text)
    return int(float(text)) if float(text).is_integer() else REFUSED


def _to_float(text: str) -> Any:
    return float(text) if math.isfinite(float(text)) else REFUSED


def _to_literal(kind: type[Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            found = json.loads(text)
        except ValueError:
            found = ast.literal_eval(text.strip())
        found = list(found) if isinstance(found, tuple) else found
        return found if isinstance(found, kind) else REFUSED

    return convert


_FROM_TEXT: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": _to_int,
    "float": _to_float,
    "bool": lambda text: {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()],
    "list": _to_literal(list),
    "dict": _to_literal(dict),
}


def convert(value: Any, annotation: int) -> Any:
    """What a parameter gets of a value that has a type, as in Python and JSON."""
    kind, is_optional = _KINDS[annotation]
    if value is None or kind is None:
        return value
    if isinstance(value, str):
        is_null = is_optional and kind != "str" and value in ("None", "null")
        return None if is_null else from_text(value, kind)
    if kind == "str":
        return str(value) if type(value) is int else REFUSED
    if kind in ("list", "dict"):
        return value if type(value).__name__ == kind else REFUSED
    if isinstance(value, (list, dict)):
        return REFUSED
    if kind == "int":
        return (
            int(value)
            if isinstance(value, float) and value.is_integer()
            else value
            if type(value) is not float
            else REFUSED
        )
    if kind == "float":
        return REFUSED if isinstance(value, bool) else float(value)
    return bool(value) if value in (0, 1) else REFUSED


def read(text: str) -> Any:
    """What a text is that has no quotes, where nothing is declared."""
    if text in _NULLS:
        return None
    if _NUMBER.fullmatch(text):
        return json.loads(text)
    return _BOOLS.get(text, text)


def read_written(text: str, annotation: int) -> Any:
    """What a parameter gets of a text without quotes in YAML."""
    kind, _ = _KINDS[annotation]
    if read(text) is None or text == "":
        return None
    return read(text) if kind is None else _convert_written(text, read(text), annotation)


def read_argument(text: str, annotation: int) -> Any:
    """What a parameter gets of ``--arg name=text``, where lists and texts of JSON are values, too."""
    try:
        value = json.loads(text, parse_constant=int)
    except ValueError:
        value = read(text)
    return value if _KINDS[annotation][0] is None else _convert_written(text, value, annotation)


def _convert_written(text: str, value: Any, annotation: int) -> Any:
    """What a parameter with a simple type gets: a text as it was written, and another type from what it stands for."""
    kind, is_optional = _KINDS[annotation]
    if value is None:
        return None if is_optional else text if kind == "str" else REFUSED
    return text if kind == "str" else convert(value, annotation)


def render(value: Any, annotation: int, native: bool) -> Any:
    """What a parameter gets of a template that is one expression with this value."""
    kind, _ = _KINDS[annotation]
    if kind is None:
        return value if native or value is None else str(value)
    if native or value is None:
        return _convert_written(str(value), value, annotation)
    return convert(str(value), annotation)


def each_case(model: Callable[[Any, int], Any], values: tuple[Any, ...] = VALUES) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each parameter with its value and the answer of a model."""
    for number, value in enumerate(values):
        for annotation in range(len(ANNOTATIONS)):
            yield name_of(number, annotation), value, model(value, annotation)


def refused(cases: list[tuple[str, Any, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the function with one parameter, and the value, of each case that must be refused."""
    for name, value, answer in cases:
        if answer is REFUSED:
            yield f"one_{name.partition('_')[2]}", value


def accepted(cases: list[tuple[str, Any, Any]]) -> dict[str, Any]:
    return {name: value for name, value, answer in cases if answer is not REFUSED}


def answers(cases: list[tuple[str, Any, Any]]) -> dict[str, str]:
    """What the function must write for the accepted cases."""
    return {name: repr(answer) for name, _, answer in cases if answer is not REFUSED}


def written(out: Path, cases: list[tuple[str, Any, Any]]) -> dict[str, str]:
    """What the function wrote for the accepted cases."""
    found = json.loads(out.read_text())
    return {name: found[name] for name in answers(cases)}
