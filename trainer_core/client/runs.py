"""The MLflow runs of the TrainJobs of a client: created at the submit, updated by what waits, ended with the outcome.

The code that speaks to MLflow is loaded where a TrainJob is tracked, and nowhere else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any

from trainer_core.backends.base import Backend
from trainer_core.base.errors import BackendUnavailableError, TrainerError
from trainer_core.base.secrets import redact
from trainer_core.model.jobs import Outcome, TrainJobRef
from trainer_core.model.logs import LogChunk
from trainer_core.model.request import TrainJobRequest

if TYPE_CHECKING:
    from trainer_core.tracking.reporter import EndedRun, RunReporter
    from trainer_core.tracking.server import MlflowServer


@dataclass(frozen=True)
class TrackedRun:
    """The MLflow run of a TrainJob.

    Attributes:
        id: Id of the run.
        url: Address of the run in MLflow's UI.
    """

    id: str
    url: str


class JobRuns:
    """Creates, reads, updates and ends the runs of TrainJobs on one backend.

    Attributes:
        server: The server of jobs without the option `Tracking`. None: the one that ``MLFLOW_TRACKING_URI`` names.
        redact: Masks secrets in a diagnosis before it is sent to a run. Default: the text unchanged.
    """

    def __init__(
        self, backend: Backend, server: MlflowServer | None, get_request: Callable[[TrainJobRef], TrainJobRequest]
    ) -> None:
        self.server = server
        self.redact: Callable[[str], str] = str
        self._backend = backend
        #: Of the client: that of a KFP step waits for a cluster that is away.
        self._get_request = get_request
        #: Uid of the last job whose end a wait of this process has reported.
        self._reported_uid: str | None = None
        #: Whether the job of this uid has the option Tracking, for the last one that was asked about.
        self._tracked: dict[str, bool] = {}

    @property
    def tracks_all(self) -> bool:
        """Whether jobs without an option are tracked: on this server, or ``MLFLOW_TRACKING_URI``."""
        return self.server is not None or "MLFLOW_TRACKING_URI" in os.environ

    def is_tracked(self, ref: TrainJobRef) -> bool:
        """Return whether a job can have a run. False if it was deleted or cannot be read."""
        if self.tracks_all:
            return True
        try:
            if ref.uid not in self._tracked:
                self._tracked = {ref.uid: self._get_request(ref).policy.tracking is not None}
        except TrainerError:
            return False
        return self._tracked[ref.uid]

    def tracks_request(self, request: TrainJobRequest) -> bool:
        """Return whether the job of a request can have a run."""
        return self.tracks_all or request.policy.tracking is not None

    def submit(self, request: TrainJobRequest, before_create: Callable[[], None] | None) -> TrainJobRef:
        """Submit a request that can be tracked, with a run that is created before the job if the job will be."""
        from trainer_core.tracking.submission import prepare_submission

        submission = prepare_submission(request, self.server, self._backend, self.redact)
        if submission is None:
            return self._backend.submit(request, before_create=before_create)
        try:
            ref = self._backend.submit(submission.request, before_create=before_create, prepare=submission.create_run)
        except BackendUnavailableError:
            raise  # The job may exist. If it does not, the next submit of the same work deletes the run.
        except Exception:
            submission.discard()
            raise
        submission.bind(ref)
        return ref

    def get_run(self, ref: TrainJobRef) -> TrackedRun | None:
        """Return the run of a job; None if it is not tracked, or has no run yet."""
        tracking = self._get_request(ref).policy.tracking
        if tracking is None or not (tracking.run_id and tracking.experiment_id and tracking.uri):
            return None
        from trainer_core.tracking.server import choose_server

        server = choose_server(tracking.uri, self.server)
        if server is None:
            return None
        return TrackedRun(tracking.run_id, server.get_run_url(tracking.experiment_id, tracking.run_id))

    @contextmanager
    def report_progress(self, ref: TrainJobRef) -> Iterator[Callable[[str, Outcome | None], None]]:
        """Report to the run of a job during the block; yields what takes each observed status and the outcome."""
        reporters: list[RunReporter | None] = []

        def report(status: str, outcome: Outcome | None) -> None:
            if not reporters:  # After the first observation: before it, the backend may not answer for long.
                reporters.append(self.create_reporter(ref) if self.is_tracked(ref) else None)
            (reporter,) = reporters
            if reporter is None:
                return
            reporter.status = status
            if outcome is None:
                reporter.start()
            else:
                reporter.finish(outcome)
                self._reported_uid = ref.uid

        try:
            yield report
        finally:
            for reporter in filter(None, reporters):
                reporter.stop()

    def report_outcome(self, outcome: Outcome) -> None:
        """Report how a job ended to its run, with all metrics that have not been sent yet.

        A wait of the client has done so already, and this returns at once. Never fails; takes as long as the server
        stores something, and a second for a server that cannot be connected to. What the server did not take, the next
        process that waits for the job sends.
        """
        if outcome.job.uid != self._reported_uid:
            self.create_reporter(outcome.job).finish(outcome)

    @contextmanager
    def report_deletion(self, ref: TrainJobRef) -> Iterator[None]:
        """Report to the run of a job what it has before the block deletes it, and afterwards that it was deleted."""
        if ref.uid == self._reported_uid or not self.is_tracked(ref):
            yield
            return
        from trainer_core.tracking.run import build_deleted_outcome
        from trainer_core.tracking.submission import finish_unless_silent

        reporter, outcome = self.create_reporter(ref), None
        try:
            outcome = self._backend.observe(ref).outcome
            finish_unless_silent(reporter, outcome)
        except TrainerError:  # Its deletion says what is wrong, if anything is.
            pass
        yield
        if outcome is None:
            finish_unless_silent(reporter, build_deleted_outcome(ref))

    def get_progress_sender(self, ref: TrainJobRef) -> Callable[[Mapping[str, Any], LogChunk], None]:
        """Return a function that sends the progress in a job's log to its run, if it has one.

        For an orchestrator that reads the log anyway and must not wait for the server: call it with each chunk of
        `TrainerClient.tail_job_logs`, after the cursor with which it was read. It queues the points; one thread of the
        process sends them for all jobs. What the server does not take is sent by `report_outcome`.
        """
        return self.create_reporter(ref).queue  # The option alone can track the job; its stored request has it.

    def create_reporter(self, ref: TrainJobRef) -> RunReporter:
        """Return what reports one job to its run."""
        from trainer_core.tracking.reporter import RunReporter

        return RunReporter(self._backend, ref, self.server, self.redact)

    def end_abandoned(self) -> Iterator[EndedRun]:
        """End the runs of jobs that ended or were deleted while no process waited for them, one after the other."""
        if not self.tracks_all:
            return
        from trainer_core.tracking.reporter import end_abandoned_runs
        from trainer_core.tracking.server import choose_server

        server = choose_server(None, self.server)
        if server is not None:
            yield from end_abandoned_runs(self._backend, server, self.redact)

    @staticmethod
    def flush(timeout: float) -> None:
        """Wait until the runs of submitted jobs have their parameters and tags."""
        if type(timeout) not in (int, float) or not 0 <= timeout <= TIMEOUT_MAX:
            raise ValueError(f"timeout must be a number of seconds, at least 0, got {redact(timeout)}")
        if reporter := sys.modules.get("trainer_core.tracking.reporter"):  # Loaded by what has something to send.
            reporter.get_run_sender().flush(timeout)
