"""A log that a server sends in pieces, again and again from about the same place → its lines, each once. Pure.

A server can be asked for a log "since" a second and puts a time in front of each line. That alone finds no place:
many lines share a second, a burst of lines may share one time to the nanosecond, and times of stdout and stderr are
slightly out of order. What never changes is the order of the lines. So the place is the last line given: its time,
which of the lines of that time it is, and how many of its bytes were given.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache

__all__ = ["LONGEST", "LogCursor", "PlaceLostError"]

_log = logging.getLogger(__name__)

#: Bytes of a line from which on it is given in several pieces, so that no line is too long for the memory.
LONGEST = 262_144
#: Bytes that a time takes at most.
_STAMP_LENGTH = 64
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)(?: |$)")
_SECOND = 10**9
#: Seconds to go back beyond the last line: lines may be that much out of order, clocks be set back that much.
_MARGIN = 5
#: How many different times to know the number of lines of. More than what stdout and stderr can mix up.
_RECENT = 1024


class PlaceLostError(Exception):
    """Raised by `LogCursor.feed`: the stream goes on with new lines, but not from where the last one ended."""


class LogCursor:
    """The place in the log of one container of one pod, over its restarts.

    Call `begin` for each stream, `feed` with its bytes, cut anywhere, `finish` where it was the whole log of a run,
    and `flush` when no other stream will come.

    Args:
        longest: Bytes that a line may have; a longer one is given in pieces.
        place: Where another cursor has left off: its `place`. None to begin at the beginning.
    """

    def __init__(self, longest: int = LONGEST, place: Sequence[int] | None = None) -> None:
        self._longest = longest
        # The line that was given last: its time, which line of that time it is, and how much of it was given.
        self._last = 0
        self._nth = 0
        self._given = 0
        self._begun = False
        self._whole = False
        self._latest = 0
        self._recent: dict[int, int] = {}
        # The stream: whether nothing of it came yet, whether the line given last is still to come, and how many lines
        # of that time there were.
        self._fresh = True
        self._seeking = False
        self._strict = False
        self._met = 0
        # The line that is coming in: its bytes so far from `_at` on.
        self._held = bytearray()
        self._inside = False
        self._dropped = False
        self._at = 0
        if place:
            self._last, self._nth, self._given, self._latest, begun, whole = place
            self._begun, self._whole = bool(begun), bool(whole)
            self._recent = {self._last: self._nth}

    @property
    def place(self) -> list[int]:
        """How far the log was given, as plain numbers; empty where nothing was. What is held counts as not given."""
        if not self._recent:
            return []
        return [self._last, self._nth, self._given, self._latest, int(self._begun), int(self._whole)]

    def begin(self, strict: bool = False) -> str | None:
        """Start another stream; return the time since which to ask for it, None for all of it.

        Args:
            strict: It must go on from the last line given; otherwise what is newer than that is given.
        """
        # What is held of the stream before is kept until this one has something to say.
        self._fresh = True
        self._strict = strict
        if not self._recent:
            return None
        since = datetime.fromtimestamp(max(0, self._last // _SECOND - _MARGIN), timezone.utc)
        return since.strftime("%Y-%m-%dT%H:%M:%SZ")

    def feed(self, data: bytes) -> list[str]:
        """Take bytes of the stream; return the lines that are new, without their ends.

        Raises:
            PlaceLostError: The stream is strict and does not have the last line given. Nothing was taken.
        """
        if self._fresh and data:
            self._start()
        *lines, rest = data.split(b"\n")
        new: list[str] = []
        if lines and self._held:
            lines[0] = bytes(self._held) + lines[0]
            self._held.clear()
        for line in lines:
            self._take(line, True, new)
        self._held += rest
        if len(self._held) > self._longest + _STAMP_LENGTH:
            held = bytes(self._held)
            self._held.clear()
            self._take(held, False, new)
        return new

    def finish(self) -> list[str]:
        """Return a last line without an end, since this stream had all of its log."""
        # What is held of a stream before is another log's, or comes again.
        return [] if self._fresh else self.flush()

    def flush(self) -> list[str]:
        """Return what is held of a line without an end, since no other stream will come."""
        held = bytes(self._held)
        self._held.clear()
        new: list[str] = []
        if held:
            self._take(held, False, new)
        # What was not longer than a line may be is held again.
        if self._held:
            new.append(self._piece(bytes(self._held)))
            self._held.clear()
        return new

    def _start(self) -> None:
        self._fresh = False
        self._seeking = bool(self._recent)
        self._met = 0
        self._held.clear()
        self._inside = False

    def _take(self, text: bytes, ends: bool, new: list[str]) -> None:
        """Give what is new of a line, or of the part of it that came in; hold the rest of what has no end yet."""
        if not self._inside:
            text = self._enter(text, ends)
        self._inside = not ends
        if self._dropped:
            return
        start = min(max(0, self._given - self._at), len(text))
        self._at += start
        while len(text) - start > self._longest:
            end = _cut(text, start + self._longest)
            new.append(self._piece(text[start:end]))
            start = end
        if ends:
            self._whole = True
            last = text[start:].rstrip(b"\r")
            # What ends a line that was given in pieces is no line of its own.
            if last or not self._begun:
                new.append(_text(last))
        else:
            self._held += text[start:]

    def _enter(self, text: bytes, ends: bool) -> bytes:
        """Decide what to do with the line that begins here; return it without its time."""
        self._at = 0
        stamp, content = _split(text)
        if stamp is None:
            # The rest of a line that began before the time asked for; or a message of the server instead of lines.
            self._dropped = True
            if ends and not self._seeking:
                _log.warning("Instead of a line of the log came: %.1000s", _text(text))
        else:
            self._dropped = self._is_old(stamp)
        return content

    def _is_old(self, stamp: int) -> bool:
        """Whether a line was given before; if not, it is the place from now on."""
        if self._seeking:
            self._met += stamp == self._last
            if stamp == self._last and self._met == self._nth:
                self._seeking = False
                return self._whole
            if stamp <= self._latest:
                return True
            if self._strict:
                raise PlaceLostError
            self._seeking = False
        self._nth = self._recent.pop(stamp, 0) + 1
        self._recent[stamp] = self._nth
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        self._last = stamp
        self._latest = max(self._latest, stamp)
        self._given = 0
        self._begun = self._whole = False
        return False

    def _piece(self, content: bytes) -> str:
        self._at += len(content)
        self._given = self._at
        self._begun = True
        return _text(content)


def _split(line: bytes) -> tuple[int | None, bytes]:
    """Return the time of a line in nanoseconds, and the line without it."""
    match = _STAMP.match(line)
    if match is None:
        return None, b""
    second, fraction, zone = match.groups()
    try:
        return _seconds(second, zone) * _SECOND + int((fraction or b"").ljust(9, b"0")), line[match.end() :]
    except ValueError:
        return None, b""


@lru_cache(maxsize=16)
def _seconds(second: bytes, zone: bytes) -> int:
    return int(datetime.fromisoformat((second + zone.replace(b"Z", b"+00:00")).decode()).timestamp())


def _cut(data: bytes, most: int) -> int:
    """Return where to cut, after so many bytes at most, so that no character is cut in two."""
    for end in range(most, most - 4, -1):
        if not 0x80 <= data[end] < 0xC0:
            return end
    return most


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
