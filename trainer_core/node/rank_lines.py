"""RankLines: a standard stream of one of several processes of a node, which share the log of the node."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

#: Seconds between two states of a progress bar in the log.
_BAR_INTERVAL = 10.0
#: Characters of a line that is written although it has not ended.
_MAX_PENDING = 65_536


class RankLines:
    """Writes whole lines, each with the rank of its process before it; other attributes are those of the stream.

    Of what a line shows one after the other by carriage returns, as a progress bar does, the log has the last state,
    and one every ten seconds until then.
    """

    def __init__(self, stream: Any, rank: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._prefix, self._clock = stream, f"[rank {rank}] ", clock
        self._pending = ""
        self._bar_due = clock() + _BAR_INTERVAL
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def write(self, text: str) -> int:
        """Write the lines that are complete."""
        with self._lock:
            *lines, self._pending = (self._pending + text).split("\n")
            self._pending = _drop_earlier_states(self._pending)
            is_bar = "\r" in self._pending and self._clock() >= self._bar_due
            if is_bar or len(self._pending) > _MAX_PENDING:
                lines.append(self._pending)
                self._pending, self._bar_due = "", self._clock() + _BAR_INTERVAL
            self._write(lines)
        return len(text)

    def end_line(self) -> None:
        """Write what is left at the end of the process."""
        with self._lock:
            lines, self._pending = [self._pending] if self._pending.strip("\r ") else [], ""
            self._write(lines)

    def writelines(self, lines: Any) -> None:
        self.write("".join(lines))

    def _write(self, lines: list[str]) -> None:
        if lines:
            # One write, so that the lines of another process come before or after it.
            self._stream.write("".join(f"{self._prefix}{_get_last_state(line)}\n" for line in lines))
            self._stream.flush()

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _get_last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]


def _drop_earlier_states(line: str) -> str:
    """Return the last state of a line that has not ended; a return at its end stays, as the next text replaces it."""
    if "\r" not in line:
        return line
    return f"\r{_get_last_state(line)}" + "\r" * line.endswith("\r")
