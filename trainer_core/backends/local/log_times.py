"""When the log of a step was written: the supervisor records once a second how far it has grown.

The file has pairs of unsigned 64-bit numbers: seconds since 1970 of the last write, and the size of the log after it.
"""

from __future__ import annotations

import os
from array import array
from contextlib import suppress
from pathlib import Path


def record_growth(log: Path, times: Path, known: int) -> int:
    """Append a log's time of modification and size to the file of its times if the log has grown; return the size.

    Creates the file of the times if it does not exist: without it, a log counts as one without times.
    """
    with suppress(OSError):  # A full disk: the lines get a later time.
        status = log.stat()
        with os.fdopen(os.open(times, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
            if status.st_size > known:
                array("Q", [int(status.st_mtime), status.st_size]).tofile(file)
        return status.st_size
    return known


def read_growth(times: Path) -> tuple[array[int], array[int]]:
    """Return the times at which the log had grown, and its sizes at these times."""
    recorded = array("Q", times.read_bytes())
    return recorded[::2], recorded[1::2]
