"""LogCursor: the new lines of a container log that is read in several overlapping streams.

The server filters a log by time (`sinceTime`, in seconds) and can prefix each line with its time. Time alone does not
identify a line: many lines share a second, a burst of lines may share a time to the nanosecond, and the lines of stdout
and stderr are slightly out of order. The order of the lines never changes, however. So the position in a log is the
last line that was returned: its time, its index among the lines of that time, and how many of its bytes were returned.

Pure functions without I/O.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache

from trainer_core.model.logs import LogLine

_log = logging.getLogger(__name__)

#: Length from which on a line is returned in several pieces, to bound the memory use.
MAX_LINE_BYTES = 262_144
#: Maximum length of a timestamp in bytes.
_MAX_TIMESTAMP_BYTES = 64
_TIMESTAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)(?: |$)")
_NANOSECONDS = 10**9
#: Seconds by which consecutive streams overlap: lines may be out of order and clocks may be set back by that much.
_OVERLAP_SECONDS = 5
#: Number of recent timestamps whose lines are counted; more than the lines of stdout and stderr can be out of order.
_MAX_RECENT_TIMESTAMPS = 1024


class CursorLostError(Exception):
    """Raised by `LogCursor.feed`: the stream has new lines but does not contain the last line that was returned."""


class LogCursor:
    """Position in the log of one container of one pod, across its restarts.

    Call `start_stream` for each stream, `feed` with its bytes in pieces of any size, `finish_stream` if it was the
    complete log of a run, and `flush` when no other stream follows.
    """

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES, position: Sequence[int] | None = None) -> None:
        self._max_line_bytes = max_line_bytes
        # The last returned line: its timestamp, its index among the lines of that timestamp, and its returned bytes.
        self._last_timestamp = 0
        self._last_index = 0
        self._returned_bytes = 0
        # Whether a piece of that line, and whether its end, was returned.
        self._line_started = False
        self._line_finished = False
        self._max_timestamp = 0
        self._line_counts: dict[int, int] = {}
        # The stream: whether it is still empty, whether the last returned line is still to be found in it, and how many
        # lines of that timestamp it had so far.
        self._stream_is_empty = True
        self._seeking = False
        self._strict = False
        self._matching_lines = 0
        # The incoming line: its buffered bytes, which start at `_offset` in the line.
        self._buffer = bytearray()
        self._in_line = False
        self._skip_line = False
        self._offset = 0
        if position:
            self._last_timestamp, self._last_index, self._returned_bytes, self._max_timestamp, started, done = position
            self._line_started, self._line_finished = bool(started), bool(done)
            self._line_counts = {self._last_timestamp: self._last_index}

    @property
    def position(self) -> list[int]:
        """How far the log was returned, as plain numbers; empty if nothing was. Buffered bytes do not count."""
        if not self._line_counts:
            return []
        return [
            self._last_timestamp,
            self._last_index,
            self._returned_bytes,
            self._max_timestamp,
            int(self._line_started),
            int(self._line_finished),
        ]

    def start_stream(self, strict: bool = False) -> str | None:
        """Start another stream; return its `sinceTime`, None for the complete log."""
        # The buffer of the previous stream is kept until this one has data.
        self._stream_is_empty = True
        self._strict = strict
        if not self._line_counts:
            return None
        seconds = max(0, self._last_timestamp // _NANOSECONDS - _OVERLAP_SECONDS)
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    def feed(self, data: bytes) -> list[LogLine]:
        """Process bytes of the stream; return the new lines without line endings."""
        if self._stream_is_empty and data:
            self._reset_stream()
        *lines, rest = data.split(b"\n")
        new: list[LogLine] = []
        if lines and self._buffer:
            lines[0] = bytes(self._buffer) + lines[0]
            self._buffer.clear()
        for line in lines:
            self._process(line, True, new)
        self._buffer += rest
        if len(self._buffer) > self._max_line_bytes + _MAX_TIMESTAMP_BYTES:
            buffered = bytes(self._buffer)
            self._buffer.clear()
            self._process(buffered, False, new)
        return new

    def finish_stream(self) -> list[LogLine]:
        """Return a last line without a line ending; call it if the stream had the complete log of a run."""
        # If this stream had no data, the buffer belongs to the previous one and may come again.
        return [] if self._stream_is_empty else self.flush()

    def flush(self) -> list[LogLine]:
        """Return a buffered line without a line ending; call it when no other stream follows."""
        buffered = bytes(self._buffer)
        self._buffer.clear()
        new: list[LogLine] = []
        if buffered:
            self._process(buffered, False, new)
        # `_process` buffers again what is not longer than a line may be.
        if self._buffer:
            new.append(self._return_piece(bytes(self._buffer)))
            self._buffer.clear()
        return new

    def _reset_stream(self) -> None:
        self._stream_is_empty = False
        self._seeking = bool(self._line_counts) or self._strict
        self._matching_lines = 0
        self._buffer.clear()
        self._in_line = False

    def _process(self, text: bytes, ends: bool, new: list[LogLine]) -> None:
        """Append the new pieces of a line to `new`; buffer the rest of a line that does not end yet."""
        if not self._in_line:
            text = self._start_line(text, ends)
        self._in_line = not ends
        if self._skip_line:
            return
        start = min(max(0, self._returned_bytes - self._offset), len(text))
        self._offset += start
        while len(text) - start > self._max_line_bytes:
            end = _find_cut(text, start + self._max_line_bytes)
            new.append(self._return_piece(text[start:end]))
            start = end
        if ends:
            self._line_finished = True
            last = text[start:].rstrip(b"\r")
            # The empty end of a line that was returned in pieces is not another line.
            if last or not self._line_started:
                new.append(self._build_line(last))
        else:
            self._buffer += text[start:]

    def _start_line(self, text: bytes, ends: bool) -> bytes:
        """Decide whether to skip the line that starts here; return it without its timestamp."""
        self._offset = 0
        timestamp, content = _split_timestamp(text)
        if timestamp is None:
            # The rest of a line that started before `sinceTime`, or an error message of the kubelet.
            self._skip_line = True
            if ends and not self._seeking:
                _log.warning("log line without a timestamp is skipped: %.1000s", _decode(text))
        else:
            self._skip_line = self._was_returned(timestamp)
        return content

    def _was_returned(self, timestamp: int) -> bool:
        """Return whether a line was returned before; if not, advance the position to it."""
        if self._seeking:
            self._matching_lines += timestamp == self._last_timestamp
            if timestamp == self._last_timestamp and self._matching_lines == self._last_index:
                self._seeking = False
                return self._line_finished
            if timestamp <= self._max_timestamp:
                return True
            if self._strict:
                raise CursorLostError
            self._seeking = False
        self._last_index = self._line_counts.pop(timestamp, 0) + 1
        self._line_counts[timestamp] = self._last_index
        if len(self._line_counts) > _MAX_RECENT_TIMESTAMPS:
            del self._line_counts[next(iter(self._line_counts))]
        self._last_timestamp = timestamp
        self._max_timestamp = max(self._max_timestamp, timestamp)
        self._returned_bytes = 0
        self._line_started = self._line_finished = False
        return False

    def _return_piece(self, content: bytes) -> LogLine:
        self._offset += len(content)
        self._returned_bytes = self._offset
        self._line_started = True
        return self._build_line(content)

    def _build_line(self, content: bytes) -> LogLine:
        return LogLine(_decode(content), self._last_timestamp / _NANOSECONDS)


def _split_timestamp(line: bytes) -> tuple[int | None, bytes]:
    """Return the timestamp of a line in nanoseconds, and the line without it."""
    match = _TIMESTAMP.match(line)
    if match is None:
        return None, b""
    second, fraction, zone = match.groups()
    try:
        nanoseconds = _parse_seconds(second, zone) * _NANOSECONDS + int((fraction or b"").ljust(9, b"0"))
    except ValueError:
        return None, b""
    return nanoseconds, line[match.end() :]


@lru_cache(maxsize=16)
def _parse_seconds(second: bytes, zone: bytes) -> int:
    return int(datetime.fromisoformat((second + zone.replace(b"Z", b"+00:00")).decode()).timestamp())


def _find_cut(data: bytes, limit: int) -> int:
    """Return the last index up to `limit` that does not split a UTF-8 character."""
    for end in range(limit, limit - 4, -1):
        if not 0x80 <= data[end] < 0xC0:
            return end
    return limit


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
