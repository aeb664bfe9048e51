"""The lines of a step's log, from a place on. No line is lost and none comes twice.

Podman tells the time of a line to the second and cannot be asked for less, so a place is a second and a count: how
many pieces from that second on have been read. Reading on asks for everything since then and passes over as many.
What an engine hands over are pieces of lines, always the same ones, each with its time; a line is over where a piece
ends with a line end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.backends.container.times import parsed

__all__ = ["Place", "Read", "near_the_end", "read_on"]

#: A clock that is set back by less than this loses nothing.
_MARGIN_SECONDS = 5
#: Bytes of a line that is not over yet after which it is handed over in pieces.
_LONGEST = 65_536


@dataclass(frozen=True)
class Place:
    """How far the log of one container was read.

    Attributes:
        since: The second to read on from.
        pieces: How many pieces from that second on have been read.
    """

    since: int = 0
    pieces: int = 0

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Place:
        """Read what `to_dict` wrote."""
        return cls(int(data.get("since", 0)), int(data.get("pieces", 0)))

    def to_dict(self) -> dict[str, int]:
        """Return it as JSON data."""
        return {"since": self.since, "pieces": self.pieces}


@dataclass(frozen=True)
class Read:
    """What was read: lines without their ends, the place behind them, and whether there was no more."""

    lines: list[str]
    place: Place
    complete: bool


def near_the_end(frames: Iterable[tuple[int, bytes]], lines: int) -> Place:
    """Return a place with so many lines behind it, or a few more; the beginning of a log that has fewer.

    Args:
        frames: What the engine says of so many last lines.
        lines: How many.
    """
    seconds = [second for _, second, _ in _pieces(frames, 0)]
    return Place(min(seconds) if len(seconds) >= lines else 0)


def read_on(frames: Iterable[tuple[int, bytes]], place: Place, whole: bool, most: int) -> Read:
    """Read lines from a place on.

    Args:
        frames: What the engine says since that second: to which output, and a piece behind its time.
        place: Where to read on.
        whole: Nothing can follow: a last line counts although it has no end.
        most: How many lines to return at most.
    """
    reader = _Reader(place)
    complete = True
    for output, second, piece in _pieces(frames, place.since):
        if len(reader.lines) >= most:
            complete = False
            break
        reader.take(output, second, piece)
    if whole and complete:
        reader.end_line()
    return Read(reader.lines, reader.place(), complete)


def _pieces(frames: Iterable[tuple[int, bytes]], since: int) -> Iterator[tuple[int, int, bytes]]:
    for output, frame in frames:
        time, _, piece = frame.partition(b" ")
        second = int(parsed(time.decode("ascii", "replace")).timestamp())
        if second >= since:
            yield output, second, piece


class _Reader:
    """Puts pieces together and counts them."""

    def __init__(self, place: Place) -> None:
        self.lines: list[str] = []
        self._start = place
        self._to_pass = place.pieces
        #: The seconds of the pieces that are read, since the place; and of those of the line that is not over.
        self._seconds: list[int] = []
        self._open: list[tuple[int, bytes]] = []
        self._size = 0
        self._output: int | None = None

    def take(self, output: int, second: int, piece: bytes) -> None:
        if self._to_pass:
            self._to_pass -= 1
            self._seconds.append(second)
            return
        if output != self._output:
            # What is not over there is cut off, as on a terminal: it may never be.
            self.end_line()
            self._output = output
        self._open.append((second, piece))
        self._size += len(piece)
        if piece.endswith(b"\n") or self._size > _LONGEST:
            self.end_line()

    def end_line(self) -> None:
        if not self._open:
            return
        data = b"".join(piece for _, piece in self._open)
        self._seconds += [second for second, _ in self._open]
        self._open, self._size = [], 0
        text = data.decode("utf-8", "replace").removesuffix("\n")
        self.lines += [line.rstrip("\r") for line in text.split("\n")]

    def place(self) -> Place:
        """As late as it can be, so that little is read again."""
        reached = self._open[0][0] if self._open else (self._seconds[-1] if self._seconds else self._start.since)
        since = max(self._start.since, reached - _MARGIN_SECONDS)
        return Place(since, sum(second >= since for second in self._seconds))
