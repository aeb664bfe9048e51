"""RecordingBackend: runs nothing, remembers what it was asked for, and gives the outcomes that a test scripts.

It stands in the place of any other backend: options are judged by that backend's own class, and what submitting twice
means is decided where it always is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from trainer_core.attempts import Found
from trainer_core.backends import backend_class
from trainer_core.backends.base import Backend
from trainer_core.errors import BackendUnavailableError, InvalidRequestError, JobNotFoundError
from trainer_core.jobs import Event, Step, TrainJob
from trainer_core.observation import Observation
from trainer_core.outcome import Diagnosis
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest
from trainer_core.runtimes import Runtime, RuntimeTrainer, TrainerType
from trainer_core.testing.recorder import Recorded, Recorder

__all__ = ["RecordingBackend", "stand_in"]


def stand_in(name: str, recorder: Recorder) -> type[RecordingBackend]:
    """Return a class that stands in the place of a backend.

    Args:
        name: Of the backend.
        recorder: Takes the jobs in.

    Raises:
        ValueError: No backend has that name.
    """
    try:
        real = backend_class(name)
    except BackendUnavailableError:
        # Not part of this release: what it will accept is not known, so it is what the embedded one does.
        real = backend_class("local")
    facts = {"name": name, "accepts": real.accepts, "default_runtime": real.default_runtime, "recorder": recorder}
    return type(f"Recording{real.__name__}", (RecordingBackend,), facts)


class RecordingBackend(Backend):
    """Remembers TrainJobs instead of running them.

    Args:
        config: Of the backend it stands for.
    """

    name: ClassVar[str] = "recording"
    accepts: ClassVar[frozenset[str]] = frozenset()
    recorder: ClassVar[Recorder]

    def __init__(self, config: Any = None) -> None:
        self.recorder.configs.append(config)

    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        """The request itself: no backend has rendered it."""
        return request.to_dict()

    def find(self, request: TrainJobRequest) -> Sequence[Found]:
        """See `Backend.find`."""
        key = request.owner.key if request.owner else object()
        found = [_found(job) for job in self.recorder.present()]
        return [each for each in found if each.name == request.attempt_name() or each.owner_key == key]

    def create(self, request: TrainJobRequest, attempt: int) -> TrainJobRef:
        """See `Backend.create`."""
        return self.recorder.add(request, self.name, attempt)

    def request(self, ref: TrainJobRef) -> TrainJobRequest:
        """See `Backend.request`."""
        return self._job(ref).request

    def ref(self, name: str) -> TrainJobRef:
        """See `Backend.ref`."""
        return self._named(name).ref

    def observe(self, ref: TrainJobRef) -> Observation:
        """See `Backend.observe`. Whoever looks sees a job that has ended as it was scripted."""
        job = self._job(ref)
        if not job.suspended:
            job.end(job.ending)
        return Observation(job.status, outcome=job.outcome)

    def logs(self, ref: TrainJobRef, step: str, follow: bool = False) -> Iterator[str]:
        """Nothing ran, so nothing was printed."""
        steps = _steps(self._job(ref).request)
        if step not in steps:
            raise InvalidRequestError(f"TrainJob {ref.name!r} has no step {step!r}; it has {', '.join(steps)}")
        return iter(())

    def events(self, ref: TrainJobRef) -> list[Event]:
        """See `Backend.events`."""
        job = self._job(ref)
        return [Event("TrainJob", ref.name, f"TrainJob {ref.name} was recorded", "Created", job.created)]

    def suspend(self, ref: TrainJobRef) -> None:
        """See `Backend.suspend`."""
        self._job(ref).suspended = True

    def resume(self, ref: TrainJobRef) -> None:
        """See `Backend.resume`."""
        self._job(ref).suspended = False

    def cancel(self, ref: TrainJobRef, because: Diagnosis | None = None) -> None:
        """See `Backend.cancel`."""
        for job in self.recorder.present():
            if job.ref == ref:
                job.cancel(because)

    def delete(self, ref: TrainJobRef) -> None:
        """See `Backend.delete`."""
        for job in self.recorder.present():
            if job.ref == ref:
                job.cancel()
                job.deleted = True

    def get_job(self, name: str) -> TrainJob:
        """See `Backend.get_job`."""
        job = self._named(name)
        request, trainer = job.request, job.request.trainer
        return TrainJob(
            name=name,
            runtime=self.get_runtime(request.runtime.name if request.runtime else self.default_runtime),
            steps=[Step(step, None, f"{name}-{step}") for step in _steps(request)],
            num_nodes=(trainer.num_nodes or 1) if trainer else 0,
            creation_timestamp=job.created,
            status=job.status,
            uid=job.ref.uid,
            namespace=job.ref.namespace,
            labels=dict(request.metadata.labels),
            annotations=dict(request.metadata.annotations),
        )

    def list_jobs(self) -> list[TrainJob]:
        """See `Backend.list_jobs`."""
        return [self.get_job(job.ref.name) for job in reversed(self.recorder.present())]

    def list_runtimes(self) -> list[Runtime]:
        """The default one; every other name is taken for a runtime, too."""
        return [self.get_runtime(self.default_runtime)]

    def get_runtime(self, name: str) -> Runtime:
        """Return a runtime of any name: which there are is for the real backend to say."""
        trainer = RuntimeTrainer(TrainerType.CUSTOM_TRAINER, "python", "recorded")
        trainer.set_command(("python",))
        return Runtime(name=name, trainer=trainer)

    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        """None."""
        return []

    def _job(self, ref: TrainJobRef) -> Recorded:
        job = self._named(ref.name)
        if job.ref.uid != ref.uid:
            raise JobNotFoundError(f"TrainJob {ref.name!r} is another one now")
        return job

    def _named(self, name: str) -> Recorded:
        present = {job.ref.name: job for job in self.recorder.present()}
        if name not in present:
            raise JobNotFoundError(f"no TrainJob {name!r} was submitted; there are {', '.join(present) or 'none'}")
        return present[name]


def _steps(request: TrainJobRequest) -> list[str]:
    fetched = request.initializer.model_dump(exclude_none=True) if request.initializer else {}
    nodes = request.trainer.num_nodes or 1 if request.trainer else 0
    return [f"{role}-initializer" for role in fetched] + [f"node-{number}" for number in range(nodes)]


def _found(job: Recorded) -> Found:
    owner = job.request.owner
    key, generation = (owner.key, owner.generation) if owner else (None, None)
    return Found(job.ref.name, job.status, job.request.fingerprint(), key, generation, job.attempt)
