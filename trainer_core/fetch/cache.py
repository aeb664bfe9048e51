"""Stores fetched files in folders that are complete or absent; concurrent and interrupted fetches repeat no work."""

from __future__ import annotations

import errno
import json
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer_core.base.text import format_size
from trainer_core.fetch.source import FetchError, FetchProgress, Snapshot, Source, list_source
from trainer_core.node import locks

#: Age at which an interrupted fetch is deleted.
_PART_TTL_SECONDS = 7 * 24 * 3600
_READABLE = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH


def fetch_to_cache(source: Source, cache: Path, progress: FetchProgress, private: bool = True) -> tuple[Path, bool]:
    """Fetch a source into a folder of a cache, unless the cache has it. Concurrent calls fetch it once."""
    snapshot = list_source(source, cache)
    entry = cache / snapshot.folder
    if _has_files(entry, snapshot):
        return entry, False
    mode = 0o700 if private else 0o777
    cache.mkdir(mode=mode, parents=True, exist_ok=True)
    with _lock(cache / f".{snapshot.folder}.lock"):
        if _has_files(entry, snapshot):
            return entry, False
        part = cache / f".{snapshot.folder}.part"
        if entry.exists():
            # Files were deleted from the entry; the others need not be fetched again.
            entry.rename(part)
        _fetch_to_part(source, snapshot, part, progress, mode)
        part.rename(entry)
    _delete_old_parts(cache)
    return entry, True


def fetch_to_folder(source: Source, target: Path, progress: FetchProgress) -> bool:
    """Replace the content of a folder by the files of a source: readers see the old or the new content, no mixture."""
    snapshot = list_source(source, target.parent)
    parent, name = target.parent, target.name
    record = parent / f".{name}.trainjob.json"
    if target.is_mount():
        raise FetchError(f"{target} is a mounted volume and cannot be replaced; mount the volume at {parent} instead")
    parent.mkdir(parents=True, exist_ok=True)
    with _lock(parent / f".{name}.trainjob.lock"):
        if _read_digest(record) == snapshot.folder and _has_files(target, snapshot):
            return False
        part = parent / f".{name}.{snapshot.folder}.part"
        for other in set(parent.glob(f".{name}.*.part")) - {part}:
            # An interrupted fetch of earlier content; it needs the disk space.
            shutil.rmtree(other, ignore_errors=True)
        _fetch_to_part(source, snapshot, part, progress)
        record.unlink(missing_ok=True)
        _replace_folder(target, part)
        record.write_text(json.dumps({"digest": snapshot.folder}), encoding="utf-8")
    return True


def replace_symlink(link: Path, target: Path) -> None:
    """Create a symbolic link; a link of an earlier run of the step is replaced."""
    if link.is_symlink():
        link.unlink()
    link.symlink_to(target)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock of the operating system, which releases it if the process is killed."""
    try:
        descriptor = locks.acquire(path)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        raise FetchError(
            f"{path.parent}: the file system has no file locks; use one that has, such as NFS 4"
        ) from error
    try:
        yield
    finally:
        locks.release(descriptor)


def _delete_old_parts(cache: Path) -> None:
    """Delete interrupted fetches that were not resumed for a long time: the content of their source has changed."""
    for part in cache.glob(".*.part"):
        with suppress(OSError), locks.locked(part.with_suffix(".lock"), 0):
            if time.time() - part.stat().st_mtime > _PART_TTL_SECONDS:
                shutil.rmtree(part)


def _fetch_to_part(source: Source, snapshot: Snapshot, part: Path, progress: FetchProgress, mode: int = 0o777) -> None:
    part.mkdir(mode=mode, exist_ok=True)
    if source.needs_disk_space:
        _check_disk_space(part, snapshot)
    progress.begin(snapshot.size, len(snapshot.files))
    try:
        source.fetch_files(part, snapshot, progress)
    finally:
        progress.end()
    _verify_and_protect(part, snapshot)


def _check_disk_space(part: Path, snapshot: Snapshot) -> None:
    present = sum(path.stat().st_blocks * 512 for path in part.rglob("*") if path.is_file())
    needed, free = snapshot.size - present, shutil.disk_usage(part).free
    if needed > free:
        raise FetchError(
            f"{part.parent} has {format_size(free)} free, but the fetch needs {format_size(needed)}; "
            "free disk space, or leave files out with ignore_patterns"
        )


def _verify_and_protect(part: Path, snapshot: Snapshot) -> None:
    """Check the size of each file, and make it read-only: jobs that need the same source share it."""
    for file in snapshot.files:
        path = part / file.path
        if path.is_symlink():
            continue
        state = path.stat()
        if state.st_size != file.size:
            raise FetchError(
                f"{file.path} has {state.st_size} bytes instead of {file.size}: it changed while it was fetched; "
                "fetch it again",
                retryable=True,
            )
        if state.st_mode & 0o777 & ~_READABLE:
            path.chmod(state.st_mode & _READABLE)


def _has_files(folder: Path, snapshot: Snapshot) -> bool:
    """Return whether a folder has all files in full size; a power failure or a user may have removed some."""
    try:
        return folder.is_dir() and all((folder / file.path).stat().st_size == file.size for file in snapshot.files)
    except OSError:
        return False


def _replace_folder(target: Path, part: Path) -> None:
    old = part.with_suffix(".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        target.rename(old)
    part.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _read_digest(record: Path) -> str | None:
    try:
        return str(json.loads(record.read_text(encoding="utf-8"))["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
