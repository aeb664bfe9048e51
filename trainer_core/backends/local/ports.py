"""A port for the rendezvous of a job's nodes that no other job of the same state folder takes.

Asking the system for a free port and using it later is a race: somebody may take it in between. Ports below the
range that outgoing connections use are locked by file for as long as the job runs, so that two jobs never choose
the same one, and tried by binding, so that nobody else's is chosen.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["reserved"]

_FIRST, _LAST = 20_000, 32_000
_TRIES = 200


@contextmanager
def reserved(folder: Path) -> Iterator[int]:
    """Reserve a free port until the end of the block.

    Raises:
        OSError: None of many was free.
    """
    for port in random.sample(range(_FIRST, _LAST), _TRIES):
        lock = FileLock(folder / f"{port}.lock", mode=0o600)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            continue
        try:
            if _is_free(port):
                yield port
                return
        finally:
            lock.release()
    raise OSError(f"no free port among {_TRIES} tried between {_FIRST} and {_LAST}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
