"""``file://``: a folder or file of this machine, copied or linked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainer_core.fetch.settings import FetchSettings
from trainer_core.fetch.source import (
    FetchError,
    FetchProgress,
    Snapshot,
    Source,
    SourceFile,
    is_ignored,
    list_incomplete,
    mark_complete,
)

__all__ = ["LocalSource", "create_source", "find_local_problem", "parse_local_path"]


def parse_local_path(uri: str) -> Path:
    """Return the path of a ``file://`` URI.

    Raises:
        ValueError: The URI names another host or a relative path.
    """
    parts = urlsplit(uri)
    path = Path(unquote(parts.path))
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not path.is_absolute():
        raise ValueError(f"{uri!r} is not a local path: write file:// and an absolute path, as in file:///data/digits")
    return path


def find_local_problem(uri: str) -> str | None:
    """Return why a ``file://`` URI cannot be fetched on this machine, or None if its file or folder exists."""
    try:
        path = parse_local_path(uri)
    except ValueError as error:
        return str(error)
    return None if path.exists() else f"{path} does not exist; create it, or correct the path"


def create_source(settings: FetchSettings) -> LocalSource:
    """Return the source of a ``file://`` URI.

    Raises:
        FetchError: The URI names another host or a relative path.
    """
    try:
        return LocalSource(parse_local_path(settings.uri), settings.ignore, settings.link)
    except ValueError as error:
        raise FetchError(str(error)) from error


class LocalSource(Source):
    """A folder or file of this machine.

    Args:
        path: Path of the folder or file.
        ignore: Glob patterns of files to leave out, matched with the path inside the source and with the file name.
        link: Create symbolic links to the source's files instead of copies.
    """

    def __init__(self, path: Path, ignore: tuple[str, ...] = (), link: bool = False) -> None:
        self._path = path
        self._ignore = ignore
        self._link = link
        self.needs_disk_space = not link

    def list_files(self) -> Snapshot:
        """List the files; symbolic links are followed, and each folder is listed once."""
        if not self._path.exists():
            raise FetchError(f"{self._path} does not exist; check storage_uri")
        # A file counts as changed if its size or modification time differs, as in rsync and make.
        states = [(relative, self._resolve(relative).stat()) for relative in self._list_paths()]
        files = tuple(SourceFile(relative, state.st_size, str(state.st_mtime_ns)) for relative, state in states)
        return Snapshot(f"{self._path}\0{self._link}", files)

    def fetch_files(self, folder: Path, snapshot: Snapshot, progress: FetchProgress) -> None:
        """Copy or link the files that are not in the folder."""
        missing = [file for file in list_incomplete(folder, snapshot.files) if not (folder / file.path).is_symlink()]
        missing_size = sum(file.size for file in missing)
        progress.advance(snapshot.size - missing_size, len(snapshot.files) - len(missing))
        for file in missing:
            self._copy_file(self._resolve(file.path), folder / file.path)
            progress.advance(file.size, 1)

    def _resolve(self, relative: str) -> Path:
        return self._path / relative if self._path.is_dir() else self._path

    def _copy_file(self, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._link:
            target.symlink_to(source.resolve())
            return
        shutil.copyfile(source, target)
        mark_complete(target)

    def _list_paths(self) -> list[str]:
        if self._path.is_file():
            return [self._path.name]
        paths = []
        visited = {os.path.realpath(self._path)}
        for folder, folders, names in os.walk(self._path, followlinks=True):
            # A link may lead to a parent folder.
            real = {name: os.path.realpath(os.path.join(folder, name)) for name in sorted(folders)}  # noqa: PTH118
            folders[:] = [name for name in real if real[name] not in visited]
            visited.update(real.values())
            relative = os.path.relpath(folder, self._path)
            paths += [name if relative == "." else f"{relative}/{name}" for name in names]
        return sorted(path for path in paths if not is_ignored(path, self._ignore))
