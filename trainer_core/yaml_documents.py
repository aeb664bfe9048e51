"""Parses YAML that a user wrote. The only place that decides how large and how deep it may be.

Aliases let a document of 400 bytes describe more values than memory holds, and nesting of a few thousand levels exceeds
Python's stack. Both are refused, each with the line.
"""

from __future__ import annotations

from typing import Any

import yaml

from trainer_core.text import shorten
from trainer_core.validation import MAX_DEPTH, MAX_VALUES

#: Characters of a text, with all its documents.
MAX_LENGTH = 4_000_000


def parse_yaml(text: str) -> list[Any]:
    """Return the documents of a YAML text, without empty ones."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"more than {MAX_LENGTH} characters; write several files")
    loader = _Loader(text)
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

    def compose_node(self, parent: Any, index: Any) -> Any:
        alias = self.peek_event() if self.check_event(yaml.AliasEvent) else None  # type: ignore[no-untyped-call]
        if self._depth == MAX_DEPTH:
            self._refuse(f"nested more than {MAX_DEPTH} levels deep")
        before = self._values
        self._values += 1
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if alias is not None:
            if id(node) not in self._sizes:
                self._refuse(f"the alias *{alias.anchor} is inside the value that it stands for")
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
