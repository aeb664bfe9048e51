"""Who hears how far a fetch is: a person at a terminal sees a bar, everybody else lines in the step's log.

The lines are those of training functions (`trainer_core.inside.progress`), counted in MB, so whoever follows a job
sees the one as the other.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from trainer_core.fetching.source import Report
from trainer_core.inside.progress import Reporter

__all__ = ["INTERVAL", "Lines", "reporter"]

#: Seconds between two lines.
INTERVAL = 2.0
_MB = 1e6


def reporter(role: str) -> Report:
    """Return who is told of the fetch of a dataset or a model."""
    if sys.stderr is not None and sys.stderr.isatty() and find_spec("rich") is not None:
        return _Bar(role)
    return Lines(role)


class Lines:
    """A line when a fetch begins, one every few seconds as long as it moves, and one when it has ended.

    Args:
        role: ``dataset`` or ``model``.
        clock: Seconds that only grow.
    """

    def __init__(self, role: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._role = role
        self._clock = clock
        # How often is decided here: what comes in large pieces must be told when nothing comes, too.
        self._reporter = Reporter(clock, interval=0)
        self._teller = threading.Thread(target=self._tell_again, name="progress", daemon=True)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._size = self._done = self._files = 0
        self._told: tuple[int, int] | None = None
        self._told_at = 0.0

    def begin(self, size: int, files: int) -> None:
        """Say how much it is."""
        self._size = size
        print(f"{self._role}: {size / _MB:.1f} MB in {files} files", flush=True)
        self._teller.start()

    def advance(self, size: int, files: int = 0) -> None:
        """Count."""
        with self._lock:
            self._done += size
            self._files += files

    def end(self) -> None:
        """Say how far it has come."""
        self._ended.set()
        self._teller.join()
        self.tell()

    def tell(self) -> None:
        """Print a line, if there is news."""
        with self._lock:
            now, state = self._clock(), (self._done, self._files)
            if state == self._told:
                return
            metrics: dict[str, float] = {"files": self._files}
            if self._told is not None:
                # Not in the first line: what it tells of may have been in place before.
                metrics["MB_per_second"] = round((self._done - self._told[0]) / _MB / max(now - self._told_at, 0.1), 1)
            self._told, self._told_at = state, now
            self._reporter.report(self._done / _MB, self._size / _MB or None, metrics)

    def _tell_again(self) -> None:
        while not self._ended.wait(INTERVAL):
            self.tell()


class _Bar:
    """A bar on the terminal."""

    def __init__(self, role: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        columns: tuple[Any, ...] = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed())
        files = TextColumn("{task.fields[files]} of {task.fields[all]} files")
        self._bar = Progress(*columns, TimeRemainingColumn(), files, console=Console(stderr=True))
        self._task = self._bar.add_task(role, total=None, files=0, all=0)
        self._files = 0

    def begin(self, size: int, files: int) -> None:
        """Show the bar."""
        self._bar.update(self._task, total=size, all=files)
        self._bar.start()

    def advance(self, size: int, files: int = 0) -> None:
        """Move it."""
        self._files += files
        self._bar.update(self._task, advance=size, files=self._files)

    def end(self) -> None:
        """Leave it as it is."""
        self._bar.stop()
