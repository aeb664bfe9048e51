"""ContainerBackend: TrainJobs as containers of Docker or Podman."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trainer_core.backends.base import Backend, Prepared
from trainer_core.backends.container import (
    job_journal,
    names,
    observations,
    outcome,
    paths,
    reconcile,
    supervisor,
)
from trainer_core.backends.container.engine import PODMAN, Engine, EngineRequestError, connect_engine
from trainer_core.backends.container.job_journal import ContainerJob
from trainer_core.backends.container.logs import ContainerLogCursor, LogReader
from trainer_core.backends.container.plan import SCHEMES, render_plan, strip_commands
from trainer_core.backends.container.runner import stop_containers
from trainer_core.backends.container.runtimes import RuntimeCatalog
from trainer_core.backends.container.store import JobStore, RecordLostError
from trainer_core.backends.environment_secrets import read_secrets
from trainer_core.backends.runtime_packages import list_runtime_packages
from trainer_core.base import naming
from trainer_core.base.errors import (
    BackendUnavailableError,
    InvalidRequestError,
    JobNotFoundError,
    TrainerError,
    UnsupportedError,
)
from trainer_core.base.secrets import mask_credentials
from trainer_core.fetch.local_files import parse_local_path
from trainer_core.k8s.runtimes import dump_raw_runtime, parse_runtime
from trainer_core.lifecycle import reuse
from trainer_core.lifecycle.adoption import ExistingJob, list_other_names
from trainer_core.lifecycle.diagnosis import Facts
from trainer_core.lifecycle.reuse import Versions
from trainer_core.model import checkpoint_location
from trainer_core.model.checkpoint_location import MOUNT_PATH
from trainer_core.model.config import ContainerBackendConfig
from trainer_core.model.jobs import Diagnosis, Event, ObjectiveReport, Observation, Progress, TrainJob, TrainJobRef
from trainer_core.model.logs import MAX_LOG_LINES, LogChunk, select_steps, tail_steps
from trainer_core.model.request import TrainJobRequest, list_options
from trainer_core.model.runtimes import Runtime
from trainer_core.packaging import code_location

if TYPE_CHECKING:
    from trainer_core.model.preflight import PreflightReport

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
#: How long an action may be due before an observer starts another supervisor: on the submitter's machine; on another
#: machine; and on another machine while an image may be pulled or a folder copied.
_OVERDUE_LOCAL, _OVERDUE_REMOTE, _OVERDUE_SLOW = timedelta(seconds=3), timedelta(seconds=15), timedelta(minutes=5)


class ContainerBackend(Backend):
    """Runs TrainJobs as containers of Docker or Podman.

    The state of a job is on the engine, so any process that reaches the engine can follow, suspend or delete the job. A
    detached supervisor on the submitter's machine starts the containers. If it is killed, an observer of the job
    starts another one.
    """

    name: ClassVar[str] = "container"
    restarts_in_place: ClassVar[bool] = True
    accepts: ClassVar[frozenset[str]] = list_options("container")
    schemes: ClassVar[Collection[str]] = SCHEMES

    @classmethod
    def check_platform(cls, config: ContainerBackendConfig) -> PreflightReport:
        from trainer_core.backends.container.preflight import check_engine  # Only for `trainjob doctor`.

        return check_engine(config)

    def __init__(self, config: ContainerBackendConfig | None = None) -> None:
        self._config = config or ContainerBackendConfig()
        self._runtimes = RuntimeCatalog(self._config.runtime_source.sources)

    @cached_property
    def _engine(self) -> Engine:
        return connect_engine(self._config)

    @cached_property
    def _store(self) -> JobStore:
        return JobStore(self._engine, self._config.namespace)

    @cached_property
    def _log_reader(self) -> LogReader:
        return LogReader(self._engine)

    def resolve_request(self, request: TrainJobRequest) -> TrainJobRequest:
        request = request.with_resource_interval(self._config.resource_interval)
        return code_location.resolve(request, self._config.code_uri or paths.code_folder().as_uri(), ("file",))

    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        request = self.resolve_request(request)
        return render_plan(request, self._get_raw_runtime(request), self._config)

    def get_place(self, ref: TrainJobRef | None) -> str | None:
        return ref.host if ref else self._store.get_engine_place()

    def get_checkpoints_uri(self, request: TrainJobRequest) -> str | None:
        return checkpoint_location.resolve_uri(request, self._config.checkpoints_uri)

    def dry_run(self, request: TrainJobRequest) -> None:
        self._check_engine(request, self.render(request))

    def _get_raw_runtime(self, request: TrainJobRequest) -> dict[str, Any]:
        if request.work.trainer is None and request.work.runtime is None:
            return {}
        return self._runtimes.get(self.get_runtime_ref(request).name)

    def read_versions(self, request: TrainJobRequest) -> Versions:
        runtime = self._get_raw_runtime(request)
        image = (request.work.trainer.image if request.work.trainer else None) or parse_runtime(runtime).trainer.image
        unknown = reuse.check_images(request, image)
        # A tag names the content that the engine has, unless each job pulls it again.
        content = self._engine.get_image_id(image) if unknown and self._config.pull_policy != "Always" else None
        unknown = [] if content else unknown
        return Versions({"image": content or image, "runtime": runtime}, (*unknown, *reuse.check_runtime(runtime)))

    def find_jobs(self, request: TrainJobRequest) -> Sequence[ExistingJob]:
        owned = self._store.list_owner_jobs(request.context.owner.key) if request.context.owner else []
        existing = [observations.to_existing_job(job) for job in owned]
        for name in list_other_names(request, existing):
            with suppress(JobNotFoundError):
                existing.append(observations.to_existing_job(self._store.get_by_name(name)))
        return existing

    def create(self, prepared: Prepared) -> TrainJobRef:
        request, plan = prepared.request, prepared.rendered
        secrets = read_secrets(request)
        self._check_engine(request, plan)
        runtime = dump_raw_runtime(self._get_raw_runtime(request)) if request.work.trainer else None
        self._store.make_room(request.require_name(), partial(_is_attempt, request))
        extra = {"host": socket.gethostname(), "runtime": runtime}
        job = self._store.create_job(request, prepared.attempt, strip_commands(plan), extra)
        self._launch_supervisor(job.ref, secrets)
        return job.ref

    def create_missing_parts(self, ref: TrainJobRef, request: TrainJobRequest) -> None:
        with suppress(JobNotFoundError):
            if self._store.get(ref).outcome is None and not supervisor.is_supervised(ref.uid):
                self._launch_supervisor(ref, read_secrets(request))

    def get_request(self, ref: TrainJobRef) -> TrainJobRequest:
        return observations.parse_request(self._store.get(ref))

    def get_ref(self, name: str) -> TrainJobRef:
        try:
            return self._get_by_name(name).ref
        except RecordLostError as error:
            return TrainJobRef(self.name, error.job.namespace, name, error.job.uid)

    def observe(self, ref: TrainJobRef) -> Observation:
        job = self._store.get(ref)
        self._ensure_supervised(job)
        return observations.observe_job(job, self._read_progress(job))

    def list_processes(self, ref: TrainJobRef) -> list[str]:
        try:
            job = self._store.get(ref)
        except JobNotFoundError:
            return []
        self._ensure_supervised(job)  # The supervisor stops the containers of an ended job.
        return [each.name for each in job.running_containers]

    def logs(self, ref: TrainJobRef, step: str, follow: bool = False) -> Iterator[str]:
        select_steps(ref.name, [known["name"] for known in self._store.get(ref).plan["steps"]], step)
        return self._stream_lines(ref, step, follow)

    def _stream_lines(self, ref: TrainJobRef, step: str, follow: bool) -> Iterator[str]:
        cursor: Mapping[str, Any] = {}
        while True:
            try:
                job = self._store.get(ref)
            except JobNotFoundError:
                return
            is_final, complete = not follow or job.outcome is not None, False
            while not complete:
                lines, cursor, complete = self._read_step(job, step, cursor, is_final, MAX_LOG_LINES)
                yield from lines
            if is_final:
                return
            self._ensure_supervised(job)
            time.sleep(_POLL_SECONDS)

    def tail(
        self,
        ref: TrainJobRef,
        cursor: Mapping[str, Any],
        job_ended: bool = False,
        max_lines: int = MAX_LOG_LINES,
        step: str | None = None,
    ) -> LogChunk:
        job = self._store.get(ref)

        def read_step(name: str, step_cursor: Any, limit: int) -> tuple[list[str], dict[str, Any], bool]:
            return self._read_step(job, name, step_cursor or {}, job_ended, limit)

        steps = select_steps(ref.name, [each["name"] for each in job.plan["steps"]], step)
        return tail_steps(steps, cursor, max_lines, read_step)

    def _read_step(
        self, job: ContainerJob, step: str, cursor: Mapping[str, Any], job_ended: bool, limit: int
    ) -> tuple[list[str], dict[str, Any], bool]:
        """Read the log of a step from a cursor on, across all its runs."""
        copy_result = job.get_copy_result(step)
        if copy_result is not None:
            first = int(cursor.get("lines", 0))
            copy_lines = list(copy_result["log"][first : first + max(0, limit)])
            last = first + len(copy_lines)
            return copy_lines, {"lines": last}, last == len(copy_result["log"])
        lines: list[str] = []
        run, position = int(cursor.get("run", 0)), ContainerLogCursor.from_dict(cursor)
        for container in job.list_runs(step):
            if container.run < run or container.is_new:
                continue
            position = position if container.run == run else ContainerLogCursor()
            run = container.run
            read = self._log_reader.read(container, position, job_ended, limit - len(lines))
            lines += read.lines
            position = read.cursor
            if not read.complete:
                return lines, {"run": run, **position.to_dict()}, False
        return lines, {"run": run, **position.to_dict()}, True

    def events(self, ref: TrainJobRef) -> list[Event]:
        return observations.list_events(self._store.get(ref))

    def suspend(self, ref: TrainJobRef) -> None:
        self._append_entry(ref, job_journal.SUSPEND, lambda job: not job.is_suspended)

    def resume(self, ref: TrainJobRef) -> None:
        self._append_entry(ref, job_journal.RESUME, lambda job: job.is_suspended)

    def _append_entry(self, ref: TrainJobRef, kind: str, is_needed: Callable[[ContainerJob], bool]) -> None:
        """Write a journal entry, unless the job has ended or does not need it."""
        while True:
            job = self._store.get(ref)
            if job.outcome is not None or not is_needed(job):
                return
            if self._store.append_entry(job, kind, {}):
                break
        if not supervisor.is_supervised(job.uid):
            self._launch_supervisor(ref)

    def cancel(self, ref: TrainJobRef, diagnosis: Diagnosis | None = None) -> None:
        with suppress(JobNotFoundError):
            self._end(ref, diagnosis)

    def _end(self, ref: TrainJobRef, diagnosis: Diagnosis | None = None, deleting: bool = False) -> ContainerJob:
        """Record the end of a job unless it has one, stop its containers, and return it as it was before the stop."""
        try:
            job = self._record_cancellation(ref, diagnosis)
        except RecordLostError as error:
            job = error.job
        except EngineRequestError:
            if not deleting:
                raise
            # A full disk has no space for the record.
            job = self._store.get(ref)
        stop_containers(self._engine, job.running_containers, job.plan.get("grace_seconds"))
        return job

    def _record_cancellation(self, ref: TrainJobRef, diagnosis: Diagnosis | None = None) -> ContainerJob:
        """Record the end of a job unless it has one, and return the job."""
        while True:
            job = self._store.get(ref)
            if job.outcome is not None:
                return job
            facts = Facts(cancelled=True, cancel_diagnosis=diagnosis)
            records = list(outcome.read_node_records(job, self._engine).values())
            entry = outcome.build_failed_entry(job, facts, self._engine.now(), records)
            if self._store.append_entry(job, job_journal.END, entry):
                return self._store.get(ref)

    def delete(self, ref: TrainJobRef) -> None:
        with suppress(JobNotFoundError):
            job = self._end(ref, deleting=True)
            self._store.remove_job(job, keep_containers=not self._config.auto_remove)

    def reap(self) -> list[str]:
        expired = []
        for job in self._store.list_jobs():
            seconds, ended = job.plan.get("delete_after_seconds"), observations.get_end_time(job)
            if seconds is not None and ended and self._engine.now() - ended > timedelta(seconds=seconds):
                self.delete(job.ref)
                expired.append(job.name)
        self._store.remove_orphans()
        code_location.remove_unused(paths.code_folder(), self._store.list_code_uris)
        return expired

    def get_job(self, name: str) -> TrainJob:
        job = self._get_by_name(name)
        return observations.build_train_job(job, self._read_progress(job))

    def list_jobs(self) -> list[TrainJob]:
        jobs = []
        for job in self._store.list_jobs():
            try:
                jobs.append(observations.build_train_job(job, self._read_progress(job)))
            except (TrainerError, ValueError, KeyError) as error:
                _log.warning("TrainJob %r is not listed: %s", job.name, error)
        return sorted(jobs, key=lambda job: job.creation_timestamp, reverse=True)

    def list_search_jobs(
        self, key: str, known: Collection[str]
    ) -> dict[str, tuple[TrainJobRef, TrainJobRequest, Observation] | None]:
        found: dict[str, tuple[TrainJobRef, TrainJobRequest, Observation] | None] = {}
        for name, job in self._store.list_search_jobs(key, known).items():
            found[name] = None
            if job is not None:
                self._ensure_supervised(job)
                observation = observations.observe_job(job, self._read_progress(job))
                found[name] = job.ref, observations.parse_request(job), observation
        return found

    def list_runtimes(self) -> list[Runtime]:
        return self._runtimes.list()

    def get_runtime(self, name: str) -> Runtime:
        return parse_runtime(self._runtimes.get(name))

    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        return list_runtime_packages(self, runtime)

    def _get_by_name(self, name: str) -> ContainerJob:
        try:
            naming.validate_name(name)
        except ValueError:
            raise JobNotFoundError(f"TrainJob {name!r} does not exist: this is not a valid job name") from None
        try:
            return self._store.get_by_name(name)
        except JobNotFoundError:
            self._store.check_record(f"{names.NAME_LABEL}={name}")
            raise

    def _read_progress(self, job: ContainerJob) -> Progress | None:
        if job.outcome is not None:
            recorded = job.entries[-1].data.get("progress")
            if not recorded:
                return None
            return Progress(**{**recorded, "objective": ObjectiveReport.parse(recorded.get("objective"))})
        first = job.get_current_container("node-0")
        return self._log_reader.read_progress(first) if first is not None and first.started else None

    def _check_engine(self, request: TrainJobRequest, plan: Mapping[str, Any]) -> None:
        """Refuse what this engine cannot do, or would ignore."""
        if self._engine.product == PODMAN and any(step.get("gpus") for step in plan["steps"]):
            raise UnsupportedError(
                "resources_per_node: Podman ignores gpu in requests of the Docker API; use Docker, or give all "
                'containers access (devices = ["nvidia.com/gpu=all"] in containers.conf) and set num_proc_per_node '
                "instead"
            )
        self._check_bind_mounts(plan)
        for role, source in request.initializer_sources():
            if source.storage_uri.startswith("file://"):
                self._check_file_source(role, source.storage_uri)

    def _check_bind_mounts(self, plan: Mapping[str, Any]) -> None:
        """Check that the folder of the checkpoints, the only one that containers write to, exists where they run."""
        folders = {m["source"] for s in plan["steps"] for m in s.get("mounts") or () if m["target"] == MOUNT_PATH}
        for folder in (Path(each) for each in folders if each.startswith("/")):
            self._check_local("Checkpoints uri", "pvc://<volume>")
            if not folder.is_dir():
                raise InvalidRequestError(f"Checkpoints uri: folder {folder} does not exist; create it")

    def _check_file_source(self, role: str, uri: str) -> None:
        self._check_local(f"initializer.{role}", "s3:// or hf://, or a volume of the engine as pvc://")
        try:
            path = parse_local_path(uri)
        except ValueError as error:
            raise InvalidRequestError(f"initializer.{role}.storage_uri: {error}") from error
        if not path.exists():
            raise InvalidRequestError(
                f"initializer.{role}.storage_uri: {path} does not exist; create it or fix the path"
            )

    def _check_local(self, field: str, instead: str) -> None:
        if not self._engine.is_local:
            raise UnsupportedError(
                f"{field}: file:// is a folder of this machine, and the engine at "
                f"{mask_credentials(self._engine.address)} runs on another one; use {instead}"
            )

    def _ensure_supervised(self, job: ContainerJob) -> None:
        """Start a supervisor if an action is due and none is executing it."""
        now = self._engine.now()
        action = reconcile.next_action(job, now)
        if isinstance(action, (reconcile.Wait, reconcile.Done)) or supervisor.is_supervised(job.uid):
            return
        overdue = _OVERDUE_LOCAL
        if job.claim.get("host") != socket.gethostname():
            is_slow = isinstance(action, (reconcile.Copy, reconcile.Start)) and not job.containers
            overdue = _OVERDUE_SLOW if is_slow else _OVERDUE_REMOTE
        if now - job.last_change > overdue:
            try:
                self._launch_supervisor(job.ref)
            except BackendUnavailableError as error:
                # The observation itself has succeeded.
                _log.warning("TrainJob %r has no supervisor: %s", job.name, error)

    def _launch_supervisor(self, ref: TrainJobRef, secrets: Mapping[str, str] | None = None) -> None:
        config = self._config.model_dump(mode="json")
        if self._engine.is_local:
            # The address that this process found; the environment of the supervisor may lead to another one.
            config["container_host"] = self._engine.address
        supervisor.launch_supervisor(ref, config, secrets or {})


def _is_attempt(request: TrainJobRequest, name: str) -> bool:
    """Return whether an attempt of a request has a name."""
    owner = request.context.owner
    if owner is None:
        return name == request.require_name()
    base = name.rpartition("-")[0] if name.rpartition("-")[2].isdecimal() else name
    return request.require_name() in (name, base) or naming.find_attempt(owner.slug, owner.key, name) is not None
