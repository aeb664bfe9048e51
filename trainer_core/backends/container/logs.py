"""Reads the log of a container from a cursor on. No line is lost, and none is returned twice.

Podman reports the time of a line to the second and can only be asked for lines since a second. Therefore a cursor is a
second and the number of log frames from that second on that were read. Reading continues by requesting everything
since that second and skipping that number of frames. Engines return the same frames in each request, unless they rotate
the log: then the first of these frames is another one, and everything that is left is read. A frame is a part of a line
with a timestamp; the line is complete when a frame ends with a line end.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.backends.container.engine import Engine, EngineRequestError, Frame
from trainer_core.backends.container.job_journal import Container
from trainer_core.backends.container.timestamps import parse_time
from trainer_core.model.jobs import Progress
from trainer_core.model.logs import LogLine, find_last_progress

#: The engine's clock may be set back by less than this without losing lines.
_MARGIN_SECONDS = 5
#: A longer line is returned in pieces before it is complete.
_MAX_LINE_BYTES = 65_536
#: Number of lines before the end of a log in which a progress report is searched, and that one search reads.
_PROGRESS_LINES = 20_000


@dataclass(frozen=True)
class ContainerLogCursor:
    """Position in the log of one container."""

    #: The second from which to request the log, as a Unix timestamp.
    since: int = 0
    #: Number of frames from that second on that were read.
    pieces: int = 0
    #: Checksum of the first of them.
    first: int = 0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ContainerLogCursor:
        return cls(*(int(data.get(name, 0)) for name in ("since", "pieces", "first")))

    def to_dict(self) -> dict[str, int]:
        return {"since": self.since, "pieces": self.pieces, "first": self.first}


@dataclass(frozen=True)
class LogRead:
    """Result of `read_lines`."""

    lines: list[str]
    cursor: ContainerLogCursor
    #: Whether these were all lines.
    complete: bool


def find_tail_cursor(frames: Iterable[Frame], num_lines: int) -> ContainerLogCursor:
    """Return a cursor with at least this number of lines after it; the start of a log that has fewer."""
    seconds = [second for _, second, _ in _parse_frames(frames, 0)]
    return ContainerLogCursor(min(seconds) if len(seconds) >= num_lines else 0)


def read_lines(frames: Iterable[Frame], cursor: ContainerLogCursor, ended: bool, limit: int) -> LogRead:
    assembler = _LineAssembler(cursor)
    complete = True
    for stream, second, piece in _parse_frames(frames, cursor.since):
        if len(assembler.lines) >= limit:
            complete = False
            break
        assembler.add(stream, second, piece)
    if ended and complete:
        assembler.end_line()
    return LogRead(assembler.lines, assembler.get_cursor(), complete)


def read_last_lines(engine: Engine, container: Container, num_lines: int) -> list[str]:
    """Return the last lines of a container's log; empty if the log was removed."""
    try:
        cursor = find_tail_cursor(engine.stream_log(container.id, 0, num_lines), num_lines)
        frames = engine.stream_log(container.id, cursor.since)
        lines = read_lines(frames, cursor, ended=True, limit=sys.maxsize).lines
    except EngineRequestError:
        return []
    # Carriage returns of a progress bar separate lines too.
    return "\n".join(lines).splitlines()[-num_lines:]


class ProgressReader:
    """Finds the last progress report in the logs of containers, and reads each part of a log only once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, tuple[ContainerLogCursor, Progress | None]] = {}

    def read(self, container: Container) -> Progress | None:
        """Return the last progress report of a container; None if there is none."""
        cursor, progress = self._known.get(container.id, (None, None))
        limit = sys.maxsize if container.has_exited else _PROGRESS_LINES
        try:
            if cursor is None:
                frames = self._engine.stream_log(container.id, 0, _PROGRESS_LINES)
                cursor = find_tail_cursor(frames, _PROGRESS_LINES)
            frames = self._engine.stream_log(container.id, cursor.since)
            read = read_lines(frames, cursor, container.has_exited, limit)
        except EngineRequestError:
            # The container was removed, and its log with it.
            return progress
        progress = find_last_progress(reversed(read.lines)) or progress
        self._known[container.id] = read.cursor, progress
        return progress


def _parse_frames(frames: Iterable[Frame], since: int) -> Iterator[tuple[int, int, bytes]]:
    for stream, frame in frames:
        time, _, piece = frame.partition(b" ")
        second = int(parse_time(time.decode("ascii", "replace")).timestamp())
        if second >= since:
            yield stream, second, piece


def _get_checksum(second: int, piece: bytes) -> int:
    return zlib.crc32(piece, second & 0xFFFFFFFF)


class _LineAssembler:
    """Joins frames to lines, and counts the frames for the cursor."""

    def __init__(self, start: ContainerLogCursor) -> None:
        self.lines: list[str] = []
        self._start = start
        self._num_to_skip = start.pieces
        #: Seconds and checksums of the frames whose lines are complete.
        self._read: list[tuple[int, int]] = []
        #: Frames of the unfinished line.
        self._open: list[tuple[int, bytes]] = []
        self._size = 0
        self._stream: int | None = None

    def add(self, stream: int, second: int, piece: bytes) -> None:
        if self._num_to_skip and not self._read and _get_checksum(second, piece) != self._start.first:
            self._num_to_skip = 0  # The engine has rotated the log.
        if self._num_to_skip:
            self._num_to_skip -= 1
            self._read.append((second, _get_checksum(second, piece)))
            return
        if stream != self._stream:
            # An unfinished line of the other stream may never be finished, so it ends here.
            self.end_line()
            self._stream = stream
        self._open.append((second, piece))
        self._size += len(piece)
        if piece.endswith(b"\n") or self._size > _MAX_LINE_BYTES:
            self.end_line()

    def end_line(self) -> None:
        if not self._open:
            return
        data = b"".join(piece for _, piece in self._open)
        self._read += [(second, _get_checksum(second, piece)) for second, piece in self._open]
        written, self._open, self._size = self._open[0][0], [], 0
        text = data.decode("utf-8", "replace").removesuffix("\n")
        self.lines += [LogLine(line.rstrip("\r"), written) for line in text.split("\n")]

    def get_cursor(self) -> ContainerLogCursor:
        """Return a cursor whose second is as late as possible, so that little is read again."""
        reached = self._open[0][0] if self._open else (self._read[-1][0] if self._read else self._start.since)
        since = max(self._start.since, reached - _MARGIN_SECONDS)
        checksums = [checksum for second, checksum in self._read if second >= since]
        return ContainerLogCursor(since, len(checksums), checksums[0] if checksums else 0)
