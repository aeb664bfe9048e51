"""DebugBackend: runs a job inside the calling process, where breakpoints and debuggers work.

`submit` returns when the training function has returned. The function is called once, whatever the number of nodes.
Jobs exist only in the memory of the process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TextIO

from trainer_core.backends import initializer_sources
from trainer_core.backends.base import Backend, NameTakenError, Prepared
from trainer_core.backends.environment_secrets import read_secrets
from trainer_core.backends.runtime_packages import list_interpreter_packages
from trainer_core.backends.supervisor_process import remove_job_variables
from trainer_core.base.errors import InvalidRequestError, JobNotFoundError, RuntimeNotFoundError, UnsupportedError
from trainer_core.fetch import cache, progress, schemes
from trainer_core.fetch.settings import FetchSettings
from trainer_core.fetch.source import FetchError
from trainer_core.lifecycle.adoption import ExistingJob
from trainer_core.lifecycle.diagnosis import Facts, StepFacts, build_failed_outcome, diagnose
from trainer_core.model import checkpoint_location
from trainer_core.model.config import DebugBackendConfig, LocalProcessBackendConfig
from trainer_core.model.jobs import (
    COMPLETE,
    FAILED,
    RUNNING,
    Diagnosis,
    Event,
    Observation,
    Outcome,
    Progress,
    Step,
    TrainJob,
    TrainJobRef,
    build_complete_outcome,
)
from trainer_core.model.logs import find_last_progress
from trainer_core.model.readable_log import format_log_line
from trainer_core.model.request import InitializerSource, TrainerRequest, TrainJobRequest, list_options
from trainer_core.model.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType
from trainer_core.node import bootstrap, env
from trainer_core.node.checkpoints import finish, release
from trainer_core.node.load_function import unpack_project
from trainer_core.node.progress import PREFIX, flush, reset
from trainer_core.node.project import ProjectError
from trainer_core.node.requirement import strip_options
from trainer_core.node.termination import parse_record, report_error, report_result

#: Framework of each runtime.
_RUNTIMES = {"python": "python", "torch-distributed": "torch"}
_NODE = "node-0"


@dataclass
class _DebugJob:
    request: TrainJobRequest
    ref: TrainJobRef
    attempt: int
    created: datetime
    folder: Path
    owner_key: str | None = None
    logs: dict[str, list[str]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    outcome: Outcome | None = None

    @property
    def status(self) -> str:
        return self.outcome.status if self.outcome else RUNNING

    @property
    def steps(self) -> list[str]:
        return _list_steps(self.request)

    def read_progress(self) -> Progress | None:
        return find_last_progress(reversed(self.logs.get(_NODE, [])))

    def append_event(self, reason: str, message: str) -> None:
        self.events.append(Event("TrainJob", self.ref.name, message, reason, datetime.now(timezone.utc)))


class DebugBackend(Backend):
    """Runs TrainJobs inside the calling process, one at a time."""

    name: ClassVar[str] = "debug"
    accepts: ClassVar[frozenset[str]] = list_options("debug")
    schemes: ClassVar[Collection[str]] = initializer_sources.SCHEMES

    def __init__(self, config: DebugBackendConfig | None = None) -> None:
        del config
        self._jobs: dict[str, _DebugJob] = {}
        # A job changes the environment and the output streams of the whole process. A job may submit another job.
        self._lock = threading.RLock()

    def resolve_request(self, request: TrainJobRequest) -> TrainJobRequest:
        return request  # In this process a project of any size needs no place.

    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        self.get_runtime(self.get_runtime_ref(request).name)
        trainer = request.work.trainer
        if trainer is not None and trainer.kind != "custom":
            raise UnsupportedError("the debug backend can only call functions; use a CustomTrainer with a function")
        if trainer is not None and trainer.packages:
            names = ", ".join(map(strip_options, trainer.packages))
            raise UnsupportedError(
                f"the debug backend runs in this interpreter; install {names} into it and remove packages_to_install"
            )
        request.check_options(self.name)
        sources = request.initializer_sources()
        for role, source in sources:
            initializer_sources.check_source_supported(role, source)
        checkpoint_location.build_variables(request, self.get_checkpoints_uri(request))
        if trainer is None and not sources:
            raise InvalidRequestError("the request has nothing to run; set a trainer, an initializer or both")
        return {"steps": _list_steps(request), "entry": trainer.code.entry if trainer and trainer.code else None}

    def find_jobs(self, request: TrainJobRequest) -> Sequence[ExistingJob]:
        key, name = request.context.owner.key if request.context.owner else None, request.get_attempt_name()
        jobs = (each for each in self._jobs.values() if each.ref.name == name or (key and each.owner_key == key))
        return [_to_existing_job(job) for job in jobs]

    def create(self, prepared: Prepared) -> TrainJobRef:
        request = prepared.request
        name = request.require_name()
        with self._lock:
            if name in self._jobs:
                raise NameTakenError(name)
            for role, source in request.initializer_sources():
                initializer_sources.check_source_available(role, source)
            read_secrets(request)
            ref = TrainJobRef(self.name, f"process-{os.getpid()}", name, uuid.uuid4().hex)
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_make_root(os.getpid())))
            created = datetime.fromisoformat(_utc_timestamp())
            owner_key = request.context.owner.key if request.context.owner else None
            job = self._jobs[name] = _DebugJob(request, ref, prepared.attempt, created, folder, owner_key)
            job.append_event("Created", f"TrainJob {name} is created")
            checkpoint_env = checkpoint_location.build_variables(request, self.get_checkpoints_uri(request))
            job.outcome = _run_job(job, self, checkpoint_env)
            job.append_event(job.status, str(job.outcome.diagnosis or f"TrainJob {name} is complete"))
            return ref

    def get_request(self, ref: TrainJobRef) -> TrainJobRequest:
        return self._get_job(ref).request

    def get_ref(self, name: str) -> TrainJobRef:
        if name not in self._jobs:
            known = ", ".join(self._jobs) or "none"
            raise JobNotFoundError(f"TrainJob {name!r} does not exist in this process; existing jobs: {known}")
        return self._jobs[name].ref

    def observe(self, ref: TrainJobRef) -> Observation:
        job = self._get_job(ref)
        return Observation(job.status, progress=job.read_progress(), outcome=job.outcome)

    def logs(self, ref: TrainJobRef, step: str, follow: bool = False) -> Iterator[str]:
        job = self._get_job(ref)
        if step not in job.steps:
            raise InvalidRequestError(
                f"TrainJob {ref.name!r} has no step {step!r}; its steps are {', '.join(job.steps)}"
            )
        return iter(list(job.logs.get(step, [])))

    def events(self, ref: TrainJobRef) -> list[Event]:
        return list(self._get_job(ref).events)

    def suspend(self, ref: TrainJobRef) -> None:
        """Do nothing: a job that a caller can refer to has already ended."""

    def resume(self, ref: TrainJobRef) -> None:
        """Do nothing: a job is never suspended."""

    def cancel(self, ref: TrainJobRef, diagnosis: Diagnosis | None = None) -> None:
        """Wait until a job that runs in another thread has ended: a function cannot be interrupted."""
        with self._lock:
            pass

    def delete(self, ref: TrainJobRef) -> None:
        # A job that runs in another thread is waited for, because it writes into its folder.
        with self._lock, contextlib.suppress(JobNotFoundError):
            job = self._get_job(ref)
            del self._jobs[ref.name]
            shutil.rmtree(job.folder, ignore_errors=True)

    def get_job(self, name: str) -> TrainJob:
        ref = self.get_ref(name)
        job = self._jobs[name]
        status = {COMPLETE: "Succeeded", FAILED: "Failed"}.get(job.status, "Running")
        return TrainJob(
            name=name,
            runtime=self.get_runtime(self.get_runtime_ref(job.request).name),
            steps=[Step(step, status, f"process-{os.getpid()}", device="cpu") for step in job.steps],
            num_nodes=1 if job.request.work.trainer else 0,
            creation_timestamp=job.created,
            status=job.status,
            uid=ref.uid,
            namespace=ref.namespace,
            labels=dict(job.request.job_metadata.labels),
            annotations=dict(job.request.job_metadata.annotations),
            reason=str(job.outcome.diagnosis) if job.outcome and job.outcome.diagnosis else None,
            progress=job.read_progress(),
        )

    def list_jobs(self) -> list[TrainJob]:
        return [self.get_job(name) for name in reversed(self._jobs)]

    def list_runtimes(self) -> list[Runtime]:
        return [self.get_runtime(name) for name in _RUNTIMES]

    def get_runtime(self, name: str) -> Runtime:
        if name not in _RUNTIMES:
            raise RuntimeNotFoundError(
                f"runtime {name!r} does not exist on the debug backend; use one of {', '.join(_RUNTIMES)}"
            )
        trainer = RuntimeTrainer(
            TrainerType.CUSTOM_TRAINER, _RUNTIMES[name], "this process", device="cpu", device_count="1"
        )
        trainer.set_command(("python",))
        return Runtime(name=name, trainer=trainer, kind=RuntimeKind.CLUSTER_TRAINING_RUNTIME)

    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        self.get_runtime(runtime.name)
        return list_interpreter_packages()

    def get_checkpoints_uri(self, request: TrainJobRequest) -> str | None:
        return checkpoint_location.resolve_uri(
            request, LocalProcessBackendConfig().state_home.as_uri() + "/checkpoints"
        )

    @cached_property
    def cache(self) -> Path:
        """Folder of what initializers fetch."""
        return Path(tempfile.mkdtemp(prefix="cache-", dir=_make_root(os.getpid())))

    def on_error(self, error: BaseException) -> None:
        """Do nothing. Called with the exception of a function while its environment and files still exist."""

    def _get_job(self, ref: TrainJobRef) -> _DebugJob:
        job = self._jobs.get(ref.name)
        if job is None or job.ref.uid != ref.uid:
            raise JobNotFoundError(
                f"TrainJob {ref.name!r} does not exist in this process; the debug backend keeps jobs in memory only"
            )
        return job


@functools.cache
def _make_root(pid: int) -> Path:
    """Return the folder of all jobs of a process, which is removed at its end, as no other one knows its jobs."""
    root = Path(tempfile.mkdtemp(prefix="trainjob-debug-"))
    atexit.register(_remove_root, root, pid)
    return root


def _remove_root(root: Path, pid: int) -> None:
    if os.getpid() == pid:  # And not a fork of the process.
        shutil.rmtree(root, ignore_errors=True)


def _list_steps(request: TrainJobRequest) -> list[str]:
    steps = [f"{role}-initializer" for role, _ in request.initializer_sources()]
    return steps + ([_NODE] if request.work.trainer else [])


def _to_existing_job(job: _DebugJob) -> ExistingJob:
    owner = job.request.context.owner
    key, generation = (owner.key, owner.generation) if owner else (None, None)
    return ExistingJob(job.ref.name, job.status, job.request.fingerprint(), key, generation, job.attempt)


def _run_job(job: _DebugJob, backend: DebugBackend, checkpoint_env: Mapping[str, str]) -> Outcome:
    started = _utc_timestamp()
    fetched: dict[str, str] = {}
    for role, source in job.request.initializer_sources():
        try:
            fetched[role] = _fetch(job, role, source, backend.cache)
        except (FetchError, OSError) as error:
            message = str(error) if isinstance(error, FetchError) else f"{type(error).__name__}: {error}"
            code = env.TRY_AGAIN if isinstance(error, FetchError) and error.retryable else 1
            job.logs[f"{role}-initializer"] = [f"{role}: {message}"]
            return _build_failed_outcome(job, started, f"{role}-initializer", {}, code)
    termination: Mapping[str, Any] = {}
    if job.request.work.trainer is not None and job.request.work.trainer.code is not None:
        termination, code = _call_function(job, job.request.work.trainer, checkpoint_env, backend.on_error)
        if code:
            return _build_failed_outcome(job, started, _NODE, termination, code)
    last = job.read_progress()
    return build_complete_outcome(
        job.ref,
        termination,
        started_at=started,
        finished_at=_utc_timestamp(),
        last_progress=last,
        fetched=fetched,
    )


def _build_failed_outcome(
    job: _DebugJob, started: str, step: str, termination: Mapping[str, Any], exit_code: int
) -> Outcome:
    log = job.logs.get(step, [])
    facts = StepFacts.from_record(step, termination, exit_code=exit_code, node=socket.gethostname(), log_tail=log)
    return build_failed_outcome(
        job.ref,
        diagnose(Facts(steps=[facts])),
        [termination],
        started_at=started,
        finished_at=_utc_timestamp(),
        last_progress=job.read_progress(),
    )


def _read_secrets(job: _DebugJob, role: str) -> dict[str, str]:
    """Return the secrets of the trainer or of one initializer by environment variable."""
    found = read_secrets(job.request).items()
    return {key.removeprefix(f"{role}."): value for key, value in found if key.startswith(f"{role}.")}


def _fetch(job: _DebugJob, role: str, source: InitializerSource, cache_folder: Path) -> str:
    """Fetch one source into the cache, link it into the folder of the job, and return its URI."""
    variables = initializer_sources.get_fetch_variables(role, source)
    variables.update(_read_secrets(job, role))
    with _copy_output(io.StringIO()):
        path, fetched = cache.fetch_to_cache(
            schemes.create_source(FetchSettings.from_env(role, variables)),
            cache_folder / role,
            progress.create_progress(role),
        )
    (job.folder / role).symlink_to(path)
    action = "fetched into" if fetched else "found in"
    job.logs[f"{role}-initializer"] = [f"{role}: {source.storage_uri} {action} {path}"]
    return path.as_uri()


def _call_function(
    job: _DebugJob,
    trainer: TrainerRequest,
    checkpoint_env: Mapping[str, str],
    on_error: Callable[[BaseException], None],
) -> tuple[dict[str, Any], int]:
    """Call the training function as the only process of a node; return its termination record and exit code."""
    log = io.StringIO()
    termination = job.folder / f"{_NODE}.json"
    payload = trainer.code.model_dump(mode="json") if trainer.code else {}
    project = trainer.code.project if trainer.code else None
    folder = job.folder / "function"
    modules = _import_from_project(project.model_dump(), folder) if project else contextlib.nullcontext()
    with _job_environment(job, trainer, termination, checkpoint_env), _copy_output(log), modules:
        code = _run_payload(payload, folder, on_error)
    job.logs[_NODE] = log.getvalue().splitlines()
    return parse_record(termination.read_bytes()) or {}, code


def _run_payload(payload: dict[str, Any], folder: Path, on_error: Callable[[BaseException], None]) -> int:
    """Call the function, write its termination record, and return the exit code that its process would have."""
    reset()
    try:
        value = bootstrap.call(payload, folder)
    except SystemExit as stop:
        if not bootstrap.is_success(stop):
            stop = stop.with_traceback(bootstrap.strip_internal_frames(stop.__traceback__))
            report_error(stop)
            on_error(stop)
            return stop.code if isinstance(stop.code, int) else 1
        value = None
    except KeyboardInterrupt:  # The user leaves the debugger, or ends this process.
        raise
    except BaseException as error:  # noqa: BLE001 -- boundary of the user's function: any exception fails the job
        error = error.with_traceback(bootstrap.strip_internal_frames(error.__traceback__))
        report_error(error)
        bootstrap.print_traceback(error)
        on_error(error)
        return 1
    finally:
        flush()
        release()
    report_result(value)
    finish()
    return 0


@contextlib.contextmanager
def _import_from_project(project: Mapping[str, Any], parent: Path) -> Iterator[None]:
    """Let the job import its own copies of the modules of its project, and restore those of this process afterwards."""
    parent.mkdir(mode=0o700, exist_ok=True)
    tops: set[str] = set()
    with contextlib.suppress(ProjectError):  # The function cannot be loaded, and reports it.
        files = Path(unpack_project(project, str(parent)))
        tops.update(path.name for root in project["roots"] for path in (files / root).iterdir())
    # Modules that this process runs on stay.
    names = {top.removesuffix(".py") for top in tops} - sys.stdlib_module_names - {"trainer_core"}

    def remove() -> dict[str, Any]:
        found = [name for name in sys.modules if name.partition(".")[0] in names and name != "__main__"]
        return {name: sys.modules.pop(name) for name in found}

    path, modules = list(sys.path), remove()
    try:
        yield
    finally:
        remove()
        sys.modules.update(modules)
        sys.path[:] = path


@contextlib.contextmanager
def _copy_output(log: io.StringIO) -> Iterator[None]:
    """Copy standard output and standard error of this process to a log."""
    out, err = _Tee(log, sys.stdout), _Tee(log, sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


@contextlib.contextmanager
def _job_environment(
    job: _DebugJob, trainer: TrainerRequest, termination: Path, checkpoint_env: Mapping[str, str]
) -> Iterator[None]:
    """Set the environment variables of the job; restore them, SIGTERM, import path and working directory afterwards."""
    (job.folder / "output").mkdir(mode=0o700, exist_ok=True)
    launcher = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _find_free_port(),
    }
    paths = {env.DATASET_PATH: "dataset", env.MODEL_PATH: "model", env.OUTPUT_PATH: "output"}
    job_variables = {
        env.NAME: job.ref.name,
        env.PAYLOAD: str(job.folder / "payload.json"),  # A launcher's mark; the payload itself is in memory.
        env.TERMINATION_LOG: str(termination),
        env.RESULT_URI: trainer.result_uri or "",
        **{name: str(job.folder / path) for name, path in paths.items()},
        **checkpoint_env,
    }
    before, handler, path, folder = dict(os.environ), signal.getsignal(signal.SIGTERM), list(sys.path), Path.cwd()
    secrets = _read_secrets(job, "trainer")
    for name in before.keys() - remove_job_variables(before).keys():
        del os.environ[name]
    os.environ.update({**launcher, **job.request.job_env, **trainer.literal_env, **secrets, **job_variables})
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})
        os.chdir(folder)
        sys.path[:] = path  # Each job adds its folder: thousands of them make each import slow.
        if signal.getsignal(signal.SIGTERM) is not handler:
            signal.signal(signal.SIGTERM, handler)


class _Tee(io.TextIOBase):
    """Writes to a log and to a stream for people, which gets progress as text."""

    def __init__(self, log: TextIO, stream: TextIO) -> None:
        self._log, self._stream = log, stream

    def write(self, text: str) -> int:
        self._log.write(text)
        if text.startswith(PREFIX):  # A report is one write.
            line = format_log_line(text.removesuffix("\n"))
            self._stream.write("" if line is None else f"{line}\n")
        else:
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


def _find_free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _utc_timestamp() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
