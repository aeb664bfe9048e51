"""What a source is: it looks, which tells what there is, and it fills a folder with that."""

from __future__ import annotations

import fnmatch
import hashlib
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Protocol

__all__ = [
    "FetchError",
    "File",
    "Report",
    "Silent",
    "Snapshot",
    "Source",
    "is_ignored",
    "is_whole",
    "mark_whole",
    "remaining",
]

_DIGEST_LENGTH = 32
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_READABLE = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH


class FetchError(Exception):
    """Something could not be fetched: one line that says what was wrong and what to do, without secrets.

    Args:
        message: The line.
        retryable: Whether doing the same again in a while can help.
    """

    def __init__(self, message: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


@dataclass(frozen=True)
class File:
    """One file of a source.

    Attributes:
        path: Where it belongs in the folder: relative, with ``/``; it never leads out of it.
        size: Bytes.
        tag: Changes when the content does: an etag, a blob id, a time.

    Raises:
        FetchError: The path leads out of the folder, or no file system has such a name.
    """

    path: str
    size: int
    tag: str = ""

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        if not all(parts) or {".", ".."} & set(parts) or "\0" in self.path or "\\" in self.path:
            raise FetchError(f"{self.path!r} is no path inside a folder; rename it at its source")


@dataclass(frozen=True)
class Snapshot:
    """What a source holds at one moment.

    Attributes:
        identity: What it is: the URI with its revision, and whatever else decides on the content.
        files: What belongs into the folder, without what is ignored.
    """

    identity: str
    files: tuple[File, ...]

    def __post_init__(self) -> None:
        paths = {file.path for file in self.files}
        if len(paths) != len(self.files):
            raise FetchError(f"{self.identity} lists a path twice")
        clash = next((str(up) for path in paths for up in PurePosixPath(path).parents if str(up) in paths), None)
        if clash is not None:
            raise FetchError(f"{clash!r} is a file and a folder, which no file system has; rename one at its source")

    @cached_property
    def digest(self) -> str:
        """Name of the content: another one as soon as a path, a size or a tag differs."""
        digest = hashlib.sha256(self.identity.encode("utf-8", "surrogateescape"))
        for file in sorted(self.files, key=lambda file: file.path):
            digest.update(f"\0{file.path}\0{file.size}\0{file.tag}".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:_DIGEST_LENGTH]

    @cached_property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class Report(Protocol):
    """Hears how far a fetch is. May be called from several threads at once."""

    def begin(self, size: int, files: int) -> None:
        """A fetch of so many bytes in so many files begins; what is in place already is reported by `advance`."""

    def advance(self, size: int, files: int = 0) -> None:
        """So many bytes more are in place, and so many files are whole."""

    def end(self) -> None:
        """All is in place, or the fetch has failed."""


class Silent:
    """A report that nobody reads."""

    def begin(self, size: int, files: int) -> None:
        """Nothing is said."""

    def advance(self, size: int, files: int = 0) -> None:
        """Nothing is said."""

    def end(self) -> None:
        """Nothing is said."""


class Source(ABC):
    """Where data lies, and how it comes from there."""

    #: Whether a filled folder takes as much room as the snapshot's files; False where only links are made.
    takes_room = True

    @abstractmethod
    def look(self) -> Snapshot:
        """Return what there is now.

        Raises:
            FetchError: It is not there, or cannot be seen.
        """

    @abstractmethod
    def fill(self, folder: Path, snapshot: Snapshot, report: Report) -> None:
        """Bring what is missing of a snapshot into a folder, and check it.

        The folder may hold what an earlier call left that was killed at any instant: files that are whole
        (`is_whole`) are not fetched again, those begun go on where that saves anything. Nothing else writes to the
        folder meanwhile. When it returns, all files of the snapshot are there, and nothing else.

        Args:
            folder: An existing folder.
            snapshot: What `look` returned.
            report: Told of all bytes and files, those found in place too.

        Raises:
            FetchError: A file cannot be had, or is not what it was when it was looked at.
        """


def is_ignored(path: str, patterns: Iterable[str], *others: str) -> bool:
    """Say whether a pattern matches the path inside the source, the bare file name, or another of its names."""
    names = (path, path.rpartition("/")[2], *others)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)


def mark_whole(path: Path) -> None:
    """Say of a file that all of it is there and checked: by taking away the right to write to it."""
    path.chmod(path.stat().st_mode & _READABLE)


def is_whole(path: Path, size: int) -> bool:
    """Say whether a file was marked as whole, and has its size."""
    try:
        state = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(state.st_mode) and state.st_size == size and not state.st_mode & _WRITABLE


def remaining(folder: Path, files: Sequence[File]) -> list[File]:
    """Return the files that are not whole in a folder yet."""
    return [file for file in files if not is_whole(folder / file.path, file.size)]
