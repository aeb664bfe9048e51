"""Sends what TrainJobs report to their runs, in one thread of the process, so that no submit and no wait is delayed.

It completes the run of a submitted job, sends the log of jobs that this process waits for, and the points that triggers
have read. What it does not send, the next process that waits for the job or submits it again sends.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from trainer_core.errors import TrackingError, TrainerError

if TYPE_CHECKING:
    from trainer_core.tracking.reporter import RunReporter
    from trainer_core.tracking.run_writer import Point

__all__ = ["RunSender", "get_run_sender"]

_log = logging.getLogger(__name__)

#: Seconds before the first report of a wait, so that a short wait costs nothing.
_FIRST_SECONDS = 1.0
#: Seconds between two reports of a job: the process waits for one, and for `_MANY_JOBS` or more. A report costs about
#: a millisecond of processor time, whatever it has to send.
_INTERVAL_SECONDS = 5.0
_INTERVAL_OF_MANY_SECONDS = 10.0
_MANY_JOBS = 100
#: A server that does not answer is left alone for this long, and for twice as long each further time.
_PAUSE_SECONDS = 10.0
_MAX_PAUSE_SECONDS = 300.0
#: Points that wait to be sent, of all jobs together.
_MAX_POINTS = 20_000
#: Seconds after which the exit of the process is no longer delayed.
_EXIT_SECONDS = 10.0


class RunSender:
    """Queue of what is to be sent, and the thread that sends it. The thread ends while there is nothing to send."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._bindings: deque[tuple[str, Callable[[], None]]] = deque()
        #: Uids of the jobs of bindings that are queued or being sent.
        self._unbound: list[str] = []
        #: When the next report of each job is due. The number keeps reporters from being compared.
        self._schedule: list[tuple[float, int, RunReporter]] = []
        self._scheduled: set[RunReporter] = set()
        self._numbers = count()
        self._points: dict[RunReporter, list[Point]] = {}
        self._size = 0
        self._is_full = False
        #: Until when each server is left alone, and for how long.
        self._pauses: dict[str, tuple[float, float]] = {}

    def bind(self, uid: str, binding: Callable[[], None]) -> None:
        """Queue the completion of the run of a submitted job. It comes before all reports.

        Args:
            uid: Uid of the job.
            binding: Completes the run. Raises nothing.
        """
        with self._changed:
            self._bindings.append((uid, binding))
            self._unbound.append(uid)
            self._wake()

    def flush(self, timeout: float, uid: str | None = None) -> bool:
        """Wait until the runs of submitted jobs are completed; return whether they are.

        Args:
            timeout: Maximum time to wait, in seconds.
            uid: Uid of the only job to wait for. None (the default) for all.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._unbound if uid is None else uid not in self._unbound, timeout
            )

    def watch(self, reporter: RunReporter) -> None:
        """Report a job every few seconds, from its log, until its reporter is stopped.

        Args:
            reporter: Reporter of the job.
        """
        with self._changed:
            self._plan(reporter, _FIRST_SECONDS)

    def put(self, reporter: RunReporter, points: Sequence[Point]) -> None:
        """Queue points of a job. Returns at once; drops them if the queue is full.

        Args:
            reporter: Reporter of the job, the same for all of its points.
            points: The points.
        """
        if not points or reporter.has_given_up:
            return
        with self._changed:
            self._append(reporter, points)
            if reporter in self._points:
                self._plan(reporter, self._get_interval())

    def send_pending(self) -> None:
        """Send what is queued, due or not. What a server does not take now is queued again."""
        with self._changed:
            due = [heappop(self._schedule)[2] for _ in range(len(self._schedule))]
            self._scheduled.clear()
        for reporter in due:
            self._report(reporter)

    def _append(self, reporter: RunReporter, points: Sequence[Point]) -> None:
        is_full = self._size + len(points) > _MAX_POINTS
        if is_full and not self._is_full:
            _log.warning("curves in MLflow lag behind: more than %d points wait for the server", _MAX_POINTS)
        self._is_full = is_full
        if not is_full:
            self._points.setdefault(reporter, []).extend(points)
            self._size += len(points)

    def _get_interval(self) -> float:
        crowd = min(1.0, len(self._scheduled) / _MANY_JOBS)
        return _INTERVAL_SECONDS + crowd * (_INTERVAL_OF_MANY_SECONDS - _INTERVAL_SECONDS)

    def _plan(self, reporter: RunReporter, seconds: float) -> None:
        if reporter not in self._scheduled:
            self._scheduled.add(reporter)
            heappush(self._schedule, (time.monotonic() + seconds, next(self._numbers), reporter))
            self._wake()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="runs of TrainJobs", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while (step := self._take_next()) is not None:
            try:
                step()
            except Exception:  # noqa: BLE001 -- the thread sends for all TrainJobs of the process
                _log.exception("The run of a TrainJob is completed later")

    def _take_next(self) -> Callable[[], None] | None:
        """Wait for what is due next, and return what sends it; None when there is nothing left to wait for."""
        with self._changed:
            while not self._bindings:
                if not self._schedule:
                    self._thread = None  # Under the lock: whatever comes next starts another thread.
                    return None
                pause = self._schedule[0][0] - time.monotonic()
                if pause <= 0:
                    reporter = heappop(self._schedule)[2]
                    self._scheduled.discard(reporter)
                    return lambda: self._report(reporter)
                self._changed.wait(pause)
            uid, binding = self._bindings.popleft()
            return lambda: self._bind(uid, binding)

    def _bind(self, uid: str, binding: Callable[[], None]) -> None:
        try:
            binding()
        finally:
            with self._changed:
                self._unbound.remove(uid)
                self._changed.notify_all()

    def _report(self, reporter: RunReporter) -> None:
        with self._changed:
            points = self._points.pop(reporter, [])
            self._size -= len(points)
        is_sent = False
        try:
            is_sent = self._send(reporter, points)
        finally:  # Also after an unexpected error: the next report may succeed.
            with self._changed:
                if not is_sent and points:
                    self._append(reporter, points)
                if reporter.is_watching or reporter in self._points:
                    self._plan(reporter, self._get_interval())

    def _send(self, reporter: RunReporter, points: Sequence[Point]) -> bool:
        """Return whether the points are dealt with: stored, or of a job or run that takes none."""
        if not points and not reporter.is_watching:
            return True
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


@cache
def get_run_sender() -> RunSender:
    """Return the sender of this process."""
    return RunSender()


def _flush() -> None:
    get_run_sender().flush(_EXIT_SECONDS)


atexit.register(_flush)
if hasattr(os, "register_at_fork"):
    # A child process has no threads of its parent.
    os.register_at_fork(after_in_child=get_run_sender.cache_clear)
