"""Interface of a source: it lists its files as a snapshot and fetches the files of a snapshot into a folder."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

_DIGEST_LENGTH = 32
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_READABLE = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH


class FetchError(Exception):
    """A source cannot be fetched. The message is one line: subject, problem, remedy; it contains no secrets."""

    def __init__(self, message: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


@dataclass(frozen=True)
class SourceFile:
    """One file of a source."""

    #: Path inside the folder: relative, with ``/``, without ``..``.
    path: str
    #: Bytes.
    size: int
    #: Differs if the content differs: an ETag, a blob id, a hash, or times and inode.
    tag: str = ""

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        if not all(parts) or {".", ".."} & set(parts) or "\0" in self.path or "\\" in self.path:
            raise FetchError(f"{self.path!r} is not a path inside a folder; rename the file in the source")


@dataclass(frozen=True)
class Snapshot:
    """The files of a source at one moment."""

    #: The URI with its revision, and everything else that selects the content.
    identity: str
    #: The files to fetch, without ignored ones.
    files: tuple[SourceFile, ...]
    #: Whether the tags are of the content: then the same files are the same data, whatever the URI.
    by_content: bool = False
    #: Whether a folder has links to the files, which are others at another place.
    is_linked: bool = False

    def __post_init__(self) -> None:
        paths = {file.path for file in self.files}
        if len(paths) != len(self.files):
            raise FetchError(f"{self.identity} lists a path twice; rename one of the files in the source")
        clash = next((str(up) for path in paths for up in PurePosixPath(path).parents if str(up) in paths), None)
        if clash is not None:
            raise FetchError(f"{clash!r} is both a file and a folder; rename one of them in the source")

    @cached_property
    def digest(self) -> str:
        """Hash of the content: differs if a path, a size or a tag differs."""
        digest = hashlib.sha256(b"" if self.by_content else self.identity.encode("utf-8", "surrogateescape"))
        for file in sorted(self.files, key=lambda file: file.path):
            digest.update(f"\0{file.path}\0{file.size}\0{file.tag}".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:_DIGEST_LENGTH]

    @property
    def folder(self) -> str:
        """Name of the folder of a cache with these files."""
        place = hashlib.sha256(self.identity.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        return f"{self.digest}-{place}" if self.is_linked else self.digest

    @cached_property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class FetchProgress:
    """Receives the progress of a fetch, and ignores it. `advance` may be called from several threads at once."""

    def begin(self, size: int, files: int) -> None:
        """Start the fetch."""

    def advance(self, size: int, files: int = 0) -> None:
        """Add to the bytes in place, negative if some are fetched again, and to the complete files."""

    def end(self) -> None:
        """End the fetch: all files are in place, or it has failed."""


class Source(ABC):
    """Files that a URI names."""

    #: Whether fetched files take disk space; False for symbolic links.
    needs_disk_space = True

    @abstractmethod
    def list_files(self) -> Snapshot:
        """Return the files that the source has now."""

    @abstractmethod
    def fetch_files(self, folder: Path, snapshot: Snapshot, progress: FetchProgress) -> None:
        """Fetch the files of a snapshot that are missing in a folder, and verify them.

        The folder may hold files of an earlier call that was killed: files that are complete (`is_complete`) are not
        fetched again, and partial downloads are resumed where that is possible. No other process writes to the folder
        meanwhile. On return the folder has all files of the snapshot and no others.
        """


def is_ignored(path: str, patterns: Iterable[str], *others: str) -> bool:
    """Return whether a pattern matches the path inside the source, the file name, or one of the other names."""
    names = (path, path.rpartition("/")[2], *others)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)


def mark_complete(path: Path) -> None:
    """Mark a file as complete and verified, by removing the permission to write to it."""
    path.chmod(path.stat().st_mode & _READABLE)


def is_complete(path: Path, size: int) -> bool:
    """Return whether a file is marked as complete and has the given size."""
    try:
        state = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(state.st_mode) and state.st_size == size and not state.st_mode & _WRITABLE


def list_incomplete(folder: Path, files: Sequence[SourceFile]) -> list[SourceFile]:
    """Return the files that are not complete in a folder."""
    return [file for file in files if not is_complete(folder / file.path, file.size)]


class CacheableSource(Source):
    """A source whose listing is stored for use offline."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Key of the listing: everything that selects files, such as repository, revision and patterns."""

    @property
    @abstractmethod
    def is_offline(self) -> bool:
        """Whether the user has disabled access to the network."""


def list_source(source: Source, folder: Path) -> Snapshot:
    """Return the files of a source; offline, the listing that was stored in the folder by the last call."""
    if not isinstance(source, CacheableSource):
        return source.list_files()
    # The name of the file is part of the cache's format: caches outlive upgrades.
    path = folder / f".{hashlib.sha256(source.key.encode()).hexdigest()[:32]}.look.json"
    stored = _read_listing(path) if source.is_offline else None
    if stored is not None:
        return stored
    snapshot = source.list_files()
    _write_listing(path, snapshot)
    return snapshot


def _read_listing(path: Path) -> Snapshot | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Snapshot(data["identity"], tuple(SourceFile(*fields) for fields in data["files"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_listing(path: Path, snapshot: Snapshot) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [[file.path, file.size, file.tag] for file in snapshot.files]
    # Other processes may write the same listing: each process writes a temporary file and renames it.
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps({"identity": snapshot.identity, "files": files}), encoding="utf-8")
    temporary.replace(path)
