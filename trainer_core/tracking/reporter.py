"""Reports a TrainJob to its run: progress as metrics while it runs, and how it ended.

A point is sent with the time at which the training reported it, so that any number of processes can send it: the
server stores it once. What a process could not send, the next one that waits for the job reads from the log again.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainer_core.backends.base import Backend
from trainer_core.errors import JobNotFoundError, TrackingError, TrainerError
from trainer_core.jobs import CREATED, SUSPENDED, Category, Diagnosis, Outcome, TrainJobRef
from trainer_core.logs import LogChunk
from trainer_core.node.progress import parse_progress, parse_report_time
from trainer_core.request import TrainJobRequest
from trainer_core.resource_use import parse_resource_report
from trainer_core.tracking import tags
from trainer_core.tracking.mlflow_api import MAX_BATCH, MlflowApi, MlflowRun
from trainer_core.tracking.server import MlflowServer
from trainer_core.tracking.submission import choose_server, create_late_run, get_api

__all__ = [
    "EndedRun",
    "Point",
    "RunReporter",
    "build_system_metrics",
    "end_abandoned_run",
    "end_abandoned_runs",
    "find_abandoned_outcome",
]

_log = logging.getLogger(__name__)

#: Seconds before the first report, so that a short wait costs nothing, and between two reports.
_FIRST_SECONDS = 1.0
_INTERVAL_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 60.0
_TIMEOUT = 5.0
#: Seconds after which the end of a job is no longer delayed by its run.
_FINISH_SECONDS = 10.0
#: Experiments in one search.
_MAX_EXPERIMENTS = 100
#: Prefix of metrics that the training logs itself under the same name.
_PREFIX = "progress/"
#: Name, value, milliseconds since 1970, and step of a point of a curve.
Point = tuple[str, float, int, int]


class RunReporter:
    """Reports one job to its run, in a thread that never delays the wait for the job.

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
        self._run: _Run | None = None
        self._cursor: Mapping[str, Any] = {}
        self._last_step = 0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Report the progress every few seconds, until `stop` or `finish`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._report_progress, name=f"run of {self._ref.name}", daemon=True)
            self._thread.start()

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

    def _report_progress(self) -> None:
        pause = _FIRST_SECONDS
        while not self._stop.wait(pause):
            try:
                run = self._find_run()
                if run is None:
                    return
                run.set_status(self.status)
                self._send_log(run, job_ended=False)
            except TrackingError as error:
                if not error.transient:
                    self._warn(str(error))
                    return
                pause = min(_MAX_PAUSE_SECONDS, max(_INTERVAL_SECONDS, pause * 2))
            except TrainerError:
                # The wait itself decides what an unreachable backend means.
                pause = _INTERVAL_SECONDS
            else:
                pause = _INTERVAL_SECONDS

    def _finish(self, outcome: Outcome, end: float) -> None:
        if self._thread is not None:
            self._thread.join()
        pause, reason = 0.1, "did not answer in time"
        while time.monotonic() < end:
            try:
                self._finish_once(outcome)
                return
            except TrainerError as error:
                reason = str(error)
                if isinstance(error, TrackingError) and not error.transient:
                    break
            time.sleep(pause)
            pause *= 2
        self._warn(reason)

    def _finish_once(self, outcome: Outcome) -> None:
        run = self._find_run()
        if run is not None:
            self.complete(outcome, run)

    def complete(self, outcome: Outcome, run: _Run) -> None:
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
            masked = outcome.diagnosis.model_copy(update={"reason": self._redact(outcome.diagnosis.reason)})
            outcome = outcome.model_copy(update={"diagnosis": masked})
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
        """Send points of the job's curves.

        Args:
            points: The points, from `build_points`.

        Raises:
            TrainerError: The server or the backend cannot be reached, or refuses.
        """
        run = self._find_run()
        if run is not None:
            run.send(points)

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

    def _find_run(self) -> _Run | None:
        """Return the run, created now if the server was away when the job was created; None if it is not tracked."""
        if self._run is not None:
            return self._run
        server, request = self.find_server(), self._request
        if server is None or request is None or request.tracking is None:
            return None
        api = get_api(server, _TIMEOUT)
        run_id = request.tracking.run_id or create_late_run(api, self._backend, request, self._ref)[1]
        run = _Run(api, run_id)
        run.load()
        # A request can have the files of a project.
        self._run, self._request = run, None
        return self._run

    def _send_log(self, run: _Run, job_ended: bool) -> None:
        """Send the points of the new lines of the log. The cursor advances when the server has stored them."""
        while True:
            chunk = self._backend.tail(self._ref, self._cursor, job_ended)
            run.send(self.build_points(chunk))
            self._cursor = chunk.cursor
            if not chunk.lines or chunk.complete or (self._stop.is_set() and not job_ended):
                return

    def _parse_line(self, step: str, line: str) -> Iterable[Point]:
        report = parse_progress(line)
        if not report:
            yield from build_system_metrics(step, line)
            return
        self._last_step = int(report.get("step", self._last_step))
        # Only a log of an earlier release has no times; then the step orders the points.
        timestamp = parse_report_time(line) or self._last_step
        for name, value in report.get("metrics", {}).items():
            yield name, value, timestamp, self._last_step

    def _warn(self, reason: str) -> None:
        _log.warning(
            "TrainJob %s: its run is not complete; the next wait for the job completes it: %s", self._ref.name, reason
        )


class _Run:
    """One run on the server, and what it is known to have."""

    def __init__(self, api: MlflowApi, run_id: str) -> None:
        self.api = api
        self.id = run_id
        self.tags: dict[str, str] = {}
        self._latest: dict[str, float] = {}
        self._curves: set[str] = set()
        self._status = "RUNNING"

    def load(self) -> None:
        run = self.api.get_run(self.id)
        if run.info.lifecycle_stage == "deleted":
            raise TrackingError(f"run {self.id} was deleted; it is left alone")
        self.tags, self._latest, self._status = run.tags, run.metrics, run.info.status
        try:
            self._curves = set(json.loads(self.tags.get(tags.CURVES, "[]")))
        except (TypeError, ValueError):  # A person changed the tag.
            self._curves = set()

    def set_status(self, status: str | None) -> None:
        """Set RUNNING or SCHEDULED while the job has not ended."""
        wanted = "SCHEDULED" if status in (CREATED, SUSPENDED) else "RUNNING"
        if status is not None and wanted != self._status:
            self.api.post("runs/update", run_id=self.id, status=wanted)
            self._status = wanted

    def send(self, points: Sequence[Point]) -> None:
        if not points:
            return
        names = {name: self._choose_name(name) for name, *_ in points}
        known = len(self._curves)
        self._curves.update(name for name, chosen in names.items() if name == chosen)
        if len(self._curves) > known:
            # Before the points: the next process that reports must not take them for those of the training.
            self.api.log_batch(self.id, tags={tags.CURVES: json.dumps(sorted(self._curves))})
        self.api.log_batch(
            self.id,
            [
                {"key": names[name], "value": value, "timestamp": timestamp, "step": step}
                for name, value, timestamp, step in points
            ],
        )
        self._latest.update({names[name]: value for name, value, *_ in points})

    def end(self, outcome: Outcome, step: int) -> None:
        """Send the final metrics, tags and status, unless the training itself has logged the same values."""
        finished = _to_milliseconds(outcome.finished_at)
        final = {
            self._choose_name(name): value
            for name, value in outcome.metrics.items()
            if not (name in self._latest and name not in self._curves)
        }
        metrics = [
            {"key": name, "value": value, "timestamp": finished, "step": step}
            for name, value in final.items()
            if self._latest.get(name) != value
        ]
        for start in range(0, len(metrics), MAX_BATCH):
            self.api.log_batch(self.id, metrics[start : start + MAX_BATCH])
        self.api.post("runs/update", run_id=self.id, status=tags.get_run_status(outcome), end_time=finished)
        self.api.log_batch(self.id, tags=tags.build_outcome_tags(outcome))

    def _choose_name(self, name: str) -> str:
        is_foreign = name in self._latest and name not in self._curves
        return f"{_PREFIX}{name}" if is_foreign else name


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


@dataclass(frozen=True)
class EndedRun:
    """A run that was ended because no process waited for its job.

    Attributes:
        job: Name of the TrainJob.
        status: FINISHED, FAILED or KILLED.
        url: Address of the run in MLflow's UI.
    """

    job: str
    status: str
    url: str


def end_abandoned_runs(backend: Backend, server: MlflowServer, redact: Callable[[str], str] = str) -> list[EndedRun]:
    """End all runs whose jobs have ended, or are gone, while no process waited for them; with what their logs have.

    A run stays as it is if its job is active, or lives where `backend` cannot see it.

    Args:
        backend: Backend of the jobs. Runs of other backends are left alone.
        server: The server.
        redact: Masks secrets in the diagnosis. Default: the text unchanged.

    Raises:
        TrackingError: The server cannot be reached, or refuses.
    """
    api = get_api(server, _TIMEOUT)
    ended = []
    for run in _list_active_runs(api, backend.name):
        outcome = find_abandoned_outcome(backend, run.tags)
        if outcome is None:
            continue
        try:
            RunReporter(backend, outcome.job, server, redact).complete(outcome, _Run(api, run.id))
        except TrackingError as error:
            if error.transient:
                raise
            _log.warning("TrainJob %s: its run cannot be ended: %s", outcome.job.name, error)
        else:
            url = server.get_run_url(run.info.experiment_id, run.id)
            ended.append(EndedRun(outcome.job.name, tags.get_run_status(outcome), url))
    return ended


def find_abandoned_outcome(backend: Backend, run_tags: Mapping[str, str]) -> Outcome | None:
    """Return the outcome of a run's job that has ended or is gone; None if it is active, or cannot be seen from here.

    Args:
        backend: Backend of the job.
        run_tags: Tags of the run.
    """
    name, place = run_tags[tags.NAME], run_tags.get(tags.PLACE)
    ref = TrainJobRef(backend.name, run_tags.get(tags.NAMESPACE, ""), name, run_tags[tags.UID], place)
    try:
        return backend.observe(ref).outcome
    except JobNotFoundError:
        # Another cluster or machine, or a release that recorded no place, may have the job.
        if place is None or place != backend.get_place(ref):
            return None
        diagnosis = Diagnosis(category=Category.DELETED, reason=f"TrainJob {name!r} was deleted")
        return Outcome(ref=ref.to_dict(), status="Failed", diagnosis=diagnosis)
    except TrainerError:
        return None


def end_abandoned_run(backend: Backend, api: MlflowApi, run: MlflowRun) -> None:
    """End a run whose job has ended, or is gone, without reading its log.

    Args:
        backend: Backend of the job.
        api: API of the server.
        run: The run, which is bound to a job.
    """
    outcome = find_abandoned_outcome(backend, run.tags)
    if outcome is not None:
        loaded = _Run(api, run.id)
        loaded.load()
        loaded.end(outcome, 0)


def _list_active_runs(api: MlflowApi, backend: str) -> list[MlflowRun]:
    """Return the runs of all experiments that have a job of a backend and have not ended."""
    experiments = api.list_experiment_ids()
    runs = [
        run
        for start in range(0, len(experiments), _MAX_EXPERIMENTS)
        for status in ("RUNNING", "SCHEDULED")
        for run in api.search_runs(
            experiments[start : start + _MAX_EXPERIMENTS],
            f"attributes.status = '{status}' and tags.`{tags.BACKEND}` = '{backend}'",
        )
    ]
    # A run without a job belongs to a submit: one that runs now, or a killed one, which the next submit repeats.
    return [run for run in runs if run.tags.get(tags.UID)]


def _to_milliseconds(timestamp: str | None) -> int:
    if timestamp is None:
        return int(time.time() * 1000)
    return int(datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp() * 1000)
