"""Reads what the steps of a job wrote: termination messages, the end of logs, fetched data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from trainer_core.model.jobs import Progress
from trainer_core.model.logs import find_last_progress
from trainer_core.node.progress import PREFIX

_TAIL_BYTES = 16_384
_TAIL_LINES = 50
#: How far back in a log `read_last_progress` searches.
_PROGRESS_BYTES = 8 * 2**20
_BLOCK_BYTES = 65_536
_PROGRESS_PREFIX = PREFIX.encode()


def read_last_lines(log: Path, begin: int = 0) -> list[str]:
    """Return up to 50 lines from the end of a log, none of them before an offset."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return text.splitlines()[-_TAIL_LINES:]


def read_last_progress(log: Path, begin: int = 0) -> Progress | None:
    """Return the last progress report of a log after an offset; None if its last 8 MiB contain none."""
    return find_last_progress(_read_progress_lines(log, begin))


def _read_progress_lines(log: Path, begin: int) -> Iterator[str]:
    """Yield the lines of a log that may be progress reports, newest first."""
    for block in _read_blocks_backwards(log, begin):
        if _PROGRESS_PREFIX in block:
            yield from reversed(block.decode("utf-8", "replace").splitlines())


def _read_blocks_backwards(log: Path, begin: int) -> Iterator[bytes]:
    """Yield blocks of complete lines, starting at the end of a log."""
    try:
        file = log.open("rb")
    except OSError:
        return
    with file:
        position = file.seek(0, os.SEEK_END)
        stop, rest = max(begin, position - _PROGRESS_BYTES), b""
        while position > stop:
            start = max(stop, position - _BLOCK_BYTES)
            file.seek(start)
            first, _, block = (file.read(position - start) + rest).partition(b"\n")
            # The first line may begin in the block before.
            position, rest = start, first if start > stop else b""
            yield block if start > stop else first + b"\n" + block


def list_fetched_uris(workspace: Path) -> dict[str, str]:
    """Return the URI of the data that each initializer fetched, by role."""
    paths = ((role, workspace / role) for role in ("dataset", "model"))
    return {role: path.resolve().as_uri() for role, path in paths if path.is_symlink()}
