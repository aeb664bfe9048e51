"""The lines of a step's log: to its end, for as long as the job lives, or from a place on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from os import SEEK_END
from typing import IO

from trainer_core.backends.local import observe
from trainer_core.backends.local.files import JobFolder
from trainer_core.errors import JobNotFoundError
from trainer_core.ref import TrainJobRef

__all__ = ["lines", "some"]

_LOOK_SECONDS = 0.1
_BLOCK = 65_536
#: Bytes of a line from which on it comes in pieces.
_LONGEST = 262_144
#: Bytes that one look reads at most; a longer line comes in pieces.
_LOOK_BYTES = 1_048_576


def lines(folder: JobFolder, ref: TrainJobRef, step: str, follow: bool) -> Iterator[str]:
    """Yield each line once, without its end. A last line without an end is yielded when nothing can follow it.

    A long line, such as a progress bar that never ends its own, comes in pieces: memory does not grow with it.
    """
    rest = b""
    ended = not follow
    with ExitStack() as stack:
        file: IO[bytes] | None = None
        while True:
            if file is None and (file := _opened(folder, ref, step)) is not None:
                # Kept open: it stays this job's, also when the job is deleted and its name used again.
                stack.enter_context(file)
            block = file.read(_BLOCK) if file is not None else b""
            *whole, rest = (rest + block).split(b"\n")
            if len(rest) >= _LONGEST:
                whole, rest = [*whole, rest[: _end(rest)]], rest[_end(rest) :]
            yield from map(_text, whole)
            if block:
                continue
            if ended:
                break
            # What is written before the end is read after it was seen.
            ended = _has_ended(folder, ref)
            if not ended:
                time.sleep(_LOOK_SECONDS)
    if rest:
        yield rest.decode("utf-8", "replace")


def some(
    folder: JobFolder, ref: TrainJobRef, step: str, start: int, most: int, whole: bool
) -> tuple[list[str], int, bool]:
    """Return lines of a step from a byte on, the byte after them, and whether they are all.

    Args:
        folder: The job's.
        ref: The job.
        step: The step.
        start: Where to begin.
        most: How many lines to return at most.
        whole: A last line without an end counts: nothing can follow it.
    """
    file = _opened(folder, ref, step)
    if file is None:
        return [], start, True
    with file:
        # A job that was started again from its beginning may have another file.
        start = start if start <= file.seek(0, SEEK_END) else 0
        file.seek(start)
        data = file.read(_LOOK_BYTES)
    *found, rest = data.split(b"\n", most)
    full = len(data) == _LOOK_BYTES
    if rest and len(found) < most and (not found if full else whole):
        end = _end(rest) if full else len(rest)
        found, rest = [*found, rest[:end]], rest[end:]
    return [*map(_text, found)], start + len(data) - len(rest), not full and len(found) < most


def _end(data: bytes) -> int:
    """Where to cut a line that goes on: within no character, and not where it would seem to end with a return."""
    last = range(len(data) - 1, max(0, len(data) - 8), -1)
    return next((at for at in last if data[at] & 0xC0 != 0x80 and data[at - 1 : at] != b"\r"), len(data))


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")


def _opened(folder: JobFolder, ref: TrainJobRef, step: str) -> IO[bytes] | None:
    try:
        file = folder.log(step).open("rb", buffering=0)
    except FileNotFoundError:
        return None
    try:
        observe.check_is(folder, ref)
    except JobNotFoundError:
        file.close()
        return None
    return file


def _has_ended(folder: JobFolder, ref: TrainJobRef) -> bool:
    try:
        return observe.check_is(folder, ref).ended or not folder.supervised()
    except JobNotFoundError:
        return True
