"""ETags as checksums: the MD5 of an object, or for a multipart upload the MD5 of the MD5s of its parts. Pure.

A listing has the number of parts, not their size. One natural size nearly always gives that number; if the ETag
differs, `download.read_upload` asks the storage.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

_MIB = 2**20
_MD5 = re.compile(r"[0-9a-f]{32}")
_PARTS = re.compile(r"[0-9a-f]{32}-([1-9]\d{0,4})")


def is_md5(etag: str) -> bool:
    """Return whether an ETag looks like the MD5 of the object."""
    return _MD5.fullmatch(etag) is not None


def count_parts(etag: str) -> int:
    """Return the number of parts in the ETag of a multipart upload; 0 for any other ETag."""
    match = _PARTS.fullmatch(etag)
    return int(match[1]) if match else 0


def guess_part_size(size: int, count: int) -> int:
    """Return the most likely part size: the roundest one that gives the number of parts."""
    if count <= 1:
        return max(1, size)
    smallest, largest = -(-size // count), (size - 1) // (count - 1)
    units = (8 * _MIB, 5 * _MIB, _MIB, 1_000_000, 1)
    return next(rounded for unit in units if (rounded := -(-smallest // unit) * unit) <= largest or unit == 1)


def combine_md5s(parts: Sequence[bytes]) -> str:
    """Return the ETag of a multipart upload from the MD5s of its parts."""
    return f"{_md5(b''.join(parts)).hexdigest()}-{len(parts)}"


class Checksum:
    """Computes an ETag incrementally."""

    def __init__(self, part_size: int = 0) -> None:
        self._part_size = part_size
        self._remaining = part_size
        self._parts: list[bytes] = []
        self._md5 = _md5()

    def update(self, data: memoryview) -> None:
        while self._part_size and len(data) >= self._remaining:
            self._md5.update(data[: self._remaining])
            data = data[self._remaining :]
            self._parts.append(self._md5.digest())
            self._remaining, self._md5 = self._part_size, _md5()
        self._remaining -= len(data)
        self._md5.update(data)

    def etag(self) -> str:
        """Return the ETag of the bytes added so far."""
        if not self._part_size:
            return self._md5.hexdigest()
        unfinished = self._remaining != self._part_size or not self._parts
        return combine_md5s([*self._parts, self._md5.digest()] if unfinished else self._parts)


def _md5(data: bytes = b"") -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)
