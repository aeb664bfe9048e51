"""When the log of a step was written: the supervisor records once a second how far it has grown.

The file has pairs of unsigned 64-bit numbers: seconds since 1970, and the size of the log at that time.
"""

from __future__ import annotations

import os
import time
from array import array
from contextlib import suppress
from pathlib import Path

__all__ = ["read_growth", "record_growth"]


def record_growth(log: Path, times: Path, known: int) -> int:
    """Append time and size of a log to the file of its times if the log has grown; return the size.

    Creates the file of the times if it does not exist: without it, a log counts as one without times.

    Args:
        log: The log.
        times: The file of its times.
        known: The size that the previous call returned; 0 at first.
    """
    with suppress(OSError):  # A full disk: the lines get a later time.
        size = log.stat().st_size
        with os.fdopen(os.open(times, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
            if size > known:
                array("Q", [int(time.time()), size]).tofile(file)
        return size
    return known


def read_growth(times: Path) -> tuple[array[int], array[int]]:
    """Return the times at which the log had grown, and its sizes at these times.

    Raises:
        OSError: There is no such file.
        ValueError: Its size is not that of pairs of numbers.
    """
    recorded = array("Q", times.read_bytes())
    return recorded[::2], recorded[1::2]
