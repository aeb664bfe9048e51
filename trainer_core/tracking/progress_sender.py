"""Sends the progress of many TrainJobs to their runs, for a process that must not wait for a server.

One thread sends for all jobs of the process: one batch for each job every few seconds. What it drops is in the log of
the job, from where the report of the job's end sends it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import cache

from trainer_core.errors import TrackingError, TrainerError
from trainer_core.tracking.reporter import Point, RunReporter

__all__ = ["ProgressSender", "get_progress_sender"]

_log = logging.getLogger(__name__)

_INTERVAL_SECONDS = 5.0
#: A server that does not answer is left alone for this long, and for twice as long each further time.
_PAUSE_SECONDS = 10.0
_MAX_PAUSE_SECONDS = 300.0
#: Points that wait to be sent, of all jobs together.
_MAX_POINTS = 10_000


class ProgressSender:
    """Queue of points, and the thread that sends them. The thread ends while there is nothing to send."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[RunReporter, list[Point]] = {}
        self._size = 0
        self._is_full = False
        self._thread: threading.Thread | None = None
        #: Until when each server is left alone, and for how long.
        self._pauses: dict[str, tuple[float, float]] = {}

    def put(self, reporter: RunReporter, points: Sequence[Point]) -> None:
        """Queue points of a job. Returns at once; drops them if the queue is full.

        Args:
            reporter: Reporter of the job, the same for all of its points.
            points: The points.
        """
        if not points or reporter.has_given_up:
            return
        with self._lock:
            self._append(reporter, points)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="progress of TrainJobs", daemon=True)
                self._thread.start()

    def send_pending(self) -> None:
        """Send what is queued. Points that a server does not take now are queued again."""
        with self._lock:
            pending, self._pending, self._size = self._pending, {}, 0
        for reporter, points in pending.items():
            if not self._send(reporter, points):
                with self._lock:
                    self._append(reporter, points)

    def _append(self, reporter: RunReporter, points: Sequence[Point]) -> None:
        is_full = self._size + len(points) > _MAX_POINTS
        if is_full and not self._is_full:
            _log.warning("curves in MLflow lag behind: more than %d points wait for the server", _MAX_POINTS)
        self._is_full = is_full
        if not is_full:
            self._pending.setdefault(reporter, []).extend(points)
            self._size += len(points)

    def _send(self, reporter: RunReporter, points: Sequence[Point]) -> bool:
        """Return whether the points are dealt with: stored, or of a job or run that takes none."""
        try:
            server = reporter.find_server()
        except TrainerError:
            return False  # The backend cannot be reached now.
        if server is None:
            reporter.give_up()
            return True
        until, pause = self._pauses.get(server.uri, (0.0, _PAUSE_SECONDS / 2))
        if time.monotonic() < until:
            return False
        try:
            reporter.send(points)
        except TrackingError as error:
            if not error.transient:
                reporter.give_up(error)
                return True
            pause = min(_MAX_PAUSE_SECONDS, pause * 2)
            self._pauses[server.uri] = (time.monotonic() + pause, pause)
            return False
        except TrainerError:
            return False
        self._pauses.pop(server.uri, None)
        return True

    def _run(self) -> None:
        try:
            while self._wait_for_points():
                self.send_pending()
        finally:
            with self._lock:
                self._thread = None

    def _wait_for_points(self) -> bool:
        time.sleep(_INTERVAL_SECONDS)
        with self._lock:
            if not self._pending:
                self._thread = None  # Under the lock: the next point starts another thread.
            return bool(self._pending)


@cache
def get_progress_sender() -> ProgressSender:
    """Return the sender of this process."""
    return ProgressSender()
