"""Label and field selectors, as a server reads them from a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fake_cluster.answers import bad_request

Raw = Mapping[str, Any]
Selector = Callable[[Raw], bool]

_NAME = r"[A-Za-z0-9][-A-Za-z0-9_./]*"
_SET = re.compile(rf"\s*({_NAME})\s+(in|notin)\s*\(([^()]*)\)\s*(?:,|$)")
_EQUAL = re.compile(rf"\s*({_NAME})\s*(==|=|!=)\s*([-A-Za-z0-9_.]*)\s*(?:,|$)")
_EXISTS = re.compile(rf"\s*(!?)\s*({_NAME})\s*(?:,|$)")


def selector(labels: str | None, fields: str | None) -> Selector:
    """Return a test of whether an object is selected."""
    tests = [*_label_tests(labels or ""), *_field_tests(fields or "")]
    return lambda raw: all(test(raw) for test in tests)


def _label_tests(text: str) -> list[Selector]:
    tests, position = [], 0
    while position < len(text.rstrip()):
        for pattern, build in ((_SET, _in_set), (_EQUAL, _equal), (_EXISTS, _exists)):
            if found := pattern.match(text, position):
                tests.append(build(*found.groups()))
                position = found.end()
                break
        else:
            raise bad_request(f'unable to parse requirement: found "{text[position:]}", expected: identifier')
    return tests


def _labels(raw: Raw) -> Mapping[str, str]:
    return raw.get("metadata", {}).get("labels") or {}


def _in_set(key: str, operator: str, values: str) -> Selector:
    wanted = {value.strip() for value in values.split(",")}
    return lambda raw: (_labels(raw).get(key) in wanted) == (operator == "in")


def _equal(key: str, operator: str, value: str) -> Selector:
    return lambda raw: (_labels(raw).get(key) == value) == (operator != "!=")


def _exists(absent: str, key: str) -> Selector:
    return lambda raw: (key in _labels(raw)) != bool(absent)


def _field_tests(text: str) -> list[Selector]:
    tests = []
    for requirement in filter(None, text.split(",")):
        key, equal, value = requirement.partition("=")
        if not equal:
            raise bad_request(f"invalid selector: '{requirement}'; can't understand '{requirement}'")
        tests.append(_field_is(key.rstrip("!="), value.lstrip("="), unlike=key.endswith("!")))
    return tests


def _field_is(path: str, value: str, unlike: bool) -> Selector:
    def test(raw: Raw) -> bool:
        found: Any = raw
        for part in path.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return (str(found or "") == value) != unlike

    return test
