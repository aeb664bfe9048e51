"""file://: a folder or file of this machine, copied or linked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainer_core.fetching.settings import Settings
from trainer_core.fetching.source import (
    FetchError,
    File,
    Report,
    Snapshot,
    Source,
    is_ignored,
    mark_whole,
    remaining,
)

__all__ = ["LocalSource", "local_path", "missing", "source"]


def local_path(uri: str) -> Path:
    """Return the path that a ``file://`` URI names.

    Raises:
        ValueError: It names another host, or no absolute path.
    """
    parts = urlsplit(uri)
    path = Path(unquote(parts.path))
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not path.is_absolute():
        raise ValueError(f"{uri!r} is not a local path: write file:// and an absolute path, as in file:///data/digits")
    return path


def missing(uri: str) -> str | None:
    """Say what is wrong with a ``file://`` URI on this machine; None where its file or folder is there."""
    try:
        path = local_path(uri)
    except ValueError as error:
        return str(error)
    return None if path.exists() else f"{path} does not exist; make it first, or mend the path"


def source(settings: Settings) -> LocalSource:
    """Return the source that a ``file://`` URI names.

    Raises:
        FetchError: It names no local path.
    """
    try:
        return LocalSource(local_path(settings.uri), settings.ignore, settings.link)
    except ValueError as error:
        raise FetchError(str(error)) from error


class LocalSource(Source):
    """A folder or file of this machine.

    Args:
        path: Where it lies.
        ignore: Glob patterns, matched against the path inside the source and against the bare file name.
        link: Make links to the source's files instead of copies.
    """

    def __init__(self, path: Path, ignore: tuple[str, ...] = (), link: bool = False) -> None:
        self._path = path
        self._ignore = ignore
        self._link = link
        self.takes_room = not link

    def look(self) -> Snapshot:
        """List what is there; links are followed, each folder is walked once."""
        if not self._path.exists():
            raise FetchError(f"{self._path} does not exist; check storage_uri")
        # Paths, sizes and times are what rsync and make judge a change by.
        states = [(relative, self._at(relative).stat()) for relative in self._listing()]
        files = tuple(File(relative, state.st_size, str(state.st_mtime_ns)) for relative, state in states)
        return Snapshot(f"{self._path}\0{self._link}", files)

    def fill(self, folder: Path, snapshot: Snapshot, report: Report) -> None:
        """Copy or link what is missing."""
        missing = [file for file in remaining(folder, snapshot.files) if not (folder / file.path).is_symlink()]
        lacking = sum(file.size for file in missing)
        report.advance(snapshot.size - lacking, len(snapshot.files) - len(missing))
        for file in missing:
            self._take(self._at(file.path), folder / file.path)
            report.advance(file.size, 1)

    def _at(self, relative: str) -> Path:
        return self._path / relative if self._path.is_dir() else self._path

    def _take(self, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._link:
            target.symlink_to(source.resolve())
            return
        shutil.copyfile(source, target)
        mark_whole(target)

    def _listing(self) -> list[str]:
        if self._path.is_file():
            return [self._path.name]
        found = []
        seen = {os.path.realpath(self._path)}
        for folder, folders, names in os.walk(self._path, followlinks=True):
            # A link may lead back up; each folder is walked once.
            real = {name: os.path.realpath(os.path.join(folder, name)) for name in sorted(folders)}  # noqa: PTH118
            folders[:] = [name for name in real if real[name] not in seen]
            seen.update(real.values())
            relative = os.path.relpath(folder, self._path)
            found += [name if relative == "." else f"{relative}/{name}" for name in names]
        return sorted(path for path in found if not is_ignored(path, self._ignore))
