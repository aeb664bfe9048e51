"""JobRecorder: the TrainJobs that a test submits, recorded instead of run, with the outcomes that the test sets.

`RecordingBackend` replaces any other backend. It accepts the options of that backend, and repeated submissions are
handled as on every backend.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, ClassVar

from trainer_core.backends import backend_class
from trainer_core.backends.base import Backend, NameTakenError, Prepared
from trainer_core.base.errors import BackendUnavailableError, InvalidRequestError, JobNotFoundError
from trainer_core.lifecycle.adoption import ExistingJob
from trainer_core.lifecycle.reuse import Versions
from trainer_core.model.jobs import (
    RUNNING,
    SUSPENDED,
    Category,
    Diagnosis,
    Event,
    Observation,
    Outcome,
    Step,
    TrainJob,
    TrainJobRef,
    build_complete_outcome,
)
from trainer_core.model.request import TrainJobRequest
from trainer_core.model.runtimes import Runtime, RuntimeTrainer, TrainerType
from trainer_core.node import termination

#: Computes the outcome of a job; None for a job that runs until it is cancelled.
OutcomeScript = Callable[["RecordedJob"], Outcome | None]

_RETRYABLE = frozenset(
    {Category.PREEMPTED, Category.NODE_LOST, Category.INFRASTRUCTURE, Category.SCHEDULING, Category.STALLED}
)
_CANCELLED = Diagnosis(category=Category.DELETED, reason="it was cancelled")


@dataclass
class RecordedJob:
    """A submitted TrainJob.

    Attributes:
        request: Its request.
        ref: Its ref.
        attempt: Attempt number of its owner, from 0.
        created: Time of submission.
        script: Computes its outcome.
        outcome: Its outcome; None while it runs.
        suspended: Whether it is suspended.
        deleted: Whether it was deleted.
    """

    request: TrainJobRequest
    ref: TrainJobRef
    attempt: int
    created: datetime
    script: OutcomeScript
    outcome: Outcome | None = None
    suspended: bool = False
    deleted: bool = False

    @property
    def task_id(self) -> str | None:
        """Task id of its owner; None without an owner."""
        return self.request.context.owner.slug if self.request.context.owner else None

    @property
    def args(self) -> dict[str, Any]:
        """Arguments of the training function."""
        trainer = self.request.work.trainer
        return dict(trainer.code.args) if trainer and trainer.code else {}

    @property
    def status(self) -> str:
        """Current status."""
        if self.outcome is not None:
            return self.outcome.status
        return SUSPENDED if self.suspended else RUNNING

    @property
    def finished(self) -> datetime | None:
        """When it ended. None before."""
        at = self.outcome.finished_at if self.outcome else None
        return datetime.fromisoformat(at) if at else None

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled before its scripted outcome."""
        return self.outcome is not None and self.outcome.diagnosis == _CANCELLED

    def end(self, script: OutcomeScript) -> None:
        """Set the outcome from a script, unless the job has ended."""
        if self.outcome is None:
            self.outcome = script(self)

    def cancel(self, diagnosis: Diagnosis | None = None) -> None:
        """Fail the job as cancelled, unless it has ended."""
        self.end(_build_failure(diagnosis or _CANCELLED))


def completes(result: Any = None) -> OutcomeScript:
    """Return a script that completes the job.

    Args:
        result: Return value of the training function, or a function that computes it from the `RecordedJob`, such as
            ``lambda job: {"accuracy": job.args["rate"]}``. Default: None.
    """

    def build_outcome(job: RecordedJob) -> Outcome:
        value = result(job) if callable(result) else result
        at = _now()
        record = termination.parse_record(
            termination.encode_result(termination.add_stamps(termination.result_record(value)))
        )
        return build_complete_outcome(job.ref, record or {}, started_at=at, finished_at=at)

    return build_outcome


def fails(
    category: str = "UserCode", reason: str = "scripted by the test", *, retryable: bool | None = None
) -> OutcomeScript:
    """Return a script that fails the job.

    Args:
        category: A value of `Category`. Default: ``UserCode``.
        reason: Reason of the failure, one line.
        retryable: Whether a retry can help. Default: None, which depends on the category.
    """
    kind = Category(category)
    can_help = kind in _RETRYABLE if retryable is None else retryable
    return _build_failure(Diagnosis(category=kind, reason=reason, step="node-0", exit_code=1, retryable=can_help))


def runs_until_cancelled() -> OutcomeScript:
    """Return a script that keeps the job running until it is cancelled or deleted."""
    return lambda job: None


def _build_failure(diagnosis: Diagnosis) -> OutcomeScript:
    def build_outcome(job: RecordedJob) -> Outcome:
        at = _now()
        return Outcome(ref=job.ref.to_dict(), status="Failed", diagnosis=diagnosis, started_at=at, finished_at=at)

    return build_outcome


class JobRecorder:
    """The jobs and outcome scripts that all recording backends of a test share.

    Attributes:
        jobs: All submitted jobs, oldest first, including deleted ones.
        configs: The configurations of the created backends.
    """

    def __init__(self) -> None:
        self.jobs: list[RecordedJob] = []
        self.configs: list[Any] = []
        self._scripts: dict[str | None, list[OutcomeScript]] = {}
        self._is_unavailable = False
        self._lock = threading.RLock()

    @property
    def requests(self) -> list[TrainJobRequest]:
        """The submitted requests, oldest first."""
        return [job.request for job in self.jobs]

    def script(self, *scripts: OutcomeScript, task_id: str | None = None) -> None:
        """Set the outcomes of jobs, in the order of submission; the last outcome is repeated.

        Without a script every job completes with the result None.

        Args:
            *scripts: Such as ``fails("NodeLost"), completes({"accuracy": 0.9})``.
            task_id: Only for jobs of this task. Default: None, for jobs of tasks without their own script.

        Raises:
            ValueError: No script is given.
        """
        if not scripts:
            raise ValueError("script requires an outcome, such as completes({'accuracy': 0.9})")
        self._scripts[task_id] = list(scripts)

    def job(self, task_id: str | None = None) -> RecordedJob:
        """Return the only submitted job.

        Args:
            task_id: Only jobs of this task count. Default: None, for all jobs.

        Raises:
            AssertionError: No job or several jobs were submitted.
        """
        jobs = self.get_jobs(task_id) if task_id else self.jobs
        if len(jobs) != 1:
            whose = f" of task {task_id!r}" if task_id else ""
            names = ", ".join(job.ref.name for job in jobs) or "none"
            raise AssertionError(f"expected one submitted TrainJob{whose}, got {len(jobs)}: {names}")
        return jobs[0]

    def get_jobs(self, task_id: str) -> list[RecordedJob]:
        """Return the jobs of a task, oldest first: all tries and, for a mapped task, all map indexes."""
        return [job for job in self.jobs if job.task_id == task_id]

    def make_unavailable(self) -> None:
        """Let every call to the backend raise BackendUnavailableError."""
        self._is_unavailable = True

    def make_available(self) -> None:
        """Let the backend answer again."""
        self._is_unavailable = False

    def reset(self) -> None:
        """Remove all jobs, configurations and scripts."""
        self.jobs.clear()
        self.configs.clear()
        self._scripts.clear()
        self._is_unavailable = False

    def add(self, request: TrainJobRequest, backend: str, attempt: int) -> TrainJobRef:
        """Record a job."""
        self.check_reachable()
        with self._lock:
            name = request.require_name()
            if any(job.ref.name == name for job in self.list_present()):
                raise NameTakenError(name)
            ref = TrainJobRef(backend, f"recorded-{os.getpid()}", name, uuid.uuid4().hex)
            job = RecordedJob(
                request, ref, attempt, datetime.now(timezone.utc), completes(), suspended=request.policy.suspend
            )
            job.script = self._next_script(job.task_id)
            self.jobs.append(job)
        return ref

    def list_present(self) -> list[RecordedJob]:
        """Return the jobs that were not deleted."""
        self.check_reachable()
        return [job for job in self.jobs if not job.deleted]

    def check_reachable(self) -> None:
        """Raise BackendUnavailableError after `make_unavailable`."""
        if self._is_unavailable:
            raise BackendUnavailableError("the recording backend is unavailable: the test called make_unavailable()")

    def _next_script(self, task_id: str | None) -> OutcomeScript:
        script = self._scripts.get(task_id) or self._scripts.get(None) or [completes()]
        return script.pop(0) if len(script) > 1 else script[0]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


def build_recording_backend(name: str, recorder: JobRecorder) -> type[RecordingBackend]:
    """Return a backend class that records jobs under the name and with the options of another backend.

    Args:
        name: Name of the replaced backend.
        recorder: Records the jobs.

    Raises:
        ValueError: No backend has this name.
    """
    real = backend_class(name)
    attributes = {"name": name, "accepts": real.accepts, "default_runtime": real.default_runtime, "recorder": recorder}
    return type(f"Recording{real.__name__}", (RecordingBackend,), attributes)


class RecordingBackend(Backend):
    """Records TrainJobs instead of running them.

    Args:
        config: Configuration of the replaced backend.
    """

    name: ClassVar[str] = "recording"
    accepts: ClassVar[frozenset[str]] = frozenset()
    recorder: ClassVar[JobRecorder]

    def __init__(self, config: Any = None) -> None:
        self.recorder.configs.append(config)

    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        """Return the request as a dict: nothing is rendered."""
        return request.to_dict()

    def read_versions(self, request: TrainJobRequest) -> Versions:
        """Return the same for all jobs: nothing runs, and the requests are compared."""
        return Versions()

    def find_jobs(self, request: TrainJobRequest) -> Sequence[ExistingJob]:
        name, owner = request.get_attempt_name(), request.context.owner
        return [
            _build_existing_job(job)
            for job in self.recorder.list_present()
            if job.ref.name == name
            or (owner and job.request.context.owner and job.request.context.owner.key == owner.key)
        ]

    def create(self, prepared: Prepared) -> TrainJobRef:
        return self.recorder.add(prepared.request, self.name, prepared.attempt)

    def get_request(self, ref: TrainJobRef) -> TrainJobRequest:
        return self._get_recorded_job(ref).request

    def get_ref(self, name: str) -> TrainJobRef:
        return self._get_job_by_name(name).ref

    def observe(self, ref: TrainJobRef) -> Observation:
        """See `Backend.observe`. The first observation of a job that is not suspended sets its scripted outcome."""
        job = self._get_recorded_job(ref)
        if not job.suspended:
            job.end(job.script)
        return Observation(job.status, outcome=job.outcome)

    def logs(self, ref: TrainJobRef, step: str, follow: bool = False) -> Iterator[str]:
        """Return no lines: nothing runs."""
        steps = _list_steps(self._get_recorded_job(ref).request)
        if step not in steps:
            raise InvalidRequestError(f"TrainJob {ref.name!r} has no step {step!r}; its steps are {', '.join(steps)}")
        return iter(())

    def events(self, ref: TrainJobRef) -> list[Event]:
        job = self._get_recorded_job(ref)
        return [Event("TrainJob", ref.name, f"TrainJob {ref.name} was recorded", "Created", job.created)]

    def suspend(self, ref: TrainJobRef) -> None:
        self._get_recorded_job(ref).suspended = True

    def resume(self, ref: TrainJobRef) -> None:
        self._get_recorded_job(ref).suspended = False

    def cancel(self, ref: TrainJobRef, diagnosis: Diagnosis | None = None) -> None:
        for job in self.recorder.list_present():
            if job.ref == ref:
                job.cancel(diagnosis)

    def delete(self, ref: TrainJobRef) -> None:
        for job in self.recorder.list_present():
            if job.ref == ref:
                job.cancel()
                job.deleted = True

    def get_job(self, name: str) -> TrainJob:
        job = self._get_job_by_name(name)
        request, trainer = job.request, job.request.work.trainer
        return TrainJob(
            name=name,
            runtime=self.get_runtime(self.get_runtime_ref(request).name),
            steps=[Step(step, None, f"{name}-{step}") for step in _list_steps(request)],
            num_nodes=(trainer.num_nodes or 1) if trainer else 0,
            creation_timestamp=job.created,
            status=job.status,
            uid=job.ref.uid,
            namespace=job.ref.namespace,
            labels=dict(request.job_metadata.labels),
            annotations=dict(request.job_metadata.annotations),
            finished=datetime.fromisoformat(job.outcome.finished_at)
            if job.outcome and job.outcome.finished_at
            else None,
        )

    def list_jobs(self) -> list[TrainJob]:
        return [self.get_job(job.ref.name) for job in reversed(self.recorder.list_present())]

    def list_runtimes(self) -> list[Runtime]:
        """Return the default runtime; `get_runtime` returns a runtime of any name."""
        return [self.get_runtime(self.default_runtime)]

    def get_runtime(self, name: str) -> Runtime:
        """Return a runtime of any name: only the replaced backend knows which ones exist."""
        trainer = RuntimeTrainer(TrainerType.CUSTOM_TRAINER, "python", "recorded")
        trainer.set_command(("python",))
        return Runtime(name=name, trainer=trainer)

    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        """Return no packages."""
        return []

    def _get_recorded_job(self, ref: TrainJobRef) -> RecordedJob:
        job = self._get_job_by_name(ref.name)
        if job.ref.uid != ref.uid:
            raise JobNotFoundError(f"TrainJob {ref.name!r} is a later job of the same name")
        return job

    def _get_job_by_name(self, name: str) -> RecordedJob:
        present = {job.ref.name: job for job in self.recorder.list_present()}
        if name not in present:
            raise JobNotFoundError(
                f"TrainJob {name!r} was not submitted; submitted jobs: {', '.join(present) or 'none'}"
            )
        return present[name]


def _list_steps(request: TrainJobRequest) -> list[str]:
    sources = request.work.initializer.model_dump(exclude_none=True) if request.work.initializer else {}
    nodes = request.work.trainer.num_nodes or 1 if request.work.trainer else 0
    return [f"{role}-initializer" for role in sources] + [f"node-{number}" for number in range(nodes)]


def _build_existing_job(job: RecordedJob) -> ExistingJob:
    owner = job.request.context.owner
    key, generation = (owner.key, owner.generation) if owner else (None, None)
    return ExistingJob(job.ref.name, job.status, job.request.fingerprint(), key, generation, job.attempt)
