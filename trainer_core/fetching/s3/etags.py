"""Etags as checksums: the MD5 of an object uploaded at once, the MD5 of the MD5s of the parts of a larger one. Pure.

How large the parts were is not said in a listing. There is nearly always one natural size that gives their number;
where it is wrong, the storage knows better (`head.part_size`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

__all__ = ["Checksum", "combined", "count_of", "is_plain", "likely_part_size"]

_MIB = 2**20
_PLAIN = re.compile(r"[0-9a-f]{32}")
_PARTS = re.compile(r"[0-9a-f]{32}-([1-9]\d{0,4})")


def is_plain(etag: str) -> bool:
    """Say whether an etag looks like the MD5 of the whole object."""
    return _PLAIN.fullmatch(etag) is not None


def count_of(etag: str) -> int:
    """Return the number of parts that an etag tells; 0 where it tells none."""
    match = _PARTS.fullmatch(etag)
    return int(match[1]) if match else 0


def likely_part_size(size: int, count: int) -> int:
    """Return the most natural size of parts of which so many make so many bytes: the roundest in its range."""
    if count <= 1:
        return max(1, size)
    least, most = -(-size // count), (size - 1) // (count - 1)
    units = (8 * _MIB, 5 * _MIB, _MIB, 1_000_000, 1)
    return next(rounded for unit in units if (rounded := -(-least // unit) * unit) <= most or unit == 1)


def combined(parts: Sequence[bytes]) -> str:
    """Return the etag of parts with these MD5s."""
    return f"{_md5(b''.join(parts)).hexdigest()}-{len(parts)}"


class Checksum:
    """Adds up the etag of bytes as they come.

    Args:
        part_size: Of the parts it was uploaded in; 0 for at once.
    """

    def __init__(self, part_size: int = 0) -> None:
        self._part_size = part_size
        self._left = part_size
        self._parts: list[bytes] = []
        self._md5 = _md5()

    def update(self, data: memoryview) -> None:
        """Add bytes."""
        while self._part_size and len(data) >= self._left:
            self._md5.update(data[: self._left])
            data = data[self._left :]
            self._parts.append(self._md5.digest())
            self._left, self._md5 = self._part_size, _md5()
        self._left -= len(data)
        self._md5.update(data)

    def etag(self) -> str:
        """Return the etag of what was added."""
        if not self._part_size:
            return self._md5.hexdigest()
        unfinished = self._left != self._part_size or not self._parts
        return combined([*self._parts, self._md5.digest()] if unfinished else self._parts)


def _md5(data: bytes = b"") -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)
