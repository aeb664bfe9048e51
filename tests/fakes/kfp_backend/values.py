"""Values of google.protobuf.Struct, and how Go's protojson and encoding/json write and read them.

A value is None, bool, float, str, list or dict, as in JSON; Struct has no integers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from random import Random
from typing import Any

_INTEGER = re.compile(r"[+-]?[0-9]+")
_TRUE, _FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")
_HTML = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


class ConversionError(ValueError):
    """A value cannot be converted."""


def to_value(data: Any) -> Any:
    """Return JSON data as a Struct holds it: every number is a double, so integers above 2^53 lose digits."""
    if isinstance(data, Mapping):
        return {str(key): to_value(item) for key, item in data.items()}
    if isinstance(data, (list, tuple)):
        return [to_value(item) for item in data]
    return float(data) if isinstance(data, int) and not isinstance(data, bool) else data


def number_text(number: float, exponent: bool = True) -> str:
    """Return a double as Go writes it: 20.0 becomes ``20``.

    Args:
        number: The double.
        exponent: Whether very small and very large numbers are written with one, as in JSON.

    Raises:
        ConversionError: It is NaN or infinite, which protojson refuses in a Value.
    """
    if not math.isfinite(number):
        raise ConversionError(f"google.protobuf.Value.number_value: invalid {number} value")
    if exponent and number and not 1e-6 <= abs(number) < 1e21:
        return re.sub(r"e([+-])0*(\d)", r"e\1\2", repr(number))
    text = format(Decimal(repr(number)), "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"


def marshal(value: Any, *, escape_html: bool = False, comma: str = ",") -> str:
    """Return a value as JSON text with sorted keys.

    Args:
        value: The value; integers are converted.
        escape_html: Write ``<``, ``>`` and ``&`` in 6 characters each, as encoding/json does and protojson does not.
        comma: Text between two items.
    """

    def write(item: Any) -> str:
        if isinstance(item, Mapping):
            return "{" + comma.join(f"{write_text(key)}:{write(item[key])}" for key in sorted(item)) + "}"
        if isinstance(item, (list, tuple)):
            return "[" + comma.join(map(write, item)) + "]"
        if isinstance(item, str):
            return write_text(item)
        if isinstance(item, (int, float)) and not isinstance(item, bool):
            return number_text(float(item))
        return json.dumps(item)

    def write_text(text: str) -> str:
        written = json.dumps(text, ensure_ascii=False)
        return "".join(_HTML.get(character, character) for character in written) if escape_html else written

    return write(value)


def marshal_randomly(value: Any, random: Random) -> str:
    """Return a value as protojson writes it: after commas there may be white space, to make the text unstable."""
    return marshal(value, comma=random.choice((",", ", ")))


def parse_json(text: str) -> Any:
    """Read JSON strictly: no NaN, no Infinity, no key twice."""

    def refuse(constant: str) -> Any:
        raise ConversionError(f"syntax error: invalid value {constant}")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            raise ConversionError("duplicate map key")
        return found

    try:
        return to_value(json.loads(text, parse_constant=refuse, object_pairs_hook=pairs))
    except json.JSONDecodeError as error:
        raise ConversionError(f"syntax error: {error}") from None


def to_text(value: Any) -> str:
    """Return a value as the text that a STRING input gets (PbValueToText)."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        if not math.isfinite(value):
            return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}[str(float(value))]
        return number_text(float(value), exponent=False)
    return value if isinstance(value, str) else marshal(value, escape_html=True)


def parse_output_parameter(text: str, kind: str) -> Any:
    """Read the file of an output parameter by its declared type (TextToPbValue)."""
    if kind == "STRING":
        return text
    word = text.strip()
    if kind == "NUMBER_INTEGER" and _INTEGER.fullmatch(word) and -(2**63) <= int(word) < 2**63:
        return float(int(word))
    if kind == "NUMBER_DOUBLE" and "_" not in word:
        try:
            return float(word)
        except ValueError:
            pass
    if kind == "BOOLEAN" and word in (*_TRUE, *_FALSE):
        return word in _TRUE
    if kind in ("LIST", "STRUCT"):
        value = parse_json(text)
        if isinstance(value, list if kind == "LIST" else dict):
            return value
    raise ConversionError(f"TextToPbValue(text={text!r}, type={kind!r}) failed")


def to_metadata_store(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return an artifact's metadata as ML Metadata keeps them (StructValueToMLMDValue)."""
    kept: dict[str, Any] = {}
    for name, value in metadata.items():
        if name == "_kfp_workspace":
            continue
        if value is None:
            raise ConversionError("unknown/unsupported value type *structpb.Value_NullValue")
        kept[name] = value
        if isinstance(value, bool):
            kept[name] = float(value)
        elif isinstance(value, list):
            kept[name] = {"list": value}
        elif isinstance(value, dict):
            kept[name] = {"struct": value}
    return kept
