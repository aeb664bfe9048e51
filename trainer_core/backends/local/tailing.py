"""The lines of a step's log, to its end or for as long as the job lives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from trainer_core.backends.local import observe
from trainer_core.backends.local.files import JobFolder
from trainer_core.errors import JobNotFoundError
from trainer_core.ref import TrainJobRef

__all__ = ["lines"]

_LOOK_SECONDS = 0.1
_BLOCK = 65_536


def lines(folder: JobFolder, ref: TrainJobRef, step: str, follow: bool) -> Iterator[str]:
    """Yield each line once, without its end. A last line without an end is yielded when nothing can follow it."""
    path = folder.log(step)
    offset, rest = 0, b""
    while True:
        # Asked before reading: what is written before the end is read after it was seen.
        ended = not follow or _has_ended(folder, ref)
        offset, block = _read_on(path, offset)
        rest += block
        *whole, rest = rest.split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace").rstrip("\r")
        if block:
            continue
        if ended:
            if rest:
                yield rest.decode("utf-8", "replace")
            return
        time.sleep(_LOOK_SECONDS)


def _read_on(path: Path, offset: int) -> tuple[int, bytes]:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            block = file.read(_BLOCK)
    except FileNotFoundError:
        return offset, b""
    return offset + len(block), block


def _has_ended(folder: JobFolder, ref: TrainJobRef) -> bool:
    try:
        return observe.observe(folder, ref).outcome is not None
    except JobNotFoundError:
        return True
