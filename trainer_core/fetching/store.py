"""What was fetched, under a name made from its content: whole or not there, fetched once, gone on with after a kill."""

from __future__ import annotations

import json
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from trainer_core.fetching import memory
from trainer_core.fetching.source import FetchError, Report, Snapshot, Source

__all__ = ["fetch", "fetch_into", "point"]

#: When what was begun is given up.
_FORGOTTEN_SECONDS = 7 * 24 * 3600
_READABLE = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH


def fetch(source: Source, cache: Path, report: Report, private: bool = True) -> tuple[Path, bool]:
    """Bring a source into a cache, unless it is there. Whoever asks for the same at that moment waits for the first.

    Args:
        source: What to fetch.
        cache: The cache folder; made where there is none.
        report: Hears how far it is.
        private: For this user only.

    Returns:
        Where it lies, and whether it had to be fetched.

    Raises:
        FetchError: It could not be fetched, or there is not enough room for it. What came is kept for the next try.
    """
    snapshot = memory.look(source, cache)
    entry = cache / snapshot.digest
    if _holds(entry, snapshot):
        return entry, False
    mode = 0o700 if private else 0o777
    cache.mkdir(mode=mode, parents=True, exist_ok=True)
    with _alone(cache / f".{snapshot.digest}.lock"):
        if _holds(entry, snapshot):
            return entry, False
        part = cache / f".{snapshot.digest}.part"
        if entry.exists():
            # Somebody took a file away: what is left of it need not be fetched again.
            entry.rename(part)
        _bring(source, snapshot, part, report, mode)
        part.rename(entry)
    _sweep(cache)
    return entry, True


def fetch_into(source: Source, target: Path, report: Report) -> bool:
    """Make a folder hold a source, in place of whatever it held before; no reader sees half of either.

    Args:
        source: What to fetch.
        target: The folder; beside it lies what says which content it has.
        report: Hears how far it is.

    Returns:
        Whether it had to be fetched.

    Raises:
        FetchError: As for `fetch`; or the folder cannot be replaced.
    """
    snapshot = memory.look(source, target.parent)
    parent, name = target.parent, target.name
    note = parent / f".{name}.trainjob.json"
    if target.is_mount():
        raise FetchError(f"{target} is a mounted volume and cannot be replaced; mount the volume at {parent} instead")
    parent.mkdir(parents=True, exist_ok=True)
    with _alone(parent / f".{name}.trainjob.lock"):
        if _noted(note) == snapshot.digest and _holds(target, snapshot):
            return False
        part = parent / f".{name}.{snapshot.digest}.part"
        for other in set(parent.glob(f".{name}.*.part")) - {part}:
            # Begun when the source had another content, and in the way of this one.
            shutil.rmtree(other, ignore_errors=True)
        _bring(source, snapshot, part, report)
        note.unlink(missing_ok=True)
        _replace(target, part)
        note.write_text(json.dumps({"digest": snapshot.digest}), encoding="utf-8")
    return True


def point(link: Path, where: Path) -> None:
    """Let a name lead to a fetched folder; a step that is run again finds its own link."""
    if link.is_symlink():
        link.unlink()
    link.symlink_to(where)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a lock of the kernel's: whoever is killed has given it back."""
    try:
        with FileLock(lock, mode=0o600):
            yield
    except NotImplementedError as error:
        raise FetchError(f"no file can be locked in {lock.parent}; use a volume that can, as NFS 4 can") from error


def _sweep(cache: Path) -> None:
    """Remove what was begun long ago and never went on: its source has another content by now."""
    for part in cache.glob(".*.part"):
        with suppress(OSError, Timeout), FileLock(part.with_suffix(".lock"), blocking=False, mode=0o600):
            if time.time() - part.stat().st_mtime > _FORGOTTEN_SECONDS:
                shutil.rmtree(part)


def _bring(source: Source, snapshot: Snapshot, part: Path, report: Report, mode: int = 0o777) -> None:
    part.mkdir(mode=mode, exist_ok=True)
    if source.takes_room:
        _check_room(part, snapshot)
    report.begin(snapshot.size, len(snapshot.files))
    try:
        source.fill(part, snapshot, report)
    finally:
        report.end()
    _seal(part, snapshot)


def _check_room(part: Path, snapshot: Snapshot) -> None:
    present = sum(path.stat().st_blocks * 512 for path in part.rglob("*") if path.is_file())
    needed, free = snapshot.size - present, shutil.disk_usage(part).free
    if needed > free:
        raise FetchError(
            f"{_readable(needed)} are needed under {part.parent}, and {_readable(free)} are free there; "
            "make room, or leave files out with ignore_patterns"
        )


def _seal(part: Path, snapshot: Snapshot) -> None:
    """See that all is there, and make it read-only: every job that asks for the same source shares it."""
    for file in snapshot.files:
        path = part / file.path
        if path.is_symlink():
            continue
        state = path.stat()
        if state.st_size != file.size:
            raise FetchError(
                f"{file.path} has {state.st_size} bytes instead of {file.size}: it changed while it was fetched",
                retryable=True,
            )
        if state.st_mode & 0o777 & ~_READABLE:
            path.chmod(state.st_mode & _READABLE)


def _holds(folder: Path, snapshot: Snapshot) -> bool:
    """Whether all files are in a folder: after a loss of power, or a hand that tidied up, some may be short."""
    try:
        return folder.is_dir() and all((folder / file.path).stat().st_size == file.size for file in snapshot.files)
    except OSError:
        return False


def _replace(target: Path, part: Path) -> None:
    grave = part.with_suffix(".old")
    shutil.rmtree(grave, ignore_errors=True)
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        target.rename(grave)
    part.rename(target)
    shutil.rmtree(grave, ignore_errors=True)


def _noted(note: Path) -> str | None:
    try:
        return str(json.loads(note.read_text(encoding="utf-8"))["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _readable(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
