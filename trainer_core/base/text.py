"""Text of messages: one line, sizes for people, and how to install a package that is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Longest message of an error that quotes what a user gave.
MAX_MESSAGE = 300
_GAP = " … "


class WrittenText(str):
    """A value as a person or a template wrote it: its text, and what it is where no type is declared."""

    value: Any = None


def write_text(text: str, value: Any) -> WrittenText:
    """Return the text of a value, which also has the value."""
    written = WrittenText(text)
    written.value = value
    return written


def shorten(text: str, limit: int = MAX_MESSAGE) -> str:
    """Return a text as one line without control characters.

    If it is too long, the middle is left out: the end of a message is the advice.
    """
    line = escape(" ".join(text.split()))
    if len(line) <= limit:
        return line
    start = limit * 2 // 3
    return f"{line[:start]}{_GAP}{line[len(line) - (limit - start - len(_GAP)) :]}"


def escape(text: str) -> str:
    """Return a text whose control characters are spelled out: a terminal obeys them, and some databases refuse NUL."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def format_size(size: float) -> str:
    """Return a number of bytes for people: ``249 bytes``, ``1.23 MB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:  # From there on it would be shown as 1e+03.
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def format_memory(size: float) -> str:
    """Return an amount of memory for people, in the units of Kubernetes' limits: ``300 MiB``, ``1.5 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1023.5:
            return f"{size:.0f} {unit}" if size >= 99.95 else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def missing_extra(subject: str, packages: str | Sequence[str], extra: str) -> str:
    """Return the message for packages that are not installed: who needs them, and the extra that installs them."""
    names = [packages] if isinstance(packages, str) else packages
    noun, are = ("package", "is") if len(names) == 1 else ("packages", "are")
    command = f"pip install -e '.[{extra}]'"  # The distribution is on no index, where anybody could take its name.
    return (
        f"{subject} needs the {noun} {' and '.join(names)}, which {are} not installed: "
        f"{command} in a clone of trainjob-workflows"
    )
