"""Journal of the pieces of a partial download, so that an interrupted download can be resumed."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

_RECORD = struct.Struct("<I16s")


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
