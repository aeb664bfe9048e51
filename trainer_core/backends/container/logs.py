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
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from trainer_core.backends.container.engine import Engine, EngineNotFoundError, EngineRequestError, Frame
from trainer_core.backends.container.job_journal import Container, parse_time
from trainer_core.model.jobs import Progress
from trainer_core.model.logs import LogLine, find_last_progress

#: The engine's clock may be set back by less than this without losing lines.
_MARGIN_SECONDS = 5
#: An engine that has returned everything returns no line later that is older than this.
_SETTLED_SECONDS = 60
#: A longer line is returned in pieces before it is complete.
_MAX_LINE_BYTES = 65_536
#: Number of lines before the end of a log in which a progress report is searched, and that one search reads.
_PROGRESS_LINES = 20_000
#: Number of requests that are kept for a next read. Each holds a connection.
_MAX_OPEN_STREAMS = 8


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
        return asdict(self)


@dataclass(frozen=True)
class LogRead:
    """Lines of a log, and the position after them."""

    lines: list[str]
    cursor: ContainerLogCursor
    #: Whether these were all lines.
    complete: bool


class LogReader:
    """Reads logs, and keeps a request with more lines than were asked for: a next request would begin a second earlier.

    Without that, a log whose lines were written in few seconds would be transferred again for each chunk of lines.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: OrderedDict[tuple[str, ContainerLogCursor], LogStream] = OrderedDict()
        #: The last progress report of a container, and how far its log was searched.
        self._progress: dict[str, tuple[ContainerLogCursor, Progress | None]] = {}

    def read(self, container: Container, cursor: ContainerLogCursor, ended: bool, limit: int) -> LogRead:
        """Return the lines of a container after a cursor; none if the container was removed, and its log with it."""
        ended = ended or container.has_exited
        stream, read = self._open.pop((container.id, cursor), None), LogRead([], cursor, True)
        try:
            if stream:
                read = stream.read(limit)
            if read.complete and not (stream and stream.is_final):
                # A kept request does not return what was written after it.
                stream, lines = self._request(container, read.cursor, ended), read.lines
                read = stream.read(limit - len(lines))
                read = LogRead(lines + read.lines, read.cursor, read.complete)
        except EngineNotFoundError:
            return read
        if stream and not read.complete:
            self._open[container.id, read.cursor] = stream
            if len(self._open) > _MAX_OPEN_STREAMS:
                self._open.popitem(last=False)
        return read

    def _request(self, container: Container, cursor: ContainerLogCursor, is_final: bool) -> LogStream:
        settled = int(self._engine.now().timestamp()) - _SETTLED_SECONDS
        return LogStream(self._engine.stream_log(container.id, cursor.since), cursor, is_final, settled)

    def read_last(self, container: Container, num_lines: int) -> list[str]:
        """Return the last lines of a container's log; empty if the log was removed."""
        try:
            cursor = find_tail_cursor(self._engine.stream_log(container.id, 0, num_lines), num_lines)
            frames = self._engine.stream_log(container.id, cursor.since)
            lines = LogStream(frames, cursor, is_final=True).read(sys.maxsize).lines
        except EngineRequestError:
            return []
        # Carriage returns of a progress bar separate lines too.
        return "\n".join(lines).splitlines()[-num_lines:]

    def read_progress(self, container: Container) -> Progress | None:
        """Return the last progress report of a container, None if there is none. Reads each part of a log only once."""
        cursor, progress = self._progress.get(container.id, (None, None))
        limit = sys.maxsize if container.has_exited else _PROGRESS_LINES
        try:
            if cursor is None:
                frames = self._engine.stream_log(container.id, 0, _PROGRESS_LINES)
                cursor = find_tail_cursor(frames, _PROGRESS_LINES)
            read = self.read(container, cursor, False, limit)
        except EngineRequestError:
            # The container was removed, and its log with it.
            return progress
        progress = find_last_progress(reversed(read.lines)) or progress
        self._progress[container.id] = read.cursor, progress
        return progress


def find_tail_cursor(frames: Iterable[Frame], num_lines: int) -> ContainerLogCursor:
    """Return a cursor with at least this number of lines after it; the start of a log that has fewer."""
    seconds = [_split_time(frame)[0] for _, frame in frames]
    return ContainerLogCursor(min(seconds) if len(seconds) >= num_lines else 0)


@lru_cache(maxsize=64)
def _parse_second(second: bytes, zone: bytes) -> int:
    return int(parse_time((second + zone).decode("ascii", "replace")).timestamp())


def _split_time(frame: bytes) -> tuple[int, bytes]:
    """Return the second of a frame, and its text."""
    time, _, piece = frame.partition(b" ")
    return _parse_second(time[:19], time[19:].lstrip(b".0123456789")), piece


def _get_checksum(second: int, piece: bytes) -> int:
    return zlib.crc32(piece, second & 0xFFFFFFFF)


class LogStream:
    """Joins the frames of one request to lines, and counts the frames for the cursor."""

    def __init__(self, frames: Iterable[Frame], start: ContainerLogCursor, is_final: bool, settled: int = 0) -> None:
        #: Whether no line can follow these.
        self.is_final = is_final
        self._frames, self._kept = iter(frames), list[Frame]()
        self._start, self._settled = start, settled
        self._num_to_skip = start.pieces
        self._lines: list[str] = []
        #: The second of the cursor, and of the last frame whose line is complete.
        self._since = self._last = start.since
        #: Number of the frames whose lines are complete and checksum of the first one, by second.
        self._read: dict[int, tuple[int, int]] = {}
        #: Frames of the unfinished line.
        self._open: list[tuple[int, bytes]] = []
        self._size = 0
        self._stream: int | None = None

    def read(self, limit: int) -> LogRead:
        """Return the next lines."""
        self._lines = lines = list[str]()
        kept, self._kept = self._kept, []
        for stream, frame in chain(kept, self._frames):
            if len(lines) >= limit:
                self._kept = [(stream, frame)]
                return LogRead(lines, self._get_cursor(self._last), False)
            second, piece = _split_time(frame)
            if second >= self._start.since:
                self._add(stream, second, piece)
        if self.is_final:
            self._end_line()
        return LogRead(lines, self._get_cursor(max(self._last, self._settled)), True)

    def _add(self, stream: int, second: int, piece: bytes) -> None:
        if self._num_to_skip and not self._read and _get_checksum(second, piece) != self._start.first:
            self._num_to_skip = 0  # The engine has rotated the log.
        if self._num_to_skip:
            self._num_to_skip -= 1
            self._count(second, piece)
            return
        if stream != self._stream:
            # An unfinished line of the other stream may never be finished, so it ends here.
            self._end_line()
            self._stream = stream
        self._open.append((second, piece))
        self._size += len(piece)
        if piece.endswith(b"\n") or self._size > _MAX_LINE_BYTES:
            self._end_line()

    def _count(self, second: int, piece: bytes) -> None:
        number, first = self._read.get(second) or (0, _get_checksum(second, piece))
        self._read[second] = number + 1, first
        self._last = second

    def _end_line(self) -> None:
        if not self._open:
            return
        for second, piece in self._open:
            self._count(second, piece)
        data = b"".join([piece for _, piece in self._open])
        written, self._open, self._size = self._open[0][0], [], 0
        text = data.decode("utf-8", "replace").removesuffix("\n")
        self._lines += [LogLine(line.rstrip("\r"), written) for line in text.split("\n")]

    def _get_cursor(self, reached: int) -> ContainerLogCursor:
        """Return a cursor whose second is as late as possible, so that little is read again."""
        reached = self._open[0][0] if self._open else reached
        self._since = max(self._since, reached - _MARGIN_SECONDS)
        self._read = {second: count for second, count in self._read.items() if second >= self._since}
        counts = list(self._read.values())
        return ContainerLogCursor(self._since, sum(number for number, _ in counts), counts[0][1] if counts else 0)
