"""ContainerBackend: TrainJobs as containers of Docker or Podman."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from typing import Any, ClassVar

from trainer_core import naming
from trainer_core.attempts import Found
from trainer_core.backends import packages
from trainer_core.backends.base import Backend
from trainer_core.backends.container import advance, book, detect, ending, observe, removal, spec, supervising
from trainer_core.backends.container.book import Container, Job
from trainer_core.backends.container.carry import stop_all
from trainer_core.backends.container.engine import Engine, NotThereError
from trainer_core.backends.container.logs import Place, read_on
from trainer_core.backends.container.progress import Reports
from trainer_core.backends.container.runtimes import Runtimes
from trainer_core.backends.container.store import Store
from trainer_core.backends.following import MOST
from trainer_core.cluster import runtimes as shapes
from trainer_core.configs import ContainerBackendConfig
from trainer_core.diagnosis import Facts
from trainer_core.errors import (
    BackendUnavailableError,
    InvalidRequestError,
    JobNotFoundError,
    TrainerError,
    UnsupportedError,
)
from trainer_core.fetching.local import local_path
from trainer_core.jobs import Event, TrainJob
from trainer_core.observation import Observation, Progress, Tail
from trainer_core.outcome import Diagnosis
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest
from trainer_core.runtimes import Runtime

__all__ = ["ContainerBackend"]

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2
#: How long something may be due before whoever sees it has it done: on the machine whose business it is, on another
#: one, and where it may be about to be done, because an image is pulled or a folder copied.
_DUE_HERE, _DUE_ELSEWHERE, _DUE_SLOWLY = timedelta(seconds=3), timedelta(seconds=15), timedelta(minutes=5)


class ContainerBackend(Backend):
    """TrainJobs as containers of Docker or Podman.

    Everything about a job is on the engine, so any process that reaches it can follow, suspend or delete the job. A
    detached supervisor on the submitter's machine starts its containers one after the other; where it was killed,
    whoever looks at the job has another one started.

    Args:
        config: Which engine, which images, where runtimes come from.
    """

    name: ClassVar[str] = "container"
    accepts: ClassVar[frozenset[str]] = frozenset(
        {
            *("Name", "Labels", "Annotations", "ActiveDeadlineSeconds", "Suspend", "DeleteAfter"),
            *("TrainerCommand", "TrainerArgs", "RuntimePatch"),
        }
    )

    def __init__(self, config: ContainerBackendConfig | None = None) -> None:
        self._config = config or ContainerBackendConfig()
        self._runtimes = Runtimes(self._config.runtime_source.sources)

    @cached_property
    def _engine(self) -> Engine:
        return detect.connect(self._config)

    @cached_property
    def _store(self) -> Store:
        return Store(self._engine, self._config.namespace)

    @cached_property
    def _reports(self) -> Reports:
        return Reports(self._engine)

    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        return spec.render(request, self._runtime(request), self._config)

    def dry_run(self, request: TrainJobRequest) -> None:
        self._check_engine(request, self.render(request))

    def _runtime(self, request: TrainJobRequest) -> dict[str, Any]:
        if request.trainer is None and request.runtime is None:
            return {}
        return self._runtimes.get(request.runtime.name if request.runtime else self.default_runtime)

    def find(self, request: TrainJobRequest) -> Sequence[Found]:
        owned = self._store.of_owner(request.owner.key) if request.owner else []
        found = [observe.found(job) for job in owned]
        last = max((job.attempt for job in found), default=-1)
        # A stranger may have the name of the first attempt, or of the next one.
        for name in {request.attempt_name(0), request.attempt_name(last + 1)} - {job.name for job in found}:
            with suppress(JobNotFoundError):
                found.append(observe.found(self._store.named(name)))
        return found

    def create(self, request: TrainJobRequest, attempt: int) -> TrainJobRef:
        plan = self.render(request)
        self._check_engine(request, plan)
        runtime = self._runtime(request)
        more = {"host": socket.gethostname(), "runtime": shapes.record(runtime) if request.trainer else None}
        job = self._store.make(request, attempt, spec.lean(plan), more)
        self._have_carried_out(job.ref, request)
        return job.ref

    def complete(self, ref: TrainJobRef, request: TrainJobRequest) -> None:
        with suppress(JobNotFoundError):
            if self._store.of(ref).outcome is None and not supervising.lives(ref.uid):
                self._have_carried_out(ref, request)

    def request(self, ref: TrainJobRef) -> TrainJobRequest:
        return observe.request(self._store.of(ref))

    def ref(self, name: str) -> TrainJobRef:
        return self._named(name).ref

    def observe(self, ref: TrainJobRef) -> Observation:
        job = self._store.of(ref)
        self._see_to(job)
        return observe.observation(job, self._progress(job))

    def logs(self, ref: TrainJobRef, step: str, follow: bool = False) -> Iterator[str]:
        steps = [known["name"] for known in self._store.of(ref).plan["steps"]]
        if step not in steps:
            raise InvalidRequestError(f"TrainJob {ref.name!r} has no step {step!r}; it has {', '.join(steps)}")
        return self._lines(ref, step, follow)

    def _lines(self, ref: TrainJobRef, step: str, follow: bool) -> Iterator[str]:
        place: Mapping[str, Any] = {}
        while True:
            try:
                job = self._store.of(ref)
            except JobNotFoundError:
                return
            lines, place, complete = self._read(job, step, place, not follow or job.outcome is not None, MOST)
            yield from lines
            if complete and (not follow or job.outcome is not None):
                return
            if complete:
                self._see_to(job)
                time.sleep(_LOOK_SECONDS)

    def tail(self, ref: TrainJobRef, place: Mapping[str, Any], whole: bool = False, most: int = MOST) -> Tail:
        job = self._store.of(ref)
        lines: list[tuple[str, str]] = []
        reached, complete = dict(place), True
        for step in [known["name"] for known in job.plan["steps"]]:
            new, reached[step], all_ = self._read(job, step, place.get(step, {}), whole, most - len(lines))
            lines += [(step, line) for line in new]
            complete = complete and all_
        return Tail(lines, reached, complete)

    def _read(
        self, job: Job, step: str, place: Mapping[str, Any], whole: bool, most: int
    ) -> tuple[list[str], dict[str, Any], bool]:
        """Read a step's log from a place on, over all its runs."""
        copied = job.copied(step)
        if copied is not None:
            first = int(place.get("lines", 0))
            lines = list(copied["log"][first : first + max(0, most)])
            return lines, {"lines": first + len(lines)}, first + len(lines) == len(copied["log"])
        found: list[str] = []
        run, at = int(place.get("run", 0)), Place.of(place)
        for each in job.of_step(step):
            if each.run < run or each.fresh:
                continue
            at = at if each.run == run else Place()
            run = each.run
            read = self._read_of(each, at, whole, most - len(found))
            found += read.lines
            at = read.place
            if not read.complete:
                return found, {"run": run, **at.to_dict()}, False
        return found, {"run": run, **at.to_dict()}, True

    def _read_of(self, each: Container, place: Place, whole: bool, most: int) -> Any:
        try:
            return read_on(self._engine.frames(each.key, place.since), place, whole or each.ended, most)
        except NotThereError:
            # Removed meanwhile, with its log.
            return read_on((), place, whole, most)

    def events(self, ref: TrainJobRef) -> list[Event]:
        return observe.events(self._store.of(ref))

    def suspend(self, ref: TrainJobRef) -> None:
        self._write(ref, book.SUSPEND, lambda job: not job.suspended)

    def resume(self, ref: TrainJobRef) -> None:
        self._write(ref, book.RESUME, lambda job: job.suspended)

    def _write(self, ref: TrainJobRef, kind: str, is_wanted: Any) -> None:
        """Write into the book of a job that has not ended, unless it says so already."""
        while True:
            job = self._store.of(ref)
            if job.outcome is not None or not is_wanted(job):
                return
            if self._store.append(job, kind, {}):
                break
        if not supervising.lives(job.uid):
            self._have_carried_out(ref)

    def cancel(self, ref: TrainJobRef, because: Diagnosis | None = None) -> None:
        with suppress(JobNotFoundError):
            stop_all(self._engine, self._ended(ref, because).running)

    def _ended(self, ref: TrainJobRef, because: Diagnosis | None = None) -> Job:
        """Return the job once its end is written, by whomever."""
        while True:
            job = self._store.of(ref)
            if job.outcome is not None:
                return job
            entry = ending.failed(job, Facts(cancelled=True, given_up=because), self._engine.now())
            if self._store.append(job, book.END, entry):
                return self._store.of(ref)

    def delete(self, ref: TrainJobRef) -> None:
        with suppress(JobNotFoundError):
            removal.remove(self._engine, self._ended(ref), keep_containers=not self._config.auto_remove)

    def reap(self) -> list[str]:
        now = self._engine.now()
        old = removal.due(self._store.all(), now)
        for job in old:
            self.delete(job.ref)
        removal.sweep(self._engine, self._config.namespace, now)
        return [job.name for job in old]

    def get_job(self, name: str) -> TrainJob:
        return self._train_job(self._named(name))

    def list_jobs(self) -> list[TrainJob]:
        found = []
        for job in self._store.all():
            try:
                found.append(self._train_job(job))
            except (TrainerError, ValueError, KeyError) as error:
                _log.warning("job %r is left out of the list: %s", job.name, error)
        return sorted(found, key=lambda job: job.creation_timestamp, reverse=True)

    def list_runtimes(self) -> list[Runtime]:
        return self._runtimes.list()

    def get_runtime(self, name: str) -> Runtime:
        return shapes.runtime(self._runtimes.get(name))

    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        return packages.of(self, runtime)

    def _named(self, name: str) -> Job:
        try:
            naming.validate_name(name)
        except ValueError:
            raise JobNotFoundError(f"no TrainJob {name!r}: that is no name of one") from None
        return self._store.named(name)

    def _train_job(self, job: Job) -> TrainJob:
        return observe.train_job(job, self._progress(job))

    def _progress(self, job: Job) -> Progress | None:
        if job.outcome is not None:
            told = job.entries[-1].data.get("progress")
            return Progress(**told) if told else None
        first = job.now_of("node-0")
        return self._reports.of(first) if first is not None and first.started else None

    def _check_engine(self, request: TrainJobRequest, plan: Mapping[str, Any]) -> None:
        """Refuse what this engine cannot do, or would pass over."""
        if self._engine.product == detect.PODMAN and any(step.get("gpus") for step in plan["steps"]):
            raise UnsupportedError(
                "resources_per_node: Podman passes over the gpu of the Docker API; use Docker, or give them to all "
                'containers (devices = ["nvidia.com/gpu=all"] in containers.conf) and ask for num_proc_per_node instead'
            )
        for role in spec.PLACES:
            source = getattr(request.initializer, role, None)
            if source is not None and source.storage_uri.startswith("file://"):
                self._check_file(role, source.storage_uri)

    def _check_file(self, role: str, uri: str) -> None:
        if not self._engine.local:
            raise UnsupportedError(
                f"initializer.{role}: file:// is a folder of this machine, and the engine at {self._engine.address} is "
                "on another one; use s3:// or hf://, or a volume there as pvc://"
            )
        try:
            path = local_path(uri)
        except ValueError as error:
            raise InvalidRequestError(f"initializer.{role}.storage_uri: {error}") from error
        if not path.exists():
            raise InvalidRequestError(
                f"initializer.{role}.storage_uri: {path} does not exist; make it first, or mend the path"
            )

    def _see_to(self, job: Job) -> None:
        """Have a job go on for which nobody does what is due."""
        now = self._engine.now()
        action = advance.decide(job, now)
        if isinstance(action, (advance.Wait, advance.Done)) or supervising.lives(job.uid):
            return
        patience = _DUE_HERE
        if job.made.get("host") != socket.gethostname():
            slow = isinstance(action, (advance.Copy, advance.Start))
            patience = _DUE_SLOWLY if slow and not job.containers else _DUE_ELSEWHERE
        if now - job.last_change > patience:
            try:
                self._have_carried_out(job.ref)
            except BackendUnavailableError as error:
                # A look has succeeded all the same.
                _log.warning("TrainJob %r waits for somebody to carry it out: %s", job.name, error)

    def _have_carried_out(self, ref: TrainJobRef, request: TrainJobRequest | None = None) -> None:
        secrets = request.literal_secrets if request is not None else {}
        config = self._config.model_dump(mode="json")
        if self._engine.local:
            # Found once, by this process's environment.
            config["container_host"] = self._engine.address
        supervising.start(ref, config, {key: value.get_secret_value() for key, value in secrets.items()})
