"""Standard streams whose followers, who see whole lines, see at least every ten seconds a line that does not end."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

#: Seconds after which the state of a line that has not ended is shown, and between two looks at it.
_AGE, _PAUSE = 9.0, 1.0
#: Characters of a line that is written although it has not ended.
_MAX_PENDING = 65_536


def show_open_lines(streams: Sequence[OpenLines], watch: Callable[[], None]) -> None:
    """Show the state of lines that have not ended, and call a function as often, until Python ends."""
    has_ended = threading.Event()

    def show() -> None:
        while not has_ended.wait(_PAUSE):
            watch()
            for stream in streams:
                with contextlib.suppress(OSError, ValueError):  # The function may have closed it.
                    stream.show()

    thread = threading.Thread(target=show, name="trainjob-lines", daemon=True)
    thread.start()
    # Joined: glibc aborts a process without a free descriptor whose thread is ended by the end of Python.
    atexit.register(thread.join)
    atexit.register(has_ended.set)


class OpenLines:
    """Writes what a stream is given at once, and ends a line that has not ended for some seconds."""

    def __init__(self, stream: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._write_text, self._clock = stream, stream.write, clock
        #: When the line began that has not ended; None without one.
        self._since: float | None = None
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def write(self, text: str) -> int:
        with self._lock:
            self._write_text(text)
            self._note(text)
            self.show()
        return len(text)

    def show(self) -> None:
        """Show the state of the line, if it has not ended for some seconds."""
        with self._lock:
            if self._since is not None and self._clock() >= self._since + _AGE:
                self._since = None
                self._end_line()

    def _note(self, text: str) -> None:
        _, end, rest = text.rpartition("\n")
        if end:
            self._since = None
        if self._since is None and rest.strip("\r "):
            self._since = self._clock()

    def _end_line(self) -> None:
        self._write_text("\n")

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()


class RankLines(OpenLines):
    """Writes whole lines, each with the rank of its process before it; other attributes are those of the stream.

    The processes of a node share its log. Of what a line shows one after the other by carriage returns, as a progress
    bar does, the log has the last state.
    """

    def __init__(self, stream: Any, rank: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, clock)
        self._prefix, self._pending = f"[rank {rank}] ", ""

    def write(self, text: str) -> int:
        """Write the lines that are complete."""
        with self._lock:
            *lines, self._pending = (self._pending + text).split("\n")
            self._pending = _drop_earlier_states(self._pending)
            self._write(lines)
            self._note(text)
            if len(self._pending) > _MAX_PENDING:
                self._end_line()
            self.show()
        return len(text)

    def end_line(self) -> None:
        """Write what is left at the end of the process."""
        with self._lock:
            self._end_line()

    def _end_line(self) -> None:
        lines, self._pending = [self._pending] if self._pending.strip("\r ") else [], ""
        self._write(lines)

    def writelines(self, lines: Any) -> None:
        self.write("".join(lines))

    def _write(self, lines: list[str]) -> None:
        if lines:
            # One write, so that the lines of another process come before or after it.
            self._stream.write("".join(f"{self._prefix}{_get_last_state(line)}\n" for line in lines))
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _get_last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]


def _drop_earlier_states(line: str) -> str:
    """Return the last state of a line that has not ended; a return at its end stays, as the next text replaces it."""
    if "\r" not in line:
        return line
    return f"\r{_get_last_state(line)}" + "\r" * line.endswith("\r")
