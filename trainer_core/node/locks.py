"""Locks on files and folders. The kernel releases one when the last process that has its descriptor ends.

    with locks.locked(path): ...              wait for the lock, and hold it while the block runs
    descriptor = locks.acquire(path, 0)       hold it until the end of this process and of its forked children
    locks.is_locked(path)                     whether a process holds it

The kernel offers `flock` for it. Lock libraries are not used: see docs/decisions/job-folder-and-lock.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

_POLL_SECONDS = 0.005


def acquire(path: Path, timeout: float = math.inf, shared: bool = False, mode: int = 0o600) -> int:
    """Acquire the lock of a folder, or of a file, which is created; return the descriptor that holds it.

    A forked child inherits it, and holds the lock as well. After the timeout this is a BlockingIOError.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, mode)
    try:
        if timeout == math.inf:
            fcntl.flock(descriptor, kind)
        else:
            _poll(descriptor, kind, timeout)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise BlockingIOError(f"{path} is locked by another process") from None
        raise
    return descriptor


def _poll(descriptor: int, kind: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_POLL_SECONDS)


def release(descriptor: int) -> None:
    """Release a lock, also where a child that another thread has forked meanwhile keeps the descriptor open."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path, timeout: float = math.inf) -> Iterator[None]:
    """Hold a lock while the block runs. Raises what `acquire` raises."""
    descriptor = acquire(path, timeout)
    try:
        yield
    finally:
        release(descriptor)


@contextlib.contextmanager
def locked_if_possible(folder: Path, timeout: float) -> Iterator[None]:
    """Hold the lock of a folder, which leaves no file, while the block runs; without it the block runs as well.

    The folder may be missing, a network file system may have no locks, and another process may hold it for too long.
    """
    descriptor = None
    with contextlib.suppress(OSError):
        descriptor = acquire(folder, timeout) if folder.is_dir() else None
    try:
        yield
    finally:
        if descriptor is not None:
            release(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the exclusive lock of a file. Observers do not block each other."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
