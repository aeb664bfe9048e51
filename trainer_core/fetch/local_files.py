"""``file://``: a folder or file of this machine, copied or linked."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NoReturn
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

_COPY_BLOCK_BYTES = 1 << 20


def parse_local_path(uri: str) -> Path:
    parts = urlsplit(uri)
    path = Path(unquote(parts.path))
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not path.is_absolute():
        raise ValueError(f"{uri!r} is not a local path: write file:// and an absolute path, as in file:///data/digits")
    return path


def find_local_problem(uri: str) -> str | None:
    """Return why a ``file://`` URI cannot be fetched on this machine, or None if its file or folder exists."""
    try:
        path = parse_local_path(uri)
        return None if path.exists() else f"{path} does not exist; create it, or correct the path"
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename} cannot be read ({error.strerror}); correct its permissions"


def create_source(settings: FetchSettings) -> LocalSource:
    try:
        return LocalSource(parse_local_path(settings.uri), settings.ignore, settings.link)
    except ValueError as error:
        raise FetchError(str(error)) from error


class LocalSource(Source):
    """A folder or file of this machine. Only regular files are data, and what cannot be read fails the fetch."""

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
        files = tuple(self._stat_file(relative) for relative in self._list_paths())
        return Snapshot(f"{self._path}\0{self._link}", files)

    def fetch_files(self, folder: Path, snapshot: Snapshot, progress: FetchProgress) -> None:
        missing = [file for file in list_incomplete(folder, snapshot.files) if not (folder / file.path).is_symlink()]
        missing_size = sum(file.size for file in missing)
        progress.advance(snapshot.size - missing_size, len(snapshot.files) - len(missing))
        for file in missing:
            self._copy_file(file, folder / file.path)
            progress.advance(file.size, 1)

    def _resolve(self, relative: str) -> Path:
        return self._path / relative if self._path.is_dir() else self._path

    def _stat_file(self, relative: str) -> SourceFile:
        path = self._resolve(relative)
        try:
            state = path.stat()
            readable = os.access(path, os.R_OK)
        except OSError as error:
            _raise_unreadable(error)
        if not stat.S_ISREG(state.st_mode):
            raise FetchError(f"{path} is not a regular file; remove it, or add it to ignore_patterns")
        if not readable:
            raise FetchError(f"{path} cannot be read by user {os.getuid()}; change its permissions")
        return SourceFile(relative, state.st_size, str(state.st_mtime_ns))

    def _copy_file(self, file: SourceFile, target: Path) -> None:
        source = self._resolve(file.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._link:
            target.symlink_to(source.resolve())
            return
        # At most one byte more than was listed: the file may grow faster than it is copied. The caller checks the size.
        left = file.size + 1
        with source.open("rb") as reader, target.open("wb") as writer:
            while left and (block := reader.read(min(left, _COPY_BLOCK_BYTES))):
                writer.write(block)
                left -= len(block)
        mark_complete(target)

    def _list_paths(self) -> list[str]:
        if not self._path.is_dir():
            return [self._path.name]
        paths = []
        visited = {os.path.realpath(self._path)}
        for folder, folders, names in os.walk(self._path, followlinks=True, onerror=_raise_unreadable):
            # A link may lead to a parent folder.
            real = {name: os.path.realpath(os.path.join(folder, name)) for name in sorted(folders)}  # noqa: PTH118
            folders[:] = [name for name in real if real[name] not in visited]
            visited.update(real.values())
            relative = os.path.relpath(folder, self._path)
            paths += [name if relative == "." else f"{relative}/{name}" for name in names]
        return sorted(path for path in paths if not is_ignored(path, self._ignore))


def _raise_unreadable(error: OSError) -> NoReturn:
    raise FetchError(f"{error.filename} cannot be read ({error.strerror}); correct it, or add it to ignore_patterns")
