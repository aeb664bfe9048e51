"""Parses YAML that a user wrote. The only place that decides what a value means, how large and how deep it may be.

Definitions, searches and options follow the JSON schema of YAML 1.2: without quotes, a number of JSON, true, false or
null (also True, False, ~ and nothing at all) is that value, and all else is text: ``0123``, ``12:30``, ``1_000``,
``no``, a date. A JSON text is read as JSON. Arguments of a function keep how they were written, see `WrittenText`.

Files of Kubernetes (runtimes, kubeconfigs) follow kubectl, which reads YAML 1.1: ``on`` is true and ``0644`` is 420,
but a date or ``12:30`` is text.

Aliases let a document of 400 bytes describe more values than memory holds, and nesting of a few thousand levels exceeds
Python's stack. Both are refused, each with the line.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import yaml

from trainer_core.base.text import shorten, write_text
from trainer_core.base.validation import MAX_DEPTH, MAX_VALUES, check_size, read_value

_TAG = "tag:yaml.org,2002:"
#: Values that an argument keeps as they were written.
_WRITTEN = (f"{_TAG}int", f"{_TAG}float", f"{_TAG}bool")
#: Characters of a text, with all its documents.
MAX_LENGTH = 4_000_000


def parse_yaml(text: str, kubernetes: bool = False) -> list[Any]:
    """Return the documents of a YAML text, without empty ones; those of Kubernetes as kubectl reads them."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"more than {MAX_LENGTH} characters; write several files")
    if text.lstrip("\ufeff \t\r\n")[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):  # It is YAML, whose parser names the line.
            value = json.loads(text.lstrip("\ufeff"), parse_constant=int)
            check_size("it", value)
            return [value]
    loader = _KubernetesLoader(text) if kubernetes else _Loader(text)
    documents = []
    try:
        while loader.check_data():  # type: ignore[no-untyped-call]
            documents.append(loader.get_data())
    except yaml.YAMLError as error:
        raise ValueError(shorten(str(error), 250)) from error
    finally:
        loader.dispose()
    return [document for document in documents if document is not None]


class _Loader(yaml.SafeLoader):
    """A SafeLoader with limits, whose errors about values have the line and the key."""

    def __init__(self, stream: str) -> None:
        try:
            super().__init__(stream)
        except yaml.YAMLError as error:  # A character that YAML does not allow.
            raise ValueError(shorten(str(error), 250)) from error
        self._depth = 0
        self._values = 0
        #: Number of values of each node with an anchor; absent while the node itself is read.
        self._sizes: dict[int, int] = {}
        self._keys: dict[int, str] = {}
        #: Whether the node is below ``func_args``.
        self._is_argument = False

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self._depth == MAX_DEPTH:
            self._refuse(f"nested more than {MAX_DEPTH} levels deep")
        before, was_argument = self._values, self._is_argument
        self._values += 1
        self._depth += 1
        self._is_argument |= isinstance(index, yaml.ScalarNode) and index.value == "func_args"
        node: Any = super().compose_node(parent, index)
        # A value with an anchor may also stand elsewhere.
        if self._is_argument and index is not None and not event.anchor and node.tag in _WRITTEN and not node.style:
            node.tag = "!written"
        self._is_argument = was_argument
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._sizes:
                self._refuse(f"the alias *{event.anchor} is inside the value that it stands for")
            self._values = before + self._sizes[id(node)]
        else:
            self._sizes[id(node)] = self._values - before
        if self._values > MAX_VALUES:
            self._refuse(f"more than {MAX_VALUES} values, with what aliases stand for")
        if isinstance(index, yaml.ScalarNode):
            self._keys[id(node)] = str(index.value)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, LookupError, TypeError, AttributeError) as error:
            # Such as the date 2020-13-45, a number of 5,000 digits, or the empty number 0x.
            key = f"{self._keys[id(node)]}: " if id(node) in self._keys else ""
            raise yaml.YAMLError(
                f"line {node.start_mark.line + 1}: {key}{str(node.value)[:60]!r} is not valid: {error}; put it in "
                "quotes if it is a text"
            ) from error

    def _refuse(self, reason: str) -> None:
        mark: Any = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        raise yaml.YAMLError(f"line {mark.line + 1}: {reason}")


class _KubernetesLoader(_Loader):
    """Reads a value as kubectl does."""


def _set_values(loader: type[_Loader], **patterns: str) -> None:
    """Let texts without quotes be what they match: the first pattern counts."""
    loader.yaml_implicit_resolvers = {}
    for kind, pattern in {"null": "~|null|Null|NULL|", "merge": "<<", **patterns}.items():
        loader.add_implicit_resolver(f"{_TAG}{kind}", re.compile(f"(?:{pattern})$"), None)


def _join_surrogates(text: str) -> str:
    """Return a text in which the two escapes that JSON writes for an emoji are that character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


_INT, _BOOL = "-?(0|[1-9][0-9]*)", "true|True|TRUE|false|False|FALSE"
_set_values(_Loader, bool=_BOOL, int=_INT, float=_INT + r"(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_set_values(
    _KubernetesLoader,
    bool=f"{_BOOL}|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF",
    int="[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)",
    float=r"[-+]?(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
)
_Loader.add_constructor("!written", lambda _, node: write_text(node.value, read_value(node.value)))
for _kind in ("str", "merge"):
    _Loader.add_constructor(f"{_TAG}{_kind}", lambda _, node: _join_surrogates(node.value))
