"""Writing a small file so that a reader finds all of it or nothing of it."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["locked", "make_private", "write"]

#: Seconds to wait for the other processes of a node; they hold the lock for one small write.
_LOCK_PATIENCE = 5.0


def write(path: Path, data: bytes) -> None:
    """Write a file, readable by its owner only; at no time does a reader find half of it.

    A file that is mounted by itself, as Kubernetes mounts the termination log, cannot be replaced and is
    overwritten in place.

    Raises:
        OSError: It can be written neither way.
    """
    try:
        _replace(path, data)
    except OSError:
        if not path.is_file():
            raise
        _overwrite(path, data)


def make_private(folder: Path) -> bool:
    """Make a folder, unless it is there; say whether this user, and nobody else, can write to it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
    except OSError:
        return False
    others = stat.S_IMODE(state.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    mine = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not others
    return mine and os.access(folder, os.W_OK)


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        file.write(data)
        file.truncate()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep the other processes of this node out while the block runs.

    The lock is on the folder itself, which needs no right to write and leaves nothing behind. Where it cannot be
    had (a network file system, a lock that somebody else holds), the block runs all the same: reporting late is
    worse than reporting twice.
    """
    handle = None
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        _lock(handle)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


if sys.platform == "win32":  # pragma: no cover

    def _lock(handle: int) -> None:
        """Windows has no lock on a folder."""

else:
    import fcntl

    def _lock(handle: int) -> None:
        deadline = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.005)
