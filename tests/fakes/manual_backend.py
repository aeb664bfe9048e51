"""A backend in memory whose jobs end when a test says so, and which can kill the process that calls it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from trainer_core.backends.base import Backend, NameTakenError, Prepared
from trainer_core.backends.follower import Follower
from trainer_core.base.change_event import ChangeEvent
from trainer_core.base.errors import JobNotFoundError
from trainer_core.lifecycle.adoption import ExistingJob
from trainer_core.model.jobs import (
    COMPLETE,
    FAILED,
    RUNNING,
    SUSPENDED,
    Category,
    Diagnosis,
    Event,
    ObjectiveReport,
    Observation,
    Outcome,
    Progress,
    RungValue,
    TrainJob,
    TrainJobRef,
)
from trainer_core.model.request import TrainJobRequest
from trainer_core.model.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType


class KilledError(BaseException):
    """The process was killed. Not an `Exception`, so that nothing handles it."""


@dataclass
class ManualJob:
    """A job in the memory of a test."""

    request: TrainJobRequest
    ref: TrainJobRef
    attempt: int
    progress: Progress | None = None
    outcome: Outcome | None = None
    processes: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        if self.outcome is not None:
            return self.outcome.status
        return SUSPENDED if self.request.policy.suspend else RUNNING


class ManualBackend(Backend):
    """A store of jobs. Several backends can share one, as several processes share a cluster."""

    name = "manual"
    accepts = frozenset({"Name", "Labels", "Suspend", "Checkpoints", "DeleteAfter"})
    default_runtime = "python"

    def __init__(self, jobs: dict[str, ManualJob] | None = None) -> None:
        self.jobs: dict[str, ManualJob] = {} if jobs is None else jobs
        #: Called before and after the effect of each call, with its name; it may raise `KilledError`.
        self.on_call: Callable[[str], None] = lambda _: None
        #: Whether `cancel` deletes a job, as that of a queue that would start it again.
        self.cancel_deletes = False

    def complete(self, ref_name: str, **result: float) -> None:
        job = self.jobs[ref_name]
        metrics = {name: float(value) for name, value in result.items()}
        job.outcome = Outcome(ref=job.ref.to_dict(), status=COMPLETE, result=result, metrics=metrics)

    def fail(self, name: str, category: Category = Category.USER_CODE, retryable: bool = False) -> None:
        job = self.jobs[name]
        diagnosis = Diagnosis(category=category, reason="it failed", retryable=retryable)
        job.outcome = Outcome(ref=job.ref.to_dict(), status=FAILED, diagnosis=diagnosis)

    def list_running(self) -> list[ManualJob]:
        return [job for job in self.jobs.values() if job.outcome is None and not job.request.policy.suspend]

    def resolve_request(self, request: TrainJobRequest) -> TrainJobRequest:
        return request

    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        return {}

    def find_jobs(self, request: TrainJobRequest) -> Sequence[ExistingJob]:
        self.on_call("find_jobs")
        key, own_name = request.context.owner.key if request.context.owner else None, request.get_attempt_name()
        return [
            ExistingJob(
                name,
                job.status,
                job.request.fingerprint(),
                job.request.context.owner.key if job.request.context.owner else None,
                job.request.context.owner.generation if job.request.context.owner else None,
                job.attempt,
            )
            for name, job in self.jobs.items()
            if name == own_name or (job.request.context.owner and job.request.context.owner.key == key)
        ]

    def create(self, prepared: Prepared) -> TrainJobRef:
        self.on_call("before create")
        name = prepared.request.require_name()
        if name in self.jobs:
            raise NameTakenError(name)
        ref = TrainJobRef(self.name, "memory", name, uuid.uuid4().hex)
        # Through JSON, as on each real backend.
        stored = TrainJobRequest.from_json(prepared.request.to_json())
        self.jobs[name] = ManualJob(stored, ref, prepared.attempt)
        self.on_call("after create")
        return ref

    def get_request(self, ref: TrainJobRef) -> TrainJobRequest:
        self.on_call("get_request")
        return self._get(ref).request

    def get_ref(self, name: str) -> TrainJobRef:
        if name not in self.jobs:
            raise JobNotFoundError(f"TrainJob {name!r} does not exist")
        return self.jobs[name].ref

    def observe(self, ref: TrainJobRef) -> Observation:
        self.on_call("observe")
        job = self._get(ref)
        return Observation(job.status, progress=job.progress, outcome=job.outcome, outcome_is_stored=True)

    def list_processes(self, ref: TrainJobRef) -> list[str]:
        job = self.jobs.get(ref.name)
        return list(job.processes) if job else []

    def follow(self, ref: TrainJobRef, progress: bool = False) -> Follower:
        return _ManualFollower(self, ref)

    def list_search_jobs(
        self, key: str, known: Collection[str]
    ) -> dict[str, tuple[TrainJobRef, TrainJobRequest, Observation] | None]:
        self.on_call("list")
        return {
            name: None if name in known else (job.ref, job.request, Observation(job.status, job.progress, job.outcome))
            for name, job in self.jobs.items()
            if job.request.context.search and job.request.context.search.key == key
        }

    def logs(self, ref: TrainJobRef, step: str, follow: bool = False) -> Iterator[str]:
        return iter(())

    def events(self, ref: TrainJobRef) -> list[Event]:
        return []

    def suspend(self, ref: TrainJobRef) -> None:
        raise NotImplementedError

    def resume(self, ref: TrainJobRef) -> None:
        raise NotImplementedError

    def report(self, name: str, step: float, value: float, metric: str = "loss") -> None:
        """Report a value at the next rung, as the node of a function does."""
        job = self.jobs[name]
        rungs = job.progress.objective.rungs if job.progress and job.progress.objective else ()
        rung = job.request.context.search.rung if job.request.context.search else None
        rung = len(rungs) if rung is None else rung  # A promoted run skips those that it has passed.
        rungs = (*rungs, RungValue(rung, step, value, time.time_ns() // 1_000_000))
        job.progress = Progress(step, None, {metric: value}, objective=ObjectiveReport(value, step, value, rungs))

    def pause(self, name: str) -> None:
        """End a running trial at its rung."""
        job = self.jobs[name]
        assert job.progress is not None
        fields = {"objective": job.progress.objective, "paused_at": job.progress.step}
        job.outcome = Outcome(ref=job.ref.to_dict(), status=COMPLETE, **fields)

    def keeps_cancelled(self, request: TrainJobRequest) -> bool:
        return not self.cancel_deletes

    def cancel(self, ref: TrainJobRef, diagnosis: Diagnosis | None = None) -> None:
        job = self.jobs.get(ref.name)
        if self.cancel_deletes and job is not None and job.outcome is None and not job.request.policy.suspend:
            self.jobs.pop(ref.name)
            return
        if job is not None and job.ref.uid == ref.uid and job.outcome is None:
            because = diagnosis or Diagnosis(category=Category.DELETED, reason="it was cancelled")
            objective = job.progress.objective if job.progress else None
            job.outcome = Outcome(ref=ref.to_dict(), status=FAILED, diagnosis=because, objective=objective)

    def delete(self, ref: TrainJobRef) -> None:
        self.jobs.pop(ref.name, None)

    def get_job(self, name: str) -> TrainJob:
        job = self.jobs[self.get_ref(name).name]
        return TrainJob(
            name=name,
            runtime=self.get_runtime("python"),
            steps=[],
            num_nodes=1,
            creation_timestamp=datetime.now(timezone.utc),
            status=job.status,
            uid=job.ref.uid,
            labels=dict(job.request.policy.metadata.labels),
        )

    def list_jobs(self) -> list[TrainJob]:
        return [self.get_job(name) for name in reversed(self.jobs)]

    def list_runtimes(self) -> list[Runtime]:
        return [self.get_runtime("python")]

    def get_runtime(self, name: str) -> Runtime:
        trainer = RuntimeTrainer(TrainerType.CUSTOM_TRAINER, "python", "this process")
        return Runtime(name=name, trainer=trainer, kind=RuntimeKind.CLUSTER_TRAINING_RUNTIME)

    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        return []

    def _get(self, ref: TrainJobRef) -> ManualJob:
        job = self.jobs.get(ref.name)
        if job is None or job.ref.uid != ref.uid:
            raise JobNotFoundError(f"TrainJob {ref.name!r} does not exist")
        return job


class _ManualFollower(Follower):
    """Always has an observation."""

    def __init__(self, backend: ManualBackend, ref: TrainJobRef) -> None:
        self._backend, self._ref = backend, ref
        self._changed = ChangeEvent()
        self._changed.set()

    @property
    def changed(self) -> ChangeEvent:
        return self._changed

    def next_observation(self, timeout: float) -> Observation:
        return self._backend.observe(self._ref)

    async def next_observation_async(self, timeout: float) -> Observation:
        return self._backend.observe(self._ref)

    def get_job(self) -> TrainJob:
        return self._backend.get_job(self._ref.name)

    def tail(self, *_: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass
