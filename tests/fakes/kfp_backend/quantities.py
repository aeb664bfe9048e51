"""Kubernetes quantities in their canonical form: ``0.5`` is ``500m``, ``1024Mi`` is ``1Gi``."""

from __future__ import annotations

import re
from fractions import Fraction

_FORM = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:([eE][+-]?\d+)|(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?)")
_DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


class QuantityError(ValueError):
    """A text is no quantity."""


def canonical_quantity(text: str) -> str:
    """Return a quantity as the API server writes it."""
    found = _FORM.fullmatch(text)
    if not found:
        raise QuantityError("quantities must match the regular expression of Kubernetes")
    number, exponent, suffix = found.groups()
    if suffix in _BINARY:
        value = Fraction(number) * 1024 ** _BINARY[suffix]
        if value.denominator == 1 and abs(value) >= 1024:
            return _with_suffix(value, 1024, _BINARY)
    else:
        value = (
            Fraction(number) * Fraction(10) ** int((exponent or "e0")[1:]) * Fraction(1000) ** _DECIMAL[suffix or ""]
        )
    return _with_suffix(value, 1000, _DECIMAL)


def _with_suffix(value: Fraction, base: int, powers: dict[str, int]) -> str:
    """Use the largest suffix that leaves an integer."""
    if value == 0:
        return "0"
    for suffix, power in sorted(powers.items(), key=lambda item: -item[1]):
        mantissa = value / Fraction(base) ** power
        if mantissa.denominator == 1:
            return f"{mantissa}{suffix}"
    return str(value.numerator // value.denominator)
