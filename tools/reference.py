"""The reference pages, made from docstrings when mkdocs builds the site; nothing of them is written by hand."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import trainer_core

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

__all__ = ["on_files", "page"]

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
_ENTRY = re.compile(r"^    (?P<name>[\w*`.]+): (?P<text>.*)$")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to the site."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "api.md", content=page()))
    return files


def page() -> str:
    """Return the reference of every public name of the core, as Markdown."""
    lines = ["# API", "", "Every public name of `trainer_core`.", ""]
    for name in trainer_core.__all__:
        lines += _described(name, getattr(trainer_core, name), level=2)
    return "\n".join(lines)


def _described(name: str, value: Any, level: int) -> Iterable[str]:
    yield f"{'#' * level} {name.rpartition('.')[2]}"
    yield ""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        yield f"`{value!r}`"
        yield ""
        return
    yield from ("```python", f"{name}{_signature(value)}", "```", "")
    yield from _markdown(inspect.getdoc(value) or "")
    yield ""
    if inspect.isclass(value):
        for member, method in vars(value).items():
            if not member.startswith("_") and inspect.isfunction(method):
                yield from _described(f"{name}.{member}", method, level + 1)


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):
        return "(...)"


def _markdown(docstring: str) -> Iterable[str]:
    """Sections of Google style become lists."""
    listing = False
    for line in docstring.splitlines():
        if section := _SECTION.match(line):
            listing = True
            yield from (f"**{section[1]}**", "")
        elif entry := _ENTRY.match(line) if listing else None:
            yield f"- `{entry['name'].strip('`')}`: {entry['text']}"
        else:
            listing = listing and (line.startswith(" ") or not line)
            yield f"  {line.strip()}" if listing and line else line
