"""Progress of a fetch: a bar on a terminal, else lines in MB in the format of `trainer_core.node.progress`."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from trainer_core.fetch.source import FetchProgress
from trainer_core.node.progress import Reporter

#: Seconds between two lines.
INTERVAL = 2.0
_MB = 1e6


def create_progress(role: str) -> FetchProgress:
    """Return a bar if standard error is a terminal and rich is installed, else lines in the log."""
    if sys.stderr is not None and sys.stderr.isatty() and find_spec("rich") is not None:
        return _BarProgress(role)
    return LogProgress(role)


class LogProgress(FetchProgress):
    """Prints one line at the beginning, one every `INTERVAL` seconds while the numbers change, and one at the end."""

    def __init__(self, role: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._role = role
        self._clock = clock
        # The thread below limits the rate, not the reporter: progress is printed although no call arrives meanwhile.
        self._reporter = Reporter(clock, interval=0)
        self._thread = threading.Thread(target=self._print_periodically, name="progress", daemon=True)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._size = self._done = self._files = 0
        self._printed: tuple[int, int] | None = None
        self._printed_at = 0.0

    def begin(self, size: int, files: int) -> None:
        self._size = size
        print(f"{self._role}: {size / _MB:.1f} MB in {files} files", flush=True)
        self._thread.start()

    def advance(self, size: int, files: int = 0) -> None:
        with self._lock:
            self._done += size
            self._files += files

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self.print_if_changed()

    def print_if_changed(self) -> None:
        """Print a line if the numbers have changed since the last one."""
        with self._lock:
            now, state = self._clock(), (self._done, self._files)
            if state == self._printed:
                return
            metrics: dict[str, float] = {"files": self._files}
            if self._printed is not None:
                # Not in the first line, which may count files that were in place before.
                rate = (self._done - self._printed[0]) / _MB / max(now - self._printed_at, 0.1)
                metrics["MB_per_second"] = round(rate, 1)
            self._printed, self._printed_at = state, now
            self._reporter.report(_to_megabytes(self._done), _to_megabytes(self._size) or None, metrics)

    def _print_periodically(self) -> None:
        while not self._ended.wait(INTERVAL):
            self.print_if_changed()


def _to_megabytes(size: int) -> float:
    # Rounded up to the next kB, so that a few bytes are 0.001 and not 4e-06.
    return math.ceil(size / 1e3) / 1e3


class _BarProgress(FetchProgress):
    """Progress bar on the terminal."""

    def __init__(self, role: str) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn as Speed,
        )

        columns: tuple[Any, ...] = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed())
        files = TextColumn("{task.fields[files]} of {task.fields[all]} files")
        self._bar = Progress(*columns, TimeRemainingColumn(), files, console=Console(stderr=True))
        self._task = self._bar.add_task(role, total=None, files=0, all=0)
        self._files = 0

    def begin(self, size: int, files: int) -> None:
        self._bar.update(self._task, total=size, all=files)
        self._bar.start()

    def advance(self, size: int, files: int = 0) -> None:
        self._files += files
        self._bar.update(self._task, advance=size, files=self._files)

    def end(self) -> None:
        self._bar.stop()
