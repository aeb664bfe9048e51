"""Reads the log of a step, which its processes write themselves: all, while the job runs, or from a byte offset on."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from trainer_core.backends.local import observations
from trainer_core.backends.local.job_store import JobFolder
from trainer_core.backends.local.log_times import read_growth
from trainer_core.base.errors import JobNotFoundError
from trainer_core.model.jobs import TrainJobRef
from trainer_core.model.logs import LogLine

_POLL_SECONDS = 0.1
_BLOCK_BYTES = 65_536
#: A line that is longer is returned in pieces, so that a progress bar without line ends does not fill the memory.
_MAX_LINE_BYTES = 262_144
#: Maximum number of bytes that one call of `tail_lines` reads.
_MAX_TAIL_BYTES = 1_048_576


def read_lines(folder: JobFolder, ref: TrainJobRef, step: str, follow: bool) -> Iterator[str]:
    """Yield each line once: an unfinished last one when the job has ended, a very long one in pieces."""
    rest = b""
    at_end = not follow
    with ExitStack() as stack:
        file: IO[bytes] | None = None
        while True:
            if file is None and (file := _open_log(folder, ref, step)) is not None:
                # Kept open, so that it stays the file of this job if the job is deleted and its name is used again.
                stack.enter_context(file)
            block = file.read(_BLOCK_BYTES) if file is not None else b""
            *lines, rest = (rest + block).split(b"\n")
            if len(rest) >= _MAX_LINE_BYTES:
                lines, rest = [*lines, rest[: _find_cut(rest)]], rest[_find_cut(rest) :]
            yield from map(_decode, lines)
            if block:
                continue
            if at_end:
                break
            # If the job has ended, read once more: the last lines may have been written before this check.
            at_end = _has_ended(folder, ref)
            if not at_end:
                time.sleep(_POLL_SECONDS)
    if rest:
        yield rest.decode("utf-8", "replace")


def tail_lines(
    folder: JobFolder, ref: TrainJobRef, step: str, offset: int, limit: int, ended: bool
) -> tuple[list[str], int, bool]:
    """Return the lines of a log from an offset on, the next offset, and whether these are all lines."""
    file = _open_log(folder, ref, step)
    if file is None:
        return [], offset, True
    with file:
        # The file can be shorter than before if it was replaced. Then it is read from its start.
        offset = offset if offset <= file.seek(0, os.SEEK_END) else 0
        file.seek(offset)
        data = file.read(_MAX_TAIL_BYTES)
        written = int(os.fstat(file.fileno()).st_mtime)  # As `record_growth` will record it.
    *lines, rest = data.split(b"\n", limit)
    has_more = len(data) == _MAX_TAIL_BYTES
    if rest and len(lines) < limit and (not lines if has_more else ended):
        cut = _find_cut(rest) if has_more else len(rest)
        lines, rest = [*lines, rest[:cut]], rest[cut:]
    end = offset + len(data) - len(rest)
    return _add_times(lines, offset, folder.log_times_path(step), written), end, not has_more and len(lines) < limit


def _add_times(lines: list[bytes], offset: int, times: Path, written: int) -> list[str]:
    """Return lines that start at an offset, each with the first time at which the log was longer; else the last one."""
    with suppress(OSError, ValueError):
        seconds, sizes = read_growth(times)
        found: list[str] = []
        for line in lines:
            offset += len(line)
            at = bisect_left(sizes, offset)
            found.append(LogLine(_decode(line), seconds[at] if at < len(seconds) else written))
            offset += 1
        return found
    return [*map(_decode, lines)]


def _find_cut(data: bytes) -> int:
    """Return where to cut an unfinished line: not inside a UTF-8 character, and not right after a carriage return."""
    last = range(len(data) - 1, max(0, len(data) - 8), -1)
    return next((at for at in last if data[at] & 0xC0 != 0x80 and data[at - 1 : at] != b"\r"), len(data))


def _decode(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")


def _open_log(folder: JobFolder, ref: TrainJobRef, step: str) -> IO[bytes] | None:
    try:
        file = folder.log_path(step).open("rb", buffering=0)
    except FileNotFoundError:
        return None
    try:
        observations.check_uid(folder, ref)
    except JobNotFoundError:
        file.close()
        return None
    return file


def _has_ended(folder: JobFolder, ref: TrainJobRef) -> bool:
    try:
        return observations.check_uid(folder, ref).is_finished or not folder.is_supervised()
    except JobNotFoundError:
        return True
