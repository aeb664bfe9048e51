"""DebugBackend: the job runs inside the calling process, where breakpoints work.

`submit` returns when the training function has returned. It is one process whatever the number of nodes, and its
jobs are forgotten with the process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

from trainer_core.attempts import Found
from trainer_core.backends import fetching_here
from trainer_core.backends.base import Backend, NameTakenError
from trainer_core.backends.debug.run import Job, last_progress, now_text, run
from trainer_core.configs import DebugBackendConfig
from trainer_core.errors import InvalidRequestError, JobNotFoundError, RuntimeNotFoundError, UnsupportedError
from trainer_core.jobs import Event, Step, TrainJob
from trainer_core.observation import COMPLETE, FAILED, Observation
from trainer_core.outcome import Diagnosis
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest
from trainer_core.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType

__all__ = ["DebugBackend"]

_RUNTIMES = {"python": "python", "torch-distributed": "torch"}


class DebugBackend(Backend):
    """TrainJobs inside the calling process, one after the other.

    Args:
        config: There is nothing to configure.
    """

    name: ClassVar[str] = "debug"
    accepts: ClassVar[frozenset[str]] = frozenset({"Name", "Labels", "Annotations"})

    def __init__(self, config: DebugBackendConfig | None = None) -> None:
        del config
        self._jobs: dict[str, Job] = {}
        # A job changes the environment and the streams of the whole process. A job may submit another one.
        self._running = threading.RLock()

    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        self.get_runtime(request.runtime.name if request.runtime else self.default_runtime)
        trainer = request.trainer
        if trainer is not None and trainer.kind != "custom":
            raise UnsupportedError("the debug backend calls functions only; give a CustomTrainer")
        if trainer is not None and trainer.packages:
            raise UnsupportedError(
                f"the debug backend runs in this interpreter; install {', '.join(trainer.packages)} into it and leave "
                "packages_to_install out"
            )
        if request.patches or request.active_deadline_seconds or request.suspend:
            raise UnsupportedError("the debug backend can neither patch, nor suspend, nor end a job by deadline")
        if request.cluster_only():
            raise UnsupportedError(f"{', '.join(request.cluster_only())}: only a cluster has that; leave it out")
        fetched = fetching_here.sources(request)
        for role, source in fetched:
            fetching_here.check_supported(role, source)
        if trainer is None and not fetched:
            raise InvalidRequestError("the request has neither a trainer nor an initializer: there is nothing to run")
        return {"steps": _step_names(request), "entry": trainer.code.entry if trainer and trainer.code else None}

    def find(self, request: TrainJobRequest) -> Sequence[Found]:
        key = request.owner.key if request.owner else None
        return [_found(job) for job in self._jobs.values() if _concerns(job, request.attempt_name(), key)]

    def create(self, request: TrainJobRequest, attempt: int) -> TrainJobRef:
        with self._running:
            return self._create(request, request.require_name(), attempt)

    def _create(self, request: TrainJobRequest, name: str, attempt: int) -> TrainJobRef:
        if name in self._jobs:
            raise NameTakenError(name)
        for role, source in fetching_here.sources(request):
            fetching_here.check_here(role, source)
        ref = TrainJobRef(self.name, f"process-{os.getpid()}", name, uuid.uuid4().hex)
        folder = Path(tempfile.mkdtemp(prefix=f"trainjob-{name}-"))
        job = self._jobs[name] = Job(request, ref, attempt, datetime.fromisoformat(now_text()), folder)
        _event(job, "Created", f"TrainJob {name} is created")
        job.outcome = run(job, self._cache)
        _event(job, job.outcome.status, str(job.outcome.diagnosis or f"TrainJob {name} is complete"))
        return ref

    def request(self, ref: TrainJobRef) -> TrainJobRequest:
        return self._job(ref).request

    def ref(self, name: str) -> TrainJobRef:
        if name not in self._jobs:
            raise JobNotFoundError(f"no TrainJob {name!r} in this process; there are {', '.join(self._jobs) or 'none'}")
        return self._jobs[name].ref

    def observe(self, ref: TrainJobRef) -> Observation:
        job = self._job(ref)
        return Observation(
            job.outcome.status if job.outcome else "Running", progress=last_progress(job), outcome=job.outcome
        )

    def logs(self, ref: TrainJobRef, step: str, follow: bool = False) -> Iterator[str]:
        job, steps = self._job(ref), _step_names(self._job(ref).request)
        if step not in steps:
            raise InvalidRequestError(f"TrainJob {ref.name!r} has no step {step!r}; it has {', '.join(steps)}")
        return iter(list(job.logs.get(step, [])))

    def events(self, ref: TrainJobRef) -> list[Event]:
        return list(self._job(ref).events)

    def suspend(self, ref: TrainJobRef) -> None:
        """Succeed: a job that can be seen from outside has ended."""

    def resume(self, ref: TrainJobRef) -> None:
        """Succeed: nothing is ever suspended."""

    def cancel(self, ref: TrainJobRef, because: Diagnosis | None = None) -> None:
        """Succeed: a job that can be seen from outside has ended."""

    def delete(self, ref: TrainJobRef) -> None:
        with contextlib.suppress(JobNotFoundError):
            job = self._job(ref)
            del self._jobs[ref.name]
            shutil.rmtree(job.folder, ignore_errors=True)

    def get_job(self, name: str) -> TrainJob:
        ref = self.ref(name)
        job = self._jobs[name]
        status = job.outcome.status if job.outcome else "Running"
        steps = [
            Step(step, _step_status(status), f"process-{os.getpid()}", device="cpu")
            for step in _step_names(job.request)
        ]
        return TrainJob(
            name=name,
            runtime=self.get_runtime(job.request.runtime.name if job.request.runtime else self.default_runtime),
            steps=steps,
            num_nodes=1 if job.request.trainer else 0,
            creation_timestamp=job.created,
            status=status,
            uid=ref.uid,
            namespace=ref.namespace,
            labels=dict(job.request.metadata.labels),
            annotations=dict(job.request.metadata.annotations),
            reason=str(job.outcome.diagnosis) if job.outcome and job.outcome.diagnosis else None,
            progress=last_progress(job),
        )

    def list_jobs(self) -> list[TrainJob]:
        return [self.get_job(name) for name in reversed(self._jobs)]

    def list_runtimes(self) -> list[Runtime]:
        return [self.get_runtime(name) for name in _RUNTIMES]

    def get_runtime(self, name: str) -> Runtime:
        if name not in _RUNTIMES:
            raise RuntimeNotFoundError(f"no runtime {name!r} on the debug backend; there are {', '.join(_RUNTIMES)}")
        trainer = RuntimeTrainer(
            TrainerType.CUSTOM_TRAINER, _RUNTIMES[name], "this process", device="cpu", device_count="1"
        )
        trainer.set_command(("python",))
        return Runtime(name=name, trainer=trainer, kind=RuntimeKind.CLUSTER_TRAINING_RUNTIME)

    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        self.get_runtime(runtime.name)
        return sorted(
            {f"{found.metadata['Name']}=={found.version}" for found in metadata.distributions()}, key=str.lower
        )

    @cached_property
    def _cache(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="trainjob-cache-"))

    def _job(self, ref: TrainJobRef) -> Job:
        job = self._jobs.get(ref.name)
        if job is None or job.ref.uid != ref.uid:
            raise JobNotFoundError(
                f"TrainJob {ref.name!r} is not one of this process; the debug backend forgets with it"
            )
        return job


def _step_names(request: TrainJobRequest) -> list[str]:
    steps = [f"{role}-initializer" for role, _ in fetching_here.sources(request)]
    return steps + (["node-0"] if request.trainer else [])


def _step_status(status: str) -> str:
    return {COMPLETE: "Succeeded", FAILED: "Failed"}.get(status, "Running")


def _concerns(job: Job, name: str, owner_key: str | None) -> bool:
    return job.ref.name == name or (
        owner_key is not None and job.request.owner is not None and job.request.owner.key == owner_key
    )


def _found(job: Job) -> Found:
    owner = job.request.owner
    status = job.outcome.status if job.outcome else "Running"
    key, generation = (owner.key, owner.generation) if owner else (None, None)
    return Found(job.ref.name, status, job.request.fingerprint(), key, generation, job.attempt)


def _event(job: Job, reason: str, message: str) -> None:
    job.events.append(Event("TrainJob", job.ref.name, message, reason, datetime.now(timezone.utc)))
