"""What the steps of a job left behind: termination messages, the ends of logs, fetched data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer_core.inside.progress import PREFIX, parse_progress
from trainer_core.inside.result import parse_record
from trainer_core.observation import Progress

__all__ = ["fetched", "last_progress", "left_by", "tail"]

_TAIL_BYTES = 16_384
_TAIL_LINES = 50
_PROGRESS_BYTES = 8 * 2**20
_BLOCK_BYTES = 65_536
_PROGRESS = PREFIX.encode()


def left_by(termination: Path) -> dict[str, Any]:
    """Return a step's termination message; empty when it left none, or none that can be read."""
    try:
        return parse_record(termination.read_bytes()) or {}
    except OSError:
        return {}


def tail(log: Path) -> list[str]:
    """Return the last lines of a log."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return text.splitlines()[-_TAIL_LINES:]


def last_progress(log: Path) -> Progress | None:
    """Return what training last reported, if it is in the last megabytes of its log."""
    for block in _blocks_backwards(log):
        if _PROGRESS not in block:
            continue
        for line in reversed(block.decode("utf-8", "replace").splitlines()):
            data = parse_progress(line)
            if data is not None:
                return Progress(data.get("step"), data.get("total"), data.get("metrics") or {})
    return None


def _blocks_backwards(log: Path) -> Iterator[bytes]:
    """Yield whole lines of a log, many at once, from its end."""
    try:
        file = log.open("rb")
    except FileNotFoundError:
        return
    with file:
        position = file.seek(0, os.SEEK_END)
        stop, rest = max(0, position - _PROGRESS_BYTES), b""
        while position > stop:
            start = max(stop, position - _BLOCK_BYTES)
            file.seek(start)
            cut, _, block = (file.read(position - start) + rest).partition(b"\n")
            # The first line may begin further up.
            position, rest = start, cut if start > stop else b""
            yield block if start > stop else cut + b"\n" + block


def fetched(workspace: Path) -> dict[str, str]:
    """Return the URIs of what initializers brought, by role."""
    roles = ((role, workspace / role) for role in ("dataset", "model"))
    return {role: path.resolve().as_uri() for role, path in roles if path.is_symlink()}
