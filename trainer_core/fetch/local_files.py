"""``file://``: a folder or file of this machine, copied or linked."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import replace
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
#: Files up to this size together are identified by their content, larger ones by place, size, inode and times.
_HASHED_BYTES = 256 * 2**20


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
        files = tuple(self._stat_file(relative) for relative in self._list_paths())
        is_small = sum(file.size for file in files) <= _HASHED_BYTES
        if is_small:
            files = tuple(replace(file, tag=self._hash_file(file)) for file in files)
        return Snapshot(f"{self._path}\0{self._link}", files, by_content=is_small, is_linked=self._link)

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
        # Programs such as `cp -p` set the time of a modification, and none sets the time of a change.
        return SourceFile(relative, state.st_size, f"{state.st_mtime_ns} {state.st_ctime_ns} {state.st_ino}")

    def _hash_file(self, file: SourceFile) -> str:
        return hashlib.sha256(self._resolve(file.path).read_bytes()).hexdigest()

    def _copy_file(self, file: SourceFile, target: Path) -> None:
        source = self._resolve(file.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._link:
            target.symlink_to(source.resolve())
            return
        # At most one byte more than was listed: the file may grow faster than it is copied. The caller checks the size.
        left, digest, is_hashed = file.size + 1, hashlib.sha256(), " " not in file.tag
        with source.open("rb") as reader, target.open("wb") as writer:
            while left and (block := reader.read(min(left, _COPY_BLOCK_BYTES))):
                writer.write(block)
                left -= len(block)
                if is_hashed:
                    digest.update(block)
        if left == 1 and file.tag != (digest.hexdigest() if is_hashed else self._stat_file(file.path).tag):
            raise FetchError(f"{source} changed while it was fetched; fetch it again", retryable=True)
        mark_complete(target)

    def _list_paths(self) -> list[str]:
        from trainer_core.node.artifact_stamps import list_files  # Each front end loads this module.

        if not self._path.is_dir():
            return [self._path.name]  # Named by the URI itself, whatever the patterns.
        try:
            paths = list_files(self._path)
        except OSError as error:
            _raise_unreadable(error)
        selected = [path for path in paths if not is_ignored(path, self._ignore)]
        if not selected:
            raise FetchError(
                f"{self._path}: none of its {len(paths)} files is selected; check storage_uri and ignore_patterns"
            )
        return selected


def _raise_unreadable(error: OSError) -> NoReturn:
    raise FetchError(f"{error.filename} cannot be read ({error.strerror}); correct it, or add it to ignore_patterns")
