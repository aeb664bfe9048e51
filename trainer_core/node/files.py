"""Atomic writes of small files, private folders, and the lock shared by the processes of a node."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

#: Seconds to wait for the lock; other processes hold it for one small write.
_LOCK_TIMEOUT = 5.0


def write(path: Path, data: bytes) -> None:
    """Write a file atomically, readable by its owner only.

    A file that is a mount point, as Kubernetes mounts the termination log, cannot be replaced; it is overwritten in
    place.
    """
    try:
        replace(path, data)
    except OSError:
        if not path.is_file():
            raise
        _overwrite(path, data)


def make_private(folder: Path) -> bool:
    """Create a folder unless it exists; return whether this user, and no other user, can write to it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
    except OSError:
        return False
    others = stat.S_IMODE(state.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    mine = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not others
    return mine and os.access(folder, os.W_OK)


def replace(path: Path, data: bytes, durable: bool = False) -> None:
    """Replace a file atomically, readable by its owner only.

    Readers see the old or the new content, never a part. If the write fails, for example on a full disk, the old file
    stays unchanged and no temporary file remains.
    """
    handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if durable:
                # Before the rename: some file systems write the new name first, and the file would be empty.
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        file.write(data)
        file.truncate()


@contextlib.contextmanager
def locked(folder: Path, timeout: float = _LOCK_TIMEOUT) -> Iterator[None]:
    """Hold a lock against the other processes of this node while the block runs.

    The lock is on the folder itself, which needs no write permission and leaves no file. If it cannot be acquired (a
    network file system, a lock held for too long), the block runs anyway: reporting twice is better than reporting
    never.
    """
    handle = None
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        _lock(handle, timeout)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


if sys.platform == "win32":  # pragma: no cover

    def _lock(handle: int, timeout: float) -> None:
        """Windows has no lock on a folder."""

else:
    import fcntl

    def _lock(handle: int, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.005)
