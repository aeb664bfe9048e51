"""Which pieces of a large file are in place, so that an interrupted fetch goes on: one record for each, appended."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

__all__ = ["Pieces"]

_RECORD = struct.Struct("<I16s")


class Pieces:
    """The pieces of one file.

    Args:
        path: Where they are kept; what is there of an earlier fetch counts.
        size: Bytes of the file.
        piece: Bytes of a piece.
    """

    def __init__(self, path: Path, size: int, piece: int) -> None:
        self._path = path.with_name(f"{path.name}.{piece}")
        self._size = size
        self._piece = piece
        self._count = -(-size // piece)
        self._lock = threading.Lock()
        self._there = self._read()

    def missing(self) -> list[tuple[int, int]]:
        """Return number and length of the pieces that are not in place."""
        return [(n, self.length(n)) for n in range(self._count) if n not in self._there]

    def length(self, number: int) -> int:
        """Return the bytes of a piece: the last one may be shorter."""
        return min(self._piece, self._size - number * self._piece)

    def present(self) -> int:
        """Return the bytes in place."""
        return sum(self.length(number) for number in self._there)

    def add(self, number: int, md5: bytes) -> None:
        """Note that a piece is in place."""
        with self._lock:
            self._there[number] = md5
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(_RECORD.pack(number, md5))

    def md5s(self) -> list[bytes]:
        """Return the MD5s of all pieces, in order."""
        return [self._there[number] for number in range(self._count)]

    def forget(self) -> None:
        """None is in place any more."""
        self._there = {}
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[int, bytes]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        # A record that was cut off by a kill is none; the next one must begin where it should.
        whole = len(data) - len(data) % _RECORD.size
        if whole != len(data):
            os.truncate(self._path, whole)
        return {number: md5 for number, md5 in _RECORD.iter_unpack(data[:whole]) if number < self._count}
