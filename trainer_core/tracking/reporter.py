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
from datetime import datetime
from typing import Any

from trainer_core.backends.base import Backend
from trainer_core.errors import JobNotFoundError, TrackingError, TrainerError
from trainer_core.jobs import CREATED, SUSPENDED, Category, Diagnosis, Outcome, TrainJobRef
from trainer_core.node.progress import parse_progress, parse_report_time
from trainer_core.resource_use import parse_resource_report
from trainer_core.tracking import tags
from trainer_core.tracking.mlflow_api import MAX_BATCH, MlflowApi
from trainer_core.tracking.server import MlflowServer
from trainer_core.tracking.submission import choose_server, create_late_run, get_api

__all__ = ["RunReporter", "build_system_metrics", "end_abandoned_run"]

_log = logging.getLogger(__name__)

#: Seconds before the first report, so that a short wait costs nothing, and between two reports.
_FIRST_SECONDS = 1.0
_INTERVAL_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 60.0
_TIMEOUT = 5.0
#: Seconds after which the end of a job is no longer delayed by its run.
_FINISH_SECONDS = 10.0
#: Prefix of metrics that the training logs itself under the same name.
_PREFIX = "progress/"


class RunReporter:
    """Reports one job to its run, in a thread that never delays the wait for the job.

    Args:
        backend: Backend of the job.
        ref: The job.
        configured: Server of an Airflow connection. None for the environment of this process.
        redact: Masks secrets in the diagnosis. Default: the text unchanged.

    Attributes:
        status: Last observed status of the job. The waiting process sets it.
    """

    def __init__(
        self,
        backend: Backend,
        ref: TrainJobRef,
        configured: MlflowServer | None,
        redact: Callable[[str], str] = str,
    ) -> None:
        self.status: str | None = None
        self._backend = backend
        self._ref = ref
        self._configured = configured
        self._redact = redact
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
        if run is None:
            return
        run.load()
        if run.tags.get(tags.REPORTED) == self._ref.uid:
            return
        try:
            self._send_log(run, job_ended=True)
        except TrackingError:
            raise
        except TrainerError as error:
            _log.warning("TrainJob %s: its log cannot be read, so its run may lack points: %s", self._ref.name, error)
        if outcome.diagnosis is not None:
            masked = outcome.diagnosis.model_copy(update={"reason": self._redact(outcome.diagnosis.reason)})
            outcome = outcome.model_copy(update={"diagnosis": masked})
        run.end(outcome, self._last_step)

    def _find_run(self) -> _Run | None:
        """Return the run, created now if the server was away when the job was created; None if it is not tracked."""
        if self._run is not None:
            return self._run
        try:
            request = self._backend.get_request(self._ref)
        except JobNotFoundError:
            return None
        tracking = request.tracking
        if tracking is None or tracking.kind != "mlflow":
            return None
        server = choose_server(tracking.uri, self._configured)
        if server is None:
            return None
        api = get_api(server, _TIMEOUT)
        run_id = tracking.run_id or create_late_run(api, request, self._ref)[1]
        self._run = _Run(api, run_id)
        self._run.load()
        return self._run

    def _send_log(self, run: _Run, job_ended: bool) -> None:
        """Send the points of the new lines of the log. The cursor advances when the server has stored them."""
        while True:
            chunk = self._backend.tail(self._ref, self._cursor, job_ended)
            # The progress of a fetch is no metric of the training.
            lines = [(step, line) for step, line in chunk.lines if not step.endswith("-initializer")]
            points = [point for step, line in lines for point in self._build_points(step, line)]
            run.send(points)
            self._cursor = chunk.cursor
            if not chunk.lines or chunk.complete or (self._stop.is_set() and not job_ended):
                return

    def _build_points(self, step: str, line: str) -> Iterable[tuple[str, float, int, int]]:
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

    def send(self, points: Sequence[tuple[str, float, int, int]]) -> None:
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


def build_system_metrics(step: str, line: str) -> Iterator[tuple[str, float, int, int]]:
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


def end_abandoned_run(backend: Backend, api: MlflowApi, run_id: str, run_tags: Mapping[str, str]) -> bool:
    """End a run whose job has ended, or is gone, while no process waited for it; return whether it is ended now.

    Args:
        backend: Backend of the job.
        api: API of the server.
        run_id: The run.
        run_tags: Its tags.
    """
    name, uid = run_tags[tags.NAME], run_tags[tags.UID]
    try:
        ref = backend.get_ref(name)
        if ref.uid != uid:
            raise JobNotFoundError(f"TrainJob {name!r} was deleted")
        outcome = backend.observe(ref).outcome
    except JobNotFoundError:
        ref = TrainJobRef(backend.name, run_tags.get(tags.NAMESPACE, ""), name, uid)
        diagnosis = Diagnosis(category=Category.DELETED, reason=f"TrainJob {name!r} was deleted")
        outcome = Outcome(ref=ref.to_dict(), status="Failed", diagnosis=diagnosis)
    except TrainerError:
        return False
    if outcome is None:
        return False
    run = _Run(api, run_id)
    run.load()
    run.end(outcome, 0)
    return True


def _to_milliseconds(timestamp: str | None) -> int:
    if timestamp is None:
        return int(time.time() * 1000)
    return int(datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp() * 1000)
