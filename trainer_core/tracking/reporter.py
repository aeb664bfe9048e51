"""Reports a TrainJob to its run: progress as metrics while it runs, and how it ended.

A point is sent with the time at which the training reported it, so that any number of processes can send it: the
server stores it once. What a process could not send, the next one that waits for the job reads from the log again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from trainer_core.backends.base import Backend
from trainer_core.errors import JobNotFoundError, TrackingError, TrainerError
from trainer_core.jobs import Outcome, TrainJobRef
from trainer_core.logs import LogChunk, parse_timed_progress
from trainer_core.request import TrainJobRequest
from trainer_core.resource_use import parse_resource_report
from trainer_core.tracking import tags
from trainer_core.tracking.binding import bind_run
from trainer_core.tracking.connections import get_report_api
from trainer_core.tracking.run_sender import get_run_sender
from trainer_core.tracking.run_writer import Point, RunWriter
from trainer_core.tracking.server import MlflowServer
from trainer_core.tracking.submission import choose_server, create_late_run

__all__ = ["RunReporter", "build_system_metrics"]

_log = logging.getLogger(__name__)

#: Seconds after which the end of a job is no longer delayed by its run.
_FINISH_SECONDS = 10.0


class RunReporter:
    """Reports one job to its run. Never delays the wait for the job: the thread of `RunSender` reports.

    Args:
        backend: Backend of the job.
        ref: The job.
        configured: Server of an Airflow connection. None for the environment of this process.
        redact: Masks secrets in the diagnosis. Default: the text unchanged.

    Attributes:
        status: Last observed status of the job. The waiting process sets it.
        has_given_up: Whether no further points are sent before the job ends.
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
        self._backend = backend
        self._ref = ref
        self._configured = configured
        self._redact = redact
        self._request: TrainJobRequest | None = None
        self._server: MlflowServer | None = None
        self._run: RunWriter | None = None
        self._cursor: Mapping[str, Any] = {}
        self._last_step = 0
        self._is_started = False
        self._stop = threading.Event()
        #: Held while a report is sent.
        self._lock = threading.Lock()

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

    def finish(self, outcome: Outcome) -> None:
        """Report everything that is left, and how the job ended. Logs a warning if the server does not answer in time.

        Args:
            outcome: Outcome of the job.
        """
        self._stop.set()
        end = time.monotonic() + _FINISH_SECONDS
        thread = threading.Thread(target=self._finish, args=(outcome, end), daemon=True)
        thread.start()
        thread.join(_FINISH_SECONDS)
        if thread.is_alive():
            self._warn("did not answer in time")

    def _finish(self, outcome: Outcome, end: float) -> None:
        get_run_sender().flush(_FINISH_SECONDS / 2, self._ref.uid)
        pause, reason = 0.1, "did not answer in time"
        while time.monotonic() < end:
            try:
                with self._lock:
                    self._finish_once(outcome)
                return
            except TrainerError as error:
                reason = str(error)
                if isinstance(error, TrackingError) and not error.transient:
                    break
            except Exception as error:  # noqa: BLE001 -- boundary of the thread: `finish` warns and does not raise
                reason = f"{type(error).__name__}: {error}"
                break
            time.sleep(pause)
            pause *= 2
        self._warn(reason)

    def _finish_once(self, outcome: Outcome) -> None:
        run = self._find_run()
        if run is not None:
            self.complete(outcome, run)

    def complete(self, outcome: Outcome, run: RunWriter) -> None:
        """Report everything that is left, and how the job ended, unless another process has done so.

        Args:
            outcome: Outcome of the job.
            run: Its run.

        Raises:
            TrackingError: The server cannot be reached, or refuses.
        """
        run.load()
        if run.tags.get(tags.REPORTED) == self._ref.uid:
            return
        try:
            self._send_log(run, job_ended=True)
        except TrackingError:
            raise
        except JobNotFoundError:
            pass  # Its log is gone with it.
        except TrainerError as error:
            _log.warning("TrainJob %s: its log cannot be read, so its run may lack points: %s", self._ref.name, error)
        if outcome.diagnosis is not None:
            masked = replace(outcome.diagnosis, reason=self._redact(outcome.diagnosis.reason))
            outcome = replace(outcome, diagnosis=masked)
        run.end(outcome, self._last_step)

    def find_server(self) -> MlflowServer | None:
        """Return the server of the job's run; None if the job is not tracked, or was deleted.

        Raises:
            BackendUnavailableError: The backend cannot be reached.
        """
        if self._server is None:
            with suppress(JobNotFoundError):
                self._request = self._backend.get_request(self._ref)
            tracking = self._request.tracking if self._request else None
            if tracking is not None and tracking.kind == "mlflow":
                self._server = choose_server(tracking.uri, self._configured)
        return self._server

    def send(self, points: Sequence[Point]) -> None:
        """Send points of the job's curves; while `is_watching`, also those of its log, and its status.

        Args:
            points: The points, from `build_points`.

        Raises:
            TrainerError: The server or the backend cannot be reached, or refuses.
        """
        with self._lock:
            run = self._find_run()
            if run is None:
                return
            run.send(points)
            if self.is_watching:
                run.set_status(self.status)
                self._send_log(run, job_ended=False)

    def build_points(self, chunk: LogChunk) -> list[Point]:
        """Return the points that are in lines of the job's log.

        Args:
            chunk: The lines; those after the previous chunk.
        """
        # The progress of a fetch is no metric of the training.
        lines = [(step, line) for step, line in chunk.lines if not step.endswith("-initializer")]
        return [point for step, line in lines for point in self._parse_line(step, line)]

    def give_up(self, reason: TrackingError | None = None) -> None:
        """Send no further points. The end of the job is reported with all of them.

        Args:
            reason: Why, for a warning. None (the default): the job is not tracked.
        """
        self.has_given_up = True
        if reason is not None:
            self._warn(str(reason))

    def _find_run(self) -> RunWriter | None:
        """Return the run, created now if the server was away when the job was created; None if it is not tracked."""
        if self._run is not None:
            return self._run
        server, request = self.find_server(), self._request
        if server is None or request is None or request.tracking is None:
            return None
        api = get_report_api(server)
        run_id = request.tracking.run_id or create_late_run(api, self._backend, request, self._ref)[1]
        run = RunWriter(api, run_id)
        run.load()
        if tags.UID not in run.tags:
            bind_run(api, self._backend, self._ref, request)
        # A request can have the files of a project.
        self._run, self._request = run, None
        return self._run

    def _send_log(self, run: RunWriter, job_ended: bool) -> None:
        """Send the points of the new lines of the log. The cursor advances when the server has stored them."""
        while True:
            chunk = self._backend.tail(self._ref, self._cursor, job_ended)
            run.send(self.build_points(chunk))
            self._cursor = chunk.cursor
            if not chunk.lines or chunk.complete or (self._stop.is_set() and not job_ended):
                return

    def _parse_line(self, step: str, line: str) -> Iterable[Point]:
        report, printed = parse_timed_progress(line)
        if not report:
            yield from build_system_metrics(step, line)
            return
        self._last_step = int(report.get("step", self._last_step))
        # Only a log of an earlier release has no times; then the step orders the points.
        timestamp = printed or self._last_step
        for name, value in report.get("metrics", {}).items():
            yield name, value, timestamp, self._last_step

    def _warn(self, reason: str) -> None:
        _log.warning(
            "TrainJob %s: its run is not complete; the next wait for the job completes it: %s", self._ref.name, reason
        )


def build_system_metrics(step: str, line: str) -> Iterator[Point]:
    """Yield the use of resources in a line of a log as MLflow's system metrics: name, value, time in ms, and step 0.

    The names and units are those of ``mlflow.enable_system_metrics_logging``. Nodes after the first one have their
    name as MLflow's node id: ``system/node-1/cpu_utilization_percentage``.

    Args:
        step: Step of the job that wrote the line.
        line: The line.
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
