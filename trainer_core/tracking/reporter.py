"""Reports TrainJobs to their runs: progress as metrics while they run, and how they ended.

A point is sent with the time at which the training reported it, so that any number of processes can send it: the
server stores it once. What a process could not send, the next one that waits for the job sends, from the position in
the log that the run has.

One thread of the process sends for all TrainJobs, so that no submit and no wait is delayed. It takes what is due next:

1. `RunSender.bind`: the parameters and tags of the run of a job that was just submitted.
2. `RunReporter.start`, or `queue` where an orchestrator reads the log anyway: the points of the log, every few seconds.
3. `RunReporter.finish`, when the job has ended: what is left of the log, the final metrics, the status.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from trainer_core.backends.base import Backend
from trainer_core.base.errors import JobNotFoundError, TrackingError, TrainerError
from trainer_core.base.secrets import is_secret_name
from trainer_core.model.jobs import COMPLETE, FAILED, Outcome, TrainJobRef
from trainer_core.model.logs import LogChunk, parse_timed_progress
from trainer_core.model.request import TrainJobRequest
from trainer_core.model.resource_use import parse_resource_report
from trainer_core.tracking import tags
from trainer_core.tracking.http_connection import UnreachableError
from trainer_core.tracking.mlflow_api import MAX_BATCH, MlflowRun, SuppressCodes, get_report_api
from trainer_core.tracking.run import (
    DELETED,
    Point,
    RunWriter,
    bind_run,
    create_late_run,
    find_outcome,
    list_unreported_runs,
)
from trainer_core.tracking.server import MlflowServer, choose_server

_log = logging.getLogger(__name__)

#: Seconds without progress after which the end of a job is no longer delayed by its run.
_FINISH_SECONDS = 10.0
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
#: Range of steps in MLflow.
_MAX_STEP = 2**63 - 1
#: Shorter values of secret arguments are not masked in diagnoses: they are part of other words.
_MIN_SECRET = 4
#: Names of the jobs of which a warning was logged, and that their runs are complete.
_warned: set[str] = set()
_completed: set[str] = set()


def warn_incomplete(backend: Backend, job: str, reason: TrainerError | str, run_id: str | None = None) -> None:
    """Log once for each job why its run is not complete, and what completes it."""
    is_refused = isinstance(reason, TrackingError) and not reason.transient
    command = "trainjob" if backend.name == "local" else f"trainjob --backend {backend.name}"
    hint = f"; `{command} wait {job}` or `{command} reap` completes it{' after that' if is_refused else ''}"
    if isinstance(reason, TrackingError) and reason.code == DELETED:
        hint = ""
    level = logging.DEBUG if job in _warned | _completed else logging.WARNING
    _warned.add(job)
    _log.log(level, "TrainJob %s: its run%s is not complete: %s%s", job, f" {run_id}" if run_id else "", reason, hint)


def forget_warnings(job: str) -> None:
    """Log warnings for a name again, as another job gets it."""
    _warned.discard(job)
    _completed.discard(job)


def _note_complete(job: str, run_id: str) -> None:
    """Log that the run of a job is complete, if a warning said that it is not."""
    if job in _warned:
        _log.warning("TrainJob %s: its run %s is complete now", job, run_id)
    _warned.discard(job)
    _completed.add(job)


class RunReporter:
    """Reports one job to its run. Never delays the wait for the job: the thread of `RunSender` reports.

    Attributes:
        status: Last observed status of the job. The waiting process sets it.
        has_given_up: Whether no further points are sent before the job ends.
        problem: Why its run is not complete; None if nothing was wrong.
    """

    def __init__(
        self,
        backend: Backend,
        ref: TrainJobRef,
        configured: MlflowServer | None,
        redact: Callable[[str], str] = str,
    ) -> None:
        self.status: str | None = None
        self.has_given_up = False
        self.problem: TrainerError | str | None = None
        self._backend = backend
        self._ref = ref
        self._configured = configured
        self._redact = redact
        self._request: TrainJobRequest | None = None
        self._server: MlflowServer | None = None
        self._run: RunWriter | None = None
        self._secrets: list[str] = []
        self._cursor: Mapping[str, Any] | None = None
        self._step = 0
        #: Begin and end of the part of the log whose points were queued, and the step at its end.
        self._queued: tuple[Mapping[str, Any], Mapping[str, Any], int] | None = None
        #: What was queued when the points of the current report were taken from the queue.
        self._taken: tuple[Mapping[str, Any], Mapping[str, Any], int] | None = None
        #: Whether points of that part were left out.
        self._has_gap = False
        self._is_connected = False
        self._has_odd_step = False
        self._is_started = False
        self._stop = threading.Event()
        #: Held while a report is sent.
        self._lock = threading.Lock()

    @property
    def job(self) -> str:
        return self._ref.name

    @property
    def has_held_points(self) -> bool:
        """Whether points of an earlier report wait for the next one."""
        return self._run is not None and self._run.has_held_points

    @property
    def is_watching(self) -> bool:
        """Whether the log of the job is to be read and reported every few seconds."""
        return self._is_started and not self._stop.is_set() and not self.has_given_up

    def start(self) -> None:
        """Report the progress every few seconds, until `stop` or `finish`."""
        if not self._is_started:
            self._is_started = True
            get_run_sender().watch(self)

    def stop(self) -> None:
        """Stop reporting. The run stays as it is: the job may still be running."""
        self._stop.set()

    def finish(self, outcome: Outcome | None) -> None:
        """Report everything that is left, and how the job ended; None if it is about to be deleted.

        Takes as long as the server stores something. Logs a warning if it cannot be reached, or stops answering.
        """
        self._stop.set()
        thread = threading.Thread(target=self._finish, args=(outcome,), daemon=True)
        thread.start()
        answers = -1
        while thread.is_alive() and answers != self._answers:
            answers = self._answers
            thread.join(_FINISH_SECONDS)
        if thread.is_alive():
            self.warn(TrackingError("it takes too long", transient=True))

    @property
    def _answers(self) -> int:
        return get_report_api(self._server).answers if self._server is not None else 0

    def _finish(self, outcome: Outcome | None) -> None:
        get_run_sender().flush(_FINISH_SECONDS / 2, self._ref.uid)
        pause, writes, end = 0.1, 0, time.monotonic() + _FINISH_SECONDS
        while True:
            try:
                with self._lock:
                    run = self.find_run()
                    if run is not None and outcome is not None:
                        self.complete(outcome, run)
                    elif run is not None:
                        run.load()
                        self._send_log(run, job_ended=True)
                return
            except TrainerError as error:
                reason: TrainerError | str = error
                if isinstance(error, UnreachableError) or (isinstance(error, TrackingError) and not error.transient):
                    break
            except Exception as error:  # noqa: BLE001 -- boundary of the thread: `finish` warns and does not raise
                reason = f"{type(error).__name__}: {error}"
                break
            if self._run is not None and self._run.writes > writes:
                pause, writes, end = 0.1, self._run.writes, time.monotonic() + _FINISH_SECONDS
            if time.monotonic() + pause > end:
                break
            time.sleep(pause)
            pause *= 2
        self.warn(reason)

    def complete(self, outcome: Outcome, run: RunWriter) -> None:
        """Report how the job ended and everything that is left, unless another process has done so."""
        self.end(outcome, run)
        if run.tags.get(tags.REPORTED) == self._ref.uid:
            _note_complete(self.job, run.id)
            return
        try:
            self._send_log(run, job_ended=True)
        except TrackingError:
            raise
        except JobNotFoundError:
            pass  # Its log is gone with it.
        except TrainerError as error:
            _log.warning("TrainJob %s: its log cannot be read, so its run may lack points: %s", self._ref.name, error)
        run.complete(outcome, self._step)
        _note_complete(self.job, run.id)

    def end(self, outcome: Outcome, run: RunWriter) -> None:
        """Report how the job ended, unless another process has done so."""
        run.load()
        if run.tags.get(tags.REPORTED) == self._ref.uid:
            return
        if outcome.diagnosis is not None:
            with suppress(TrainerError):
                self.find_server()
            reason = self._redact(outcome.diagnosis.reason)
            for secret in self._secrets:
                reason = reason.replace(secret, "***")
            outcome = replace(outcome, diagnosis=replace(outcome.diagnosis, reason=reason))
        run.end(outcome)

    def find_server(self) -> MlflowServer | None:
        """Return the server of the job's run; None if the job is not tracked, or was deleted."""
        if self._server is None:
            with suppress(JobNotFoundError):
                self._request = self._backend.get_request(self._ref)
            tracking = self._request.policy.tracking if self._request else None
            if tracking is not None and tracking.kind == "mlflow":
                self._server = choose_server(tracking.uri, self._configured)
            values = self._request.get_parameters() if self._request else {}
            secrets = [value for name, value in values.items() if is_secret_name(name) and len(value) >= _MIN_SECRET]
            self._secrets = sorted(secrets, key=len, reverse=True)
        return self._server

    def queue(self, begin: Mapping[str, Any], chunk: LogChunk) -> None:
        """Queue the points of a part of the log that the caller reads, from its beginning or from a cursor."""
        get_run_sender().put(self, self.build_points(chunk))
        # After the points: a report that takes them before this line knows less than it sends.
        if self._queued is not None and self._queued[1] != begin:
            self.leave_gap()
        self._queued = (self._queued[0] if self._queued else begin, chunk.cursor, self._step)

    def leave_gap(self) -> None:
        """Note that points of the log are not in the queue; the next report reads the log."""
        self._has_gap = True

    def begin_report(self) -> None:
        """Note which part of the log is queued. Call it before the points are taken from the queue."""
        self._taken = self._queued

    def send(self, points: Sequence[Point]) -> None:
        """Send points of the job's curves; while `is_watching`, also those of its log, and its status."""
        with self._lock:
            run = self.find_run()
            if run is None:
                return
            run.begin_report()
            if self._taken is None:
                run.send(points)
            else:
                self._send_taken(run, points, *self._taken)
            if self.is_watching:
                run.set_status(self.status)
                self._send_log(run, job_ended=False)

    def build_points(self, chunk: LogChunk) -> list[Point]:
        """Return the points that are in lines of the job's log."""
        # The progress of a fetch is no metric of the training.
        lines = [(step, line) for step, line in chunk.lines if not step.endswith("-initializer")]
        return [point for step, line in lines for point in self._parse_line(step, line)]

    def give_up(self, reason: TrackingError | None = None) -> None:
        """Send no further points. The end of the job is reported with all of them."""
        self.has_given_up = True
        if reason is not None:
            self.warn(reason)

    @property
    def lacks_run(self) -> bool:
        """Whether the job is tracked, and its run was not created with it."""
        self.find_server()
        tracking = self._request.policy.tracking if self._request else None
        return tracking is not None and tracking.run_id is None

    def find_run(self) -> RunWriter | None:
        """Return the run, created now if the server was away when the job was created; None if it is not tracked."""
        if self._run is not None:
            return self._run
        server, request = self.find_server(), self._request
        if server is None or request is None or request.policy.tracking is None:
            return None
        api = get_report_api(server)
        run_id = request.policy.tracking.run_id or create_late_run(api, self._backend, request, self._ref)
        run = RunWriter(api, run_id, self._ref.name)
        run.load()
        if tags.UID not in run.tags:
            bind(self._backend, self._ref, request, server, self._redact)
        # A request can have the files of a project.
        self._run, self._request = run, None
        return self._run

    def _send_taken(
        self, run: RunWriter, points: Sequence[Point], begin: Mapping[str, Any], end: Mapping[str, Any], step: int
    ) -> None:
        """Send points from the queue, and with them the position in the log up to which the run has all points.

        If the run does not have those before the points, such as after a restart of this process, the log is read once.
        """
        if self._cursor is None:
            self._cursor = run.cursor
        self._is_connected = self._is_connected or self._cursor == begin
        if self._is_connected and not self._has_gap:
            run.send(points, end, step)
        else:
            self._has_gap = False
            try:
                self._send_log(run, job_ended=False)
            except TrainerError as error:
                self._has_gap = True
                if isinstance(error, TrackingError):
                    raise
                run.send(points)  # The log cannot be read now.
                return
        self._cursor, self._is_connected = end, True

    def _send_log(self, run: RunWriter, job_ended: bool) -> None:
        """Send the points of the new lines of the log. The cursor advances when the server has stored them."""
        if self._cursor is None or self._cursor == run.cursor:  # Where any process has stopped.
            self._cursor, self._step = run.cursor, run.step
        points: list[Point] = []
        cursor = self._cursor
        while True:
            chunk = self._backend.tail(self._ref, cursor, job_ended)
            points += self.build_points(chunk)
            cursor = chunk.cursor
            is_last = not chunk.lines or chunk.complete or (self._stop.is_set() and not job_ended)
            if is_last or len(points) >= MAX_BATCH:
                run.send(points, cursor, self._step, job_ended, is_whole=not chunk.lines or chunk.complete)
                self._cursor, points = cursor, []
            if is_last:
                return

    def _parse_line(self, step: str, line: str) -> Iterable[Point]:
        report, printed = parse_timed_progress(line)
        if not report:
            yield from build_system_metrics(step, line)
            return
        given = report.get("step", self._step)
        self._step = max(-_MAX_STEP, min(int(given), _MAX_STEP))
        if self._step != given and not self._has_odd_step:
            self._has_odd_step = True
            _log.warning("TrainJob %s: MLflow has whole steps below 2**63; %s becomes %d", self.job, given, self._step)
        # A line that another program printed may have no time; then the step orders the points.
        timestamp = printed or self._step
        for name, value in report.get("metrics", {}).items():
            yield name, value, timestamp, self._step

    def warn(self, reason: TrainerError | str) -> None:
        """Log once for the job why its run is not complete."""
        self.problem = reason
        warn_incomplete(self._backend, self.job, reason, self._run.id if self._run else None)


def build_system_metrics(step: str, line: str) -> Iterator[Point]:
    """Yield the use of resources in a line of a log as MLflow's system metrics: name, value, time in ms, and step 0.

    The names and units are those of ``mlflow.enable_system_metrics_logging``. Nodes after the first one have their
    name as MLflow's node id: ``system/node-1/cpu_utilization_percentage``.
    """
    report = parse_resource_report(line)
    if report is None:
        return
    prefix = "system/" if step == "node-0" else f"system/{step}/"
    values = {"cpu_utilization_percentage": report["cpu"], **_describe_memory("system_memory_usage", report)}
    for gpu in report["gpus"]:
        name = f"gpu_{gpu['number']:.0f}"
        values |= {f"{name}_utilization_percentage": gpu["utilization"]} if "utilization" in gpu else {}
        values |= _describe_memory(f"{name}_memory_usage", gpu)
    for name, value in values.items():
        yield f"{prefix}{name}", round(value, 1), int(report["t"]), 0


def _describe_memory(name: str, report: Mapping[str, float]) -> dict[str, float]:
    used, limit = report.get("memory"), report.get("memory_limit")
    if used is None or not limit:
        return {}
    return {f"{name}_megabytes": used / 1e6, f"{name}_percentage": 100 * used / limit}


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
        """Queue the completion of the run of a submitted job. It comes before all reports."""
        with self._changed:
            self._bindings.append((uid, binding))
            self._unbound.append(uid)
            self._wake()

    def flush(self, timeout: float, uid: str | None = None) -> bool:
        """Wait until the runs of submitted jobs are completed; return whether they are."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._unbound if uid is None else uid not in self._unbound, timeout
            )

    def watch(self, reporter: RunReporter) -> None:
        """Report a job every few seconds, from its log, until its reporter is stopped."""
        with self._changed:
            self._plan(reporter, _FIRST_SECONDS)

    def put(self, reporter: RunReporter, points: Sequence[Point]) -> None:
        """Queue points of a job. Returns at once; drops them if the queue is full."""
        if not points or reporter.has_given_up:
            return
        with self._changed:
            self._append(reporter, points)
            if reporter in self._points:
                self._plan(reporter, self._get_interval())

    def _append(self, reporter: RunReporter, points: Sequence[Point]) -> None:
        is_full = self._size + len(points) > _MAX_POINTS
        if is_full and not self._is_full:
            _log.warning("curves in MLflow lag behind: more than %d points wait for the server", _MAX_POINTS)
        self._is_full = is_full
        if is_full:
            reporter.leave_gap()
        else:
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
        reporter.begin_report()
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
                if reporter.is_watching or reporter in self._points or (is_sent and reporter.has_held_points):
                    self._plan(reporter, self._get_interval())

    def _send(self, reporter: RunReporter, points: Sequence[Point]) -> bool:
        """Return whether the points are dealt with: stored, or of a job or run that takes none."""
        if not points and not reporter.is_watching and not reporter.has_held_points:
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
    return RunSender()


atexit.register(lambda: get_run_sender().flush(_EXIT_SECONDS))
if hasattr(os, "register_at_fork"):
    # A child process has no threads of its parent.
    os.register_at_fork(after_in_child=get_run_sender.cache_clear)


@dataclass(frozen=True)
class EndedRun:
    """A run that was ended because no process waited for its job."""

    job: str
    #: FINISHED, FAILED or KILLED.
    status: str
    #: Address of the run in MLflow's UI.
    url: str


def bind(
    backend: Backend,
    ref: TrainJobRef,
    request: TrainJobRequest,
    server: MlflowServer,
    redact: Callable[[str], str],
) -> None:
    """Complete the run of a TrainJob with its stored request, and end the runs of earlier attempts.

    The thread of `RunSender` sends what the logs of the earlier attempts have.
    """
    api = get_report_api(server)
    for run, outcome in bind_run(api, backend, ref, request):
        reporter, writer = RunReporter(backend, outcome.job, server, redact), RunWriter(api, run.id, outcome.job.name)
        reporter.end(outcome, writer)
        get_run_sender().bind(outcome.job.uid, partial(_complete, backend, reporter, outcome, writer))


def _complete(backend: Backend, reporter: RunReporter, outcome: Outcome, writer: RunWriter) -> None:
    try:
        reporter.complete(outcome, writer)
    except TrainerError as error:
        warn_incomplete(backend, reporter.job, error, writer.id)


def end_abandoned_runs(
    backend: Backend, server: MlflowServer, redact: Callable[[str], str] = str
) -> Iterator[EndedRun]:
    """End all runs whose jobs have ended, or are gone, while no process waited for them; with what their logs have.

    A run stays as it is if its job is active, or lives where `backend` cannot see it.
    """
    api = get_report_api(server)
    steps: list[tuple[str, Callable[[], EndedRun | None]]] = [
        (f"TrainJob {run.tags.get(tags.NAME)}: its run {run.id}", partial(_end_run, backend, server, redact, run))
        for run in list_unreported_runs(api, backend.name)
    ]
    steps += [
        (f"TrainJob {job.name}: its run", partial(_end_late_run, backend, server, redact, job.name))
        for job in backend.list_jobs()
        if job.status in (COMPLETE, FAILED)
    ]
    refused = []
    for what, end in steps:
        try:
            ended = end()
        except TrackingError as error:
            if error.transient:
                raise
            refused.append(f"{what} cannot be ended: {error}")
        else:
            if ended is not None:
                yield ended
    if refused:
        raise TrackingError("; ".join(refused))


def _end_run(backend: Backend, server: MlflowServer, redact: Callable[[str], str], run: MlflowRun) -> EndedRun | None:
    outcome = find_outcome(get_report_api(server), backend, run)
    if outcome is None:
        return None
    writer = RunWriter(get_report_api(server), run.id, outcome.job.name)
    return _end(RunReporter(backend, outcome.job, server, redact), writer, outcome, server)


def _end_late_run(backend: Backend, server: MlflowServer, redact: Callable[[str], str], job: str) -> EndedRun | None:
    """End the run of a job that was created while the server was away; create it if no process has done so."""
    try:
        ref = backend.get_ref(job)
        reporter = RunReporter(backend, ref, server, redact)
        if not reporter.lacks_run or reporter.find_server() != server:
            return None
        outcome = backend.observe(ref).outcome
    except TrainerError:  # It was deleted meanwhile, or cannot be read.
        return None
    writer = None
    with SuppressCodes(DELETED):  # A person deleted it.
        writer = reporter.find_run() if outcome is not None else None
    if outcome is None or writer is None or writer.tags.get(tags.REPORTED) == ref.uid:
        return None
    return _end(reporter, writer, outcome, server)


def _end(reporter: RunReporter, writer: RunWriter, outcome: Outcome, server: MlflowServer) -> EndedRun:
    reporter.complete(outcome, writer)
    status = writer.tags.get(tags.PENDING) or tags.get_run_status(outcome)
    return EndedRun(outcome.job.name, status, server.get_run_url(writer.experiment_id, writer.id))
