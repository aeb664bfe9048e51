"""Downloads one S3 object into a file, by one request or in pieces, and verifies it against its ETag."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import md5, sha256
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError

from trainer_core.fetch.parallel import run_parallel
from trainer_core.fetch.s3 import etags
from trainer_core.fetch.s3.credentials import Connection
from trainer_core.fetch.s3.errors import convert_error
from trainer_core.fetch.source import FetchError, FetchProgress, SourceFile, mark_complete

_MIB = 2**20
#: Larger files are downloaded in pieces, by several requests at once.
LARGE_FILE_SIZE = 64 * _MIB
#: Number of concurrent requests.
WORKERS = 16
#: Folder for the journals of partial downloads, inside the target folder.
SCRATCH = ".s3"
_PIECE_SIZE = 8 * _MIB
#: Up to this size a part is a piece, so that the MD5s of the pieces give the ETag without reading the file again.
_MAX_PIECE_SIZE = 64 * _MIB
_BLOCK_SIZE = _MIB
_TRIES = 2
#: A piece in the journal: its number and its digest.
_RECORD = struct.Struct("<I16s")


class ObjectDownloader:
    """Downloads objects of a bucket into a folder."""

    def __init__(self, connection: Connection, bucket: str, folder: Path, progress: FetchProgress) -> None:
        self._connection = connection
        self._bucket = bucket
        self._folder = folder
        self._progress = progress
        #: Objects are encrypted with a KMS or customer key: their ETags are not checksums.
        self._has_opaque_etags = False

    def download(self, key: str, file: SourceFile) -> None:
        path = self._folder / file.path
        previous = None
        for _ in range(_TRIES):
            with _open_target(path, os.O_TRUNC) as descriptor, self._convert_errors(key):
                etag = self._download_stream(descriptor, key, file)
            if self._matches_etag(key, file, path, etag, previous):
                return self._finish(path)
            previous = etag
            self._progress.advance(-file.size)
        raise self._build_mismatch_error(key)

    def download_pieces(self, key: str, file: SourceFile) -> None:
        """Download a large object by several requests at once; resume an interrupted download."""
        path = self._folder / file.path
        part = _guess_part_size(file)
        piece = part if part and part <= _MAX_PIECE_SIZE else _PIECE_SIZE
        journal = PieceJournal(self._folder / SCRATCH / sha256(file.path.encode()).hexdigest(), file.size, piece)
        if not path.exists():
            journal.clear()
        self._progress.advance(journal.count_present_bytes())
        previous = None
        for _ in range(_TRIES):
            with _open_target(path) as descriptor:
                run_parallel(
                    lambda missing: self._download_piece(descriptor, key, file, journal, piece, *missing),
                    journal.list_missing(),
                    WORKERS,
                )
            etag = etags.combine_md5s(journal.list_md5s()) if piece == part else _compute_etag(path, part)
            if self._matches_etag(key, file, path, etag, previous):
                self._finish(path)
                return journal.clear()
            previous = etag
            journal.clear()
            self._progress.advance(-file.size)
        raise self._build_mismatch_error(key)

    def _download_stream(self, descriptor: int, key: str, file: SourceFile) -> str:
        """Write an object to a file while it arrives, and return the ETag of the received bytes."""
        checksum, length = etags.Checksum(_guess_part_size(file)), 0
        response = obstore.get(self._connection.store, key, options={"if_match": _build_if_match(file)})
        for block in response.stream(min_chunk_size=_BLOCK_SIZE) if file.size > _BLOCK_SIZE else (response.bytes(),):
            data = memoryview(block)
            checksum.update(data)
            _write(descriptor, data, length)
            length += len(data)
            self._progress.advance(len(data))
        self._check_length(key, length, file.size)
        return checksum.etag()

    def _download_piece(
        self, descriptor: int, key: str, file: SourceFile, journal: PieceJournal, piece: int, number: int, length: int
    ) -> None:
        start, digest = number * piece, md5(usedforsecurity=False)
        received = 0
        with self._convert_errors(key):
            response = obstore.get(
                self._connection.store,
                key,
                options={"range": (start, start + length), "if_match": _build_if_match(file)},
            )
            # One read is cheaper than blocks, and one usual piece for each worker fits into memory.
            for block in response.stream(min_chunk_size=_BLOCK_SIZE) if length > _PIECE_SIZE else (response.bytes(),):
                data = memoryview(block)
                digest.update(data)
                _write(descriptor, data, start + received)
                received += len(data)
                self._progress.advance(len(data))
        self._check_length(key, received, length)
        journal.add(number, digest.digest())

    def _check_length(self, key: str, received: int, expected: int) -> None:
        if received != expected:
            raise FetchError(
                f"{self._name(key)}: {received} bytes received instead of {expected}; fetch it again", True
            )

    def _matches_etag(self, key: str, file: SourceFile, path: Path, etag: str, previous: str | None) -> bool:
        """Return whether the received bytes match the ETag of the object.

        If they differ, the storage is asked how the object was uploaded, because an ETag depends on the size of the
        parts. If it does not answer, the bytes are accepted when two downloads in a row are equal.
        """
        parts = etags.count_parts(file.tag)
        if etag == file.tag or self._has_opaque_etags or not (parts or etags.is_md5(file.tag)):
            return True
        upload = read_upload(self._connection.client(), self._bucket, key, file.size)
        if upload.encrypted:
            self._has_opaque_etags = True
            return True
        if parts <= 1:
            return False
        if upload.part_size is None:
            return etag == previous
        return upload.part_size != _guess_part_size(file) and _compute_etag(path, upload.part_size) == file.tag

    def _finish(self, path: Path) -> None:
        mark_complete(path)
        self._progress.advance(0, 1)

    def _build_mismatch_error(self, key: str) -> FetchError:
        return FetchError(
            f"{self._name(key)}: the received bytes do not match its ETag, {_TRIES} times; check the storage "
            "and the proxies in front of it, or leave the file out with ignore_patterns"
        )

    def _name(self, key: str) -> str:
        return f"s3://{self._bucket}/{key}"

    @contextmanager
    def _convert_errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise convert_error(error, self._name(key), self._connection.signer) from error


def _guess_part_size(file: SourceFile) -> int:
    """Return the likely size of the parts in which an object was uploaded; 0 for an upload without parts."""
    count = etags.count_parts(file.tag)
    return etags.guess_part_size(file.size, count) if count else 0


def _build_if_match(file: SourceFile) -> str | None:
    return f'"{file.tag}"' if file.tag else None


def _compute_etag(path: Path, part: int) -> str:
    checksum, block = etags.Checksum(part), memoryview(bytearray(_BLOCK_SIZE))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            checksum.update(block[:count])
    return checksum.etag()


@contextmanager
def _open_target(path: Path, flags: int = 0) -> Iterator[int]:
    """Open a file for writing; new files have the default mode of the process."""
    flags |= os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o666)
    except PermissionError:
        # A file that was complete is read-only; its size is wrong now, so that it is fetched again.
        path.unlink()
        descriptor = os.open(path, flags, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: memoryview, position: int) -> None:
    """Write all bytes. After a short write, as on a disk that becomes full, the next write raises the error."""
    while data:
        count = os.pwrite(descriptor, data, position)
        data, position = data[count:], position + count


_S3_MANAGED_ENCRYPTION = "AES256"


@dataclass(frozen=True)
class Upload:
    """How an object was uploaded."""

    #: Bytes of its first part; None if the storage does not report it.
    part_size: int | None
    #: Encrypted with a KMS or customer key: its ETag is not a checksum.
    encrypted: bool


def read_upload(client: Any, bucket: str, key: str, size: int) -> Upload:
    """Return how an object was uploaded, as far as the storage reports it."""
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]  # imported by the client

    try:
        response = client.head_object(Bucket=bucket, Key=key, PartNumber=1)
    except (BotoCoreError, ClientError):
        # Some storage does not support PartNumber.
        return Upload(None, encrypted=False)
    length = int(response["ContentLength"])
    encryption = response.get("ServerSideEncryption", _S3_MANAGED_ENCRYPTION)
    encrypted = encryption != _S3_MANAGED_ENCRYPTION or "SSECustomerAlgorithm" in response
    return Upload(length if length < size else None, encrypted)


class PieceJournal:
    """The pieces of one file that are in place. The journal is a file with one record for each piece."""

    def __init__(self, path: Path, size: int, piece_size: int) -> None:
        self._path = path.with_name(f"{path.name}.{piece_size}")
        self._size = size
        self._piece_size = piece_size
        self._count = -(-size // piece_size)
        self._lock = threading.Lock()
        self._md5s = self._read()

    def list_missing(self) -> list[tuple[int, int]]:
        """Return number and length of the pieces that are not in place."""
        return [(n, self.get_piece_length(n)) for n in range(self._count) if n not in self._md5s]

    def get_piece_length(self, number: int) -> int:
        """Return the bytes of a piece; the last one may be shorter."""
        return min(self._piece_size, self._size - number * self._piece_size)

    def count_present_bytes(self) -> int:
        return sum(self.get_piece_length(number) for number in self._md5s)

    def add(self, number: int, md5: bytes) -> None:
        with self._lock:
            self._md5s[number] = md5
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(_RECORD.pack(number, md5))

    def list_md5s(self) -> list[bytes]:
        """Return the MD5s of all pieces, in order."""
        return [self._md5s[number] for number in range(self._count)]

    def clear(self) -> None:
        self._md5s = {}
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[int, bytes]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        # A killed process may leave a partial record; the next record must start at a multiple of the size.
        complete = len(data) - len(data) % _RECORD.size
        if complete != len(data):
            os.truncate(self._path, complete)
        return {number: md5 for number, md5 in _RECORD.iter_unpack(data[:complete]) if number < self._count}
