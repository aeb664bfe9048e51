"""LocalProcessBackend: TrainJobs as processes on this machine, the default backend."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from trainer_core.backends import initializer_sources
from trainer_core.backends.base import Backend, NameTakenError, Prepared
from trainer_core.backends.environment_secrets import read_secrets
from trainer_core.backends.follower import Follower
from trainer_core.backends.local import host, local_versions, logs, observations, processes, runtimes
from trainer_core.backends.local.job_record import (
    JobRecord,
    StepRecord,
    make_ref,
    predict_ref,
    read_events,
    utc_timestamp,
)
from trainer_core.backends.local.job_store import JobFolder, StateFolder, write_json
from trainer_core.backends.local.plan import render_plan
from trainer_core.backends.polling_follower import PollingFollower
from trainer_core.backends.runtime_packages import list_interpreter_packages
from trainer_core.backends.supervisor_process import start_supervisor
from trainer_core.base import naming
from trainer_core.base.errors import (
    BackendUnavailableError,
    ConflictError,
    InvalidRequestError,
    JobNotFoundError,
    TrainerError,
)
from trainer_core.base.text import missing_extra
from trainer_core.lifecycle.adoption import Decision, ExistingJob, list_other_names
from trainer_core.lifecycle.reuse import Versions
from trainer_core.model import checkpoint_location
from trainer_core.model.config import LocalProcessBackendConfig
from trainer_core.model.jobs import Diagnosis, Event, Observation, TrainJob, TrainJobRef
from trainer_core.model.logs import MAX_LOG_LINES, LogChunk, select_steps, tail_steps
from trainer_core.model.request import TrainJobRequest, list_options
from trainer_core.model.runtimes import Runtime
from trainer_core.node import env
from trainer_core.packaging import code_location, serializer

_log = logging.getLogger(__name__)
#: Time for the supervisor to end a job before its processes are killed.
_CANCEL_SECONDS = 15.0
#: Time for the supervisor of a finished job to exit before it is killed.
_EXIT_SECONDS = 1.0
#: Time for a killed supervisor to be gone, also on a busy machine.
_KILLED_SECONDS = 15.0
_POLL_SECONDS = 0.05


class LocalProcessBackend(Backend):
    """Runs TrainJobs as processes on this machine.

    Each job has a detached supervisor process, which runs the initializers and nodes and writes everything into the
    folder of the job. Any process that can read the folder can follow, suspend or delete the job. The job does not
    depend on the process that submitted it.
    """

    name: ClassVar[str] = "local"
    restarts_in_place: ClassVar[bool] = True
    accepts: ClassVar[frozenset[str]] = list_options("local")
    schemes: ClassVar[Collection[str]] = initializer_sources.SCHEMES

    def __init__(self, config: LocalProcessBackendConfig | None = None) -> None:
        self._config = config or LocalProcessBackendConfig()
        self._state = StateFolder(self._config.state_home)

    def resolve_request(self, request: TrainJobRequest) -> TrainJobRequest:
        request = request.with_resource_interval(self._config.resource_interval)
        return code_location.resolve(request, self._config.code_uri or self._state.code.as_uri(), ("file",))

    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        request = self.resolve_request(request)
        runtime = runtimes.get_runtime(self._state.runtimes, self.get_runtime_ref(request).name)
        plan = render_plan(request, runtime, self._state, self._config.checkpoints_uri)
        keep = {"jobs": self._config.keep_finished, "days": self._config.keep_finished_days}
        return {
            **plan,
            "keep_finished": keep,
            "keep_environments": not self._config.cleanup_venv,
            "max_parallel": self._config.max_parallel,
        }

    def read_versions(self, request: TrainJobRequest) -> Versions:
        runtime = runtimes.get_runtime(self._state.runtimes, self.get_runtime_ref(request).name)
        return local_versions.read_versions(request, runtime)

    def get_place(self, ref: TrainJobRef | None) -> str | None:
        return (ref or self._predict_ref("")).host

    def predict_ref(self, request: TrainJobRequest) -> TrainJobRef:
        return self._predict_ref(request.get_attempt_name())

    def _predict_ref(self, name: str) -> TrainJobRef:
        with suppress(OSError):  # The creation reports it.
            self._state.create_folders()
        return predict_ref(self._state, name)

    def get_checkpoints_uri(self, request: TrainJobRequest) -> str | None:
        return checkpoint_location.resolve_uri(
            request, self._config.checkpoints_uri or self._state.checkpoints.as_uri()
        )

    def find_jobs(self, request: TrainJobRequest) -> Sequence[ExistingJob]:
        # An entry of a search has no other name than that of its owner.
        part = (
            f"-{naming.hash_owner_key(request.context.owner.key)[:10]}"
            if request.context.owner and request.context.search
            else ""
        )
        owned = self._state.list_owned_names(request.context.owner.key, part) if request.context.owner else []
        jobs = [job for name in owned if (job := self._read_existing_job(name)) is not None]
        others = map(self._read_existing_job, list_other_names(request, jobs))
        return [*jobs, *(job for job in others if job is not None)]

    def _read_existing_job(self, name: str) -> ExistingJob | None:
        folder = self._state.job_folder(name)
        try:
            record = observations.read_record(folder)
            status = observations.observe_job(folder, self._make_ref(record)).status
            request = observations.read_request(folder)
        except JobNotFoundError:
            return None
        except InvalidRequestError as error:
            raise ConflictError(f"TrainJob {name!r} exists, but {error}") from error
        return ExistingJob(
            name=name,
            status=status,
            fingerprint=request.fingerprint(),
            owner_key=request.context.owner.key if request.context.owner else None,
            generation=request.context.owner.generation if request.context.owner else None,
            attempt=record.attempt,
        )

    def _end_earlier(self, request: TrainJobRequest, decision: Decision) -> None:
        if decision.ended_attempts:
            # Usually they have no processes. They have some if the supervisor and its guard were killed.
            processes.kill_job_processes([self.get_ref(name).uid for name in decision.ended_attempts])
        super()._end_earlier(request, decision)

    def create(self, prepared: Prepared) -> TrainJobRef:
        request, plan = prepared.request, prepared.rendered
        for role, source in request.initializer_sources():
            initializer_sources.check_source_available(role, source)
        secrets = read_secrets(request)
        _check_torchrun(plan)
        record = JobRecord(
            uid=uuid.uuid4().hex,
            name=request.require_name(),
            created=utc_timestamp(),
            attempt=prepared.attempt,
            runtime=plan["runtime"],
            host=host.get_host_identity(),
            steps=[StepRecord(step["name"]) for step in plan["steps"]],
            restarts=plan.get("restarts"),
        )
        try:
            with self._state.stage_job() as staged:
                _write_job(staged, request, plan, record)
                _link_kit(staged, self._state)
                self._start_supervisor(staged, record, secrets)
        except OSError as error:
            # Read after the staged folder was removed: a supervisor that is still starting can no longer claim it.
            if not self._was_created(record):
                raise BackendUnavailableError(
                    f"TrainJob {record.name!r} could not be written to {self._state.path}: {error.strerror or error}; "
                    "no job was created"
                ) from error
        return self._make_ref(record)

    def _start_supervisor(self, staged: JobFolder, record: JobRecord, secrets: Mapping[str, str]) -> None:
        """Start the supervisor, and wait until it has renamed the staged folder to the folder of the job."""
        finished = start_supervisor(
            "trainer_core.backends.local.supervisor",
            [str(staged.path)],
            stdin=json.dumps(secrets),
        )
        answer = finished.stdout.strip()
        if answer == "taken":
            raise NameTakenError(record.name)
        if answer != "created" and not self._was_created(record):
            reason = answer or (finished.stderr.strip().splitlines() or ["no output"])[-1]
            raise BackendUnavailableError(
                f"supervisor of TrainJob {record.name!r} did not start: {reason}; no job was created"
            )

    def _was_created(self, record: JobRecord) -> bool:
        """Return whether a supervisor that died or hangs without an answer had already created the job."""
        try:
            return observations.read_record(self._state.job_folder(record.name)).uid == record.uid
        except TrainerError:
            return False

    def get_request(self, ref: TrainJobRef) -> TrainJobRequest:
        return observations.read_request(self._get_folder(ref))

    def get_ref(self, name: str) -> TrainJobRef:
        return self._make_ref(observations.read_first_record(_get_job_folder(self._state, name)))

    def observe(self, ref: TrainJobRef) -> Observation:
        state = _get_state_folder(ref)
        try:
            return observations.observe_job(_get_job_folder(state, ref.name), ref)
        except JobNotFoundError:
            observations.check_same_folder(state, ref)
            raise

    def list_processes(self, ref: TrainJobRef) -> list[str]:
        return [f"process {pid}" for pid, _ in processes.find_processes([ref.uid])]

    def follow(self, ref: TrainJobRef, progress: bool = False) -> Follower:
        # The ref names the state folder, whichever one this backend is configured with.
        folder = _get_job_folder(_get_state_folder(ref), ref.name)
        version = partial(observations.read_version, folder)
        return PollingFollower(self, ref, progress, scope=("local", ref.namespace), read_version=version)

    def logs(self, ref: TrainJobRef, step: str, follow: bool = False) -> Iterator[str]:
        folder = self._get_folder(ref)
        select_steps(ref.name, _list_steps(folder), step)
        return logs.read_lines(folder, ref, step, follow)

    def tail(
        self,
        ref: TrainJobRef,
        cursor: Mapping[str, Any],
        job_ended: bool = False,
        max_lines: int = MAX_LOG_LINES,
        step: str | None = None,
    ) -> LogChunk:
        folder = self._get_folder(ref)

        def read_step(name: str, offset: int | None, limit: int) -> tuple[list[str], int, bool]:
            return logs.tail_lines(folder, ref, name, offset or 0, limit, job_ended)

        return tail_steps(select_steps(ref.name, _list_steps(folder), step), cursor, max_lines, read_step)

    def events(self, ref: TrainJobRef) -> list[Event]:
        return read_events(self._get_folder(ref).events, ref.name)

    def suspend(self, ref: TrainJobRef) -> None:
        self._set_desired(ref, suspend=True)

    def resume(self, ref: TrainJobRef) -> None:
        self._set_desired(ref, suspend=False)

    def cancel(self, ref: TrainJobRef, diagnosis: Diagnosis | None = None) -> None:
        try:
            self._set_desired(ref, cancel=True, because=diagnosis.to_dict() if diagnosis else None)
            grace = observations.read_grace_seconds(self._get_folder(ref))
            deadline = time.monotonic() + _CANCEL_SECONDS + grace
            while self.observe(ref).outcome is None and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
            if not observations.read_record(self._get_folder(ref)).is_finished:
                # The supervisor is stopped or dead, and so did not end the processes of the job.
                self._kill(ref)
        except JobNotFoundError:
            return

    def _kill(self, ref: TrainJobRef) -> None:
        folder = self._get_folder(ref)
        record = observations.read_first_record(folder)
        if record.supervisor and folder.is_supervised():
            observations.check_signals_possible(record, folder)
            processes.signal_supervisor(record.supervisor, signal.SIGKILL, folder.is_supervised)
            deadline = time.monotonic() + _KILLED_SECONDS
            while folder.is_supervised() and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        processes.kill_job_processes([ref.uid])

    def delete(self, ref: TrainJobRef) -> None:
        try:
            self.cancel(ref)
        except observations.ChangedStatusError:
            # A supervisor that is alive has been cancelled, and exits when its processes have ended.
            processes.kill_job_processes([ref.uid])
        with suppress(JobNotFoundError):
            # After the end of its job, the supervisor removes old jobs and exits.
            deadline = time.monotonic() + _EXIT_SECONDS
            while self._get_folder(ref).is_supervised() and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
            self._kill(ref)
            with self._lock_job(ref) as folder:
                _get_state_folder(ref).remove_folder(folder.path)

    def get_job(self, name: str) -> TrainJob:
        ref = self.get_ref(name)
        return observations.read_train_job(self._state.job_folder(name), ref)

    def list_jobs(self) -> list[TrainJob]:
        jobs = []
        for name in self._state.list_job_names():
            try:
                jobs.append(self.get_job(name))
            except (TrainerError, OSError, ValueError) as error:
                _log.warning("TrainJob %r is not listed: %s", name, error)
        return sorted(jobs, key=lambda job: job.creation_timestamp, reverse=True)

    def list_search_jobs(
        self, key: str, known: Collection[str]
    ) -> dict[str, tuple[TrainJobRef, TrainJobRequest, Observation] | None]:
        found: dict[str, tuple[TrainJobRef, TrainJobRequest, Observation] | None] = {}
        for name in self._state.list_search_names(key):
            folder, found[name] = self._state.job_folder(name), None
            if name not in known:
                try:
                    ref = self._make_ref(observations.read_record(folder))
                    found[name] = (ref, observations.read_request(folder), observations.observe_job(folder, ref))
                except JobNotFoundError:
                    del found[name]
        return found

    def list_runtimes(self) -> list[Runtime]:
        return [runtime.to_public() for runtime in runtimes.list_runtimes(self._state.runtimes)]

    def get_runtime(self, name: str) -> Runtime:
        return runtimes.get_runtime(self._state.runtimes, name).to_public()

    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        runtimes.get_runtime(self._state.runtimes, runtime.name)
        return list_interpreter_packages()

    def _make_ref(self, record: JobRecord) -> TrainJobRef:
        return make_ref(self._state, record)

    def _get_folder(self, ref: TrainJobRef) -> JobFolder:
        state = _get_state_folder(ref)
        folder = _get_job_folder(state, ref.name)
        try:
            observations.check_uid(folder, ref)
        except JobNotFoundError:
            observations.check_same_folder(state, ref)
            raise
        return folder

    @contextmanager
    def _lock_job(self, ref: TrainJobRef) -> Iterator[JobFolder]:
        """Keep other processes from changing the desired state of a job or removing it, and return its folder."""
        folder = self._get_folder(ref)
        try:
            with folder.lock_desired():
                # Checked again: another process may have deleted the job, and a new job may have its name.
                observations.check_uid(folder, ref)
                yield folder
        except FileNotFoundError as error:
            raise observations.job_not_found(ref.name, folder.path.parent) from error
        except OSError as error:
            raise BackendUnavailableError(
                f"TrainJob {ref.name!r} cannot be changed in {folder.path}: {error.strerror or error}; free some "
                "space, for which you can delete a TrainJob"
            ) from error

    def _set_desired(self, ref: TrainJobRef, **desired: Any) -> None:
        """Write the desired state and notify the supervisor. Does nothing for a job that has ended."""
        with self._lock_job(ref) as folder:
            record = observations.read_first_record(folder)
            current = folder.read_desired()
            if record.is_finished or (not folder.is_supervised() and record.has_reliable_lock()):
                return
            observations.check_signals_possible(record, folder)
            if not folder.is_supervised():
                return
            # A cancellation is final: suspend and resume do not replace it. Its author may have died before notifying.
            if not current.get("cancel"):
                reserve = folder.reserve if desired.get("cancel") else None
                write_json(folder.desired, {**current, **desired}, durable=True, reserve=reserve)
            if record.supervisor:
                processes.signal_supervisor(record.supervisor, signal.SIGUSR1, folder.is_supervised)


def _get_state_folder(ref: TrainJobRef) -> StateFolder:
    """Return the state folder that contains the job of a ref; not always the one this backend is configured with."""
    return StateFolder(Path(ref.namespace))


def _get_job_folder(state: StateFolder, name: str) -> JobFolder:
    """Return the folder of a job. The name is validated: '' or '../other' would lead out of the state folder."""
    try:
        return state.job_folder(naming.validate_name(name))
    except ValueError:
        raise observations.job_not_found(name, state.jobs) from None


def _list_steps(folder: JobFolder) -> list[str]:
    return [step.name for step in observations.read_record(folder).steps]


def _write_job(staged: JobFolder, request: TrainJobRequest, plan: dict[str, Any], record: JobRecord) -> None:
    staged.create_folders()
    if request.context.owner is not None:
        staged.owner_path(request.context.owner.key).touch(mode=0o600)
    if request.context.search is not None:
        staged.search_path(request.context.search.key).touch(mode=0o600)
    write_json(staged.request, request.to_dict(), durable=True)
    write_json(staged.plan, {**plan, "record": record.to_dict()})
    write_json(staged.status, record.to_dict())
    staged.allocate_reserve()
    if request.work.trainer is not None and request.work.trainer.code is not None:
        write_json(staged.payload, request.work.trainer.code.model_dump(mode="json"))


def _link_kit(staged: JobFolder, state: StateFolder) -> None:
    """Give a job the programs of its nodes, which are written only where they are missing or damaged."""
    kit = state.kits / serializer.compute_kit_digest()
    # First the link, then the time of the last use: the garbage collection reads them in the other order.
    # Relative, because a state folder can be moved or copied; to the real paths, because jobs/ can be a link.
    staged.code.symlink_to(os.path.relpath(kit.resolve(), state.jobs.resolve() / staged.name))
    try:
        serializer.ship(kit)
    except (FileExistsError, IsADirectoryError, NotADirectoryError):  # Not what it was written as.
        state.remove_folder(kit)
        serializer.ship(kit)
    os.utime(kit)


def _check_torchrun(plan: dict[str, Any]) -> None:
    """Check that this interpreter has torch if the job runs torchrun in it."""
    uses_torchrun = any(env.TORCHRUN in step["command"] for step in plan["steps"])
    if uses_torchrun and plan["environment"] is None and find_spec("torch") is None:
        what = f"runtime {plan['runtime']!r} (in {sys.executable})"
        message = f"{missing_extra(what, 'torch', 'torch')}, or use the runtime 'python'"
        raise BackendUnavailableError(message, transient=False)
