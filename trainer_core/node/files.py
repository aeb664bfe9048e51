"""Atomic writes of small files, and private folders."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path


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
