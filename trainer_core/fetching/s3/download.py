"""One object into one file: by one request or by pieces, checked against its etag, once more when that fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5, sha256
from pathlib import Path

import obstore
from obstore.exceptions import BaseError

from trainer_core.fetching import parallel
from trainer_core.fetching.s3 import errors, etags, head
from trainer_core.fetching.s3.access import Access
from trainer_core.fetching.s3.pieces import Pieces
from trainer_core.fetching.source import FetchError, File, Report, mark_whole

__all__ = ["LARGE", "SCRATCH", "WORKERS", "Download"]

_MIB = 2**20
#: A larger file comes in pieces, by several requests at once.
LARGE = 64 * _MIB
#: Requests at once.
WORKERS = 16
#: Folder for what is known of files that are half there.
SCRATCH = ".s3"
_PIECE = 8 * _MIB
#: Parts up to this size are pieces of their own, so that each is checked as it comes.
_LARGEST_PIECE = 64 * _MIB
_BLOCK = _MIB
_TRIES = 2


class Download:
    """Brings objects of one bucket into one folder.

    Args:
        access: The bucket.
        bucket: Its name.
        folder: Where the files belong.
        report: Told of bytes and files.
    """

    def __init__(self, access: Access, bucket: str, folder: Path, report: Report) -> None:
        self._access = access
        self._bucket = bucket
        self._folder = folder
        self._report = report
        #: The bucket encrypts with keys of its own, so that its etags are no checksums.
        self._opaque = False

    def whole(self, key: str, file: File) -> None:
        """Bring an object by one request.

        Raises:
            FetchError: It cannot be had, or is not what was listed.
        """
        path = self._folder / file.path
        before = None
        for _ in range(_TRIES):
            with _opened(path, os.O_TRUNC) as descriptor, self._explained(key):
                got = self._streamed(descriptor, key, file)
            if self._is_right(key, file, path, got, before):
                return self._done(path)
            before = got
            self._report.advance(-file.size)
        raise self._wrong(key)

    def in_pieces(self, key: str, file: File) -> None:
        """Bring a large object by many requests, and go on where an earlier call was interrupted.

        Raises:
            FetchError: It cannot be had, or is not what was listed.
        """
        path = self._folder / file.path
        part = _part_size(file)
        piece = part if 0 < part <= _LARGEST_PIECE else _PIECE
        pieces = Pieces(self._folder / SCRATCH / sha256(file.path.encode()).hexdigest(), file.size, piece)
        if not path.exists():
            pieces.forget()
        self._report.advance(pieces.present())
        before = None
        for _ in range(_TRIES):
            with _opened(path) as descriptor:
                parallel.each(
                    lambda wanted: self._piece(descriptor, key, file, pieces, piece, *wanted), pieces.missing(), WORKERS
                )
            got = etags.combined(pieces.md5s()) if piece == part else _etag_of(path, part)
            if self._is_right(key, file, path, got, before):
                self._done(path)
                return pieces.forget()
            before = got
            pieces.forget()
            self._report.advance(-file.size)
        raise self._wrong(key)

    def _streamed(self, descriptor: int, key: str, file: File) -> str:
        """Write an object to a file as it comes, and return the etag of what came."""
        checksum, length = etags.Checksum(_part_size(file)), 0
        answer = obstore.get(self._access.store, key, options={"if_match": _quoted(file)})
        for block in answer.stream(min_chunk_size=_BLOCK) if file.size > _BLOCK else (answer.bytes(),):
            data = memoryview(block)
            checksum.update(data)
            _write(descriptor, data, length)
            length += len(data)
            self._report.advance(len(data))
        self._check_length(key, length, file.size)
        return checksum.etag()

    def _piece(
        self, descriptor: int, key: str, file: File, pieces: Pieces, piece: int, number: int, length: int
    ) -> None:
        start, digest = number * piece, md5(usedforsecurity=False)
        came = 0
        with self._explained(key):
            answer = obstore.get(
                self._access.store, key, options={"range": (start, start + length), "if_match": _quoted(file)}
            )
            # At once is cheaper than block by block, and sixteen times the usual piece fit into memory.
            for block in answer.stream(min_chunk_size=_BLOCK) if length > _PIECE else (answer.bytes(),):
                data = memoryview(block)
                digest.update(data)
                _write(descriptor, data, start + came)
                came += len(data)
                self._report.advance(len(data))
        self._check_length(key, came, length)
        pieces.add(number, digest.digest())

    def _check_length(self, key: str, came: int, wanted: int) -> None:
        if came != wanted:
            raise FetchError(f"{self._name(key)}: {came} bytes came instead of {wanted}; fetch it again", True)

    def _is_right(self, key: str, file: File, path: Path, got: str, before: str | None) -> bool:
        """Say whether what came is what the etag stands for. Where they differ, the storage is asked what it means.

        Where it does not say, bytes that came twice alike are right.
        """
        parts = etags.count_of(file.tag)
        if got == file.tag or self._opaque or not (parts or etags.is_plain(file.tag)):
            return True
        upload = head.look(self._access.client(), self._bucket, key, file.size)
        if upload.encrypted:
            self._opaque = True
            return True
        if parts <= 1:
            return False
        if upload.part_size is None:
            return got == before
        return upload.part_size != _part_size(file) and _etag_of(path, upload.part_size) == file.tag

    def _done(self, path: Path) -> None:
        mark_whole(path)
        self._report.advance(0, 1)

    def _wrong(self, key: str) -> FetchError:
        return FetchError(
            f"{self._name(key)}: what came is not what its etag says, {_TRIES} times; check the storage and what is "
            "between it and here, or leave the file out with ignore_patterns"
        )

    def _name(self, key: str) -> str:
        return f"s3://{self._bucket}/{key}"

    @contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise errors.explained(error, self._name(key), self._access.signer) from error


def _part_size(file: File) -> int:
    """The likely size of the parts it was uploaded in; 0 for at once."""
    count = etags.count_of(file.tag)
    return etags.likely_part_size(file.size, count) if count else 0


def _quoted(file: File) -> str | None:
    return f'"{file.tag}"' if file.tag else None


def _etag_of(path: Path, part: int) -> str:
    checksum, block = etags.Checksum(part), memoryview(bytearray(_BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            checksum.update(block[:count])
    return checksum.etag()


@contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    """Open a file to be filled; the mode is what the process gives new files."""
    flags |= os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o666)
    except PermissionError:
        # It was whole once, and read-only; it no longer has its size.
        path.unlink()
        descriptor = os.open(path, flags, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: memoryview, position: int) -> None:
    """Write all of it: what a disk that fills up took only a part of fails at the next turn."""
    while data:
        count = os.pwrite(descriptor, data, position)
        data, position = data[count:], position + count
