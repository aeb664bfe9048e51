"""DebugBackend: the job runs inside the calling process, where breakpoints work.

`submit` returns when the training function has returned. It is one process whatever the number of nodes, and its
jobs are forgotten with the process.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, TextIO

from trainer_core import diagnosis
from trainer_core.attempts import Found
from trainer_core.backends.base import Backend, NameTakenError
from trainer_core.configs import DebugBackendConfig
from trainer_core.diagnosis import Facts, StepFacts
from trainer_core.errors import InvalidRequestError, JobNotFoundError, RuntimeNotFoundError, UnsupportedError
from trainer_core.inside import bootstrap, contract, result
from trainer_core.inside.initialize import fetch, local_path
from trainer_core.inside.progress import parse_progress
from trainer_core.jobs import Event, Step, TrainJob
from trainer_core.observation import COMPLETE, FAILED, Observation, Progress
from trainer_core.outcome import Outcome, artifacts_of, metrics_of
from trainer_core.ref import TrainJobRef
from trainer_core.request import InitializerSource, TrainJobRequest
from trainer_core.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType

__all__ = ["DebugBackend"]

_RUNTIMES = {"python": "python", "torch-distributed": "torch"}


@dataclass
class _Job:
    """What is remembered of a job."""

    request: TrainJobRequest
    ref: TrainJobRef
    attempt: int
    created: datetime
    folder: Path
    logs: dict[str, list[str]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    outcome: Outcome | None = None


class DebugBackend(Backend):
    """TrainJobs inside the calling process, one after the other.

    Args:
        config: There is nothing to configure.
    """

    name: ClassVar[str] = "debug"
    accepts: ClassVar[frozenset[str]] = frozenset({"Name", "Labels", "Annotations"})

    def __init__(self, config: DebugBackendConfig | None = None) -> None:
        del config
        self._jobs: dict[str, _Job] = {}

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
        if trainer is None and not any(_sources(request)):
            raise InvalidRequestError("the request has neither a trainer nor an initializer: there is nothing to run")
        return {"steps": _step_names(request), "entry": trainer.code.entry if trainer and trainer.code else None}

    def find(self, request: TrainJobRequest) -> Sequence[Found]:
        key = request.owner.key if request.owner else None
        return [_found(job) for job in self._jobs.values() if _concerns(job, request.attempt_name(), key)]

    def create(self, request: TrainJobRequest, attempt: int) -> TrainJobRef:
        name = request.require_name()
        if name in self._jobs:
            raise NameTakenError(name)
        for role, source in _sources(request):
            _check_source(role, source)
        ref = TrainJobRef(self.name, f"process-{os.getpid()}", name, uuid.uuid4().hex)
        folder = Path(tempfile.mkdtemp(prefix=f"trainjob-{name}-"))
        job = self._jobs[name] = _Job(request, ref, attempt, datetime.now(timezone.utc), folder)
        _event(job, "Created", f"TrainJob {name} is created")
        job.outcome = _run(job)
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
        seen = [parse_progress(line) for line in job.logs.get("node-0", [])]
        last = next((data for data in reversed(seen) if data is not None), None)
        progress = Progress(last.get("step"), last.get("total"), last.get("metrics") or {}) if last else None
        return Observation(job.outcome.status if job.outcome else "Running", progress=progress, outcome=job.outcome)

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

    def cancel(self, ref: TrainJobRef) -> None:
        """Succeed: a job that can be seen from outside has ended."""

    def delete(self, ref: TrainJobRef) -> None:
        with contextlib.suppress(JobNotFoundError):
            del self._jobs[self._job(ref).ref.name]

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

    def _job(self, ref: TrainJobRef) -> _Job:
        job = self._jobs.get(ref.name)
        if job is None or job.ref.uid != ref.uid:
            raise JobNotFoundError(
                f"TrainJob {ref.name!r} is not one of this process; the debug backend forgets with it"
            )
        return job


def _run(job: _Job) -> Outcome:
    started = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    fetched = {role: _fetch(job, role, source) for role, source in _sources(job.request)}
    left: dict[str, Any] = {"result": fetched or None}
    if job.request.trainer is not None and job.request.trainer.code is not None:
        left = _call(job, job.request.trainer.code.model_dump(mode="json"), job.request.trainer.env)
    error = left.get("error")
    value = left.get("result")
    return Outcome(
        ref=job.ref.to_dict(),
        status=FAILED if error else COMPLETE,
        result=value,
        metrics=metrics_of(value),
        artifacts={**fetched, **artifacts_of(value)},
        diagnosis=diagnosis.diagnose(Facts(steps=[_facts(error, job.logs["node-0"])])) if error else None,
        started_at=started,
        finished_at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        result_truncated=bool(left.get("truncated")),
        result_note=left.get("note"),
    )


def _call(job: _Job, payload: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    """Call the function as a node's only process would, and return what it leaves."""
    lines = io.StringIO()
    try:
        with _environment(job, env), contextlib.redirect_stdout(_Tee(sys.stdout, lines)):
            value = bootstrap.call(payload, job.folder / "function")
        encoded = result.encode_result(result.result_record(value))
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- whatever the user's function raises ends the job only
        users = error.with_traceback(bootstrap.users_part(error.__traceback__))
        encoded = result.encode_error(result.error_record(users))
    finally:
        job.logs["node-0"] = lines.getvalue().splitlines()
    return dict(json.loads(encoded))


@contextlib.contextmanager
def _environment(job: _Job, env: dict[str, str]) -> Iterator[None]:
    paths = {contract.DATASET_PATH: "dataset", contract.MODEL_PATH: "model", contract.OUTPUT_PATH: "output"}
    (job.folder / "output").mkdir(mode=0o700, exist_ok=True)
    launcher = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _free_port(),
    }
    before = dict(os.environ)
    os.environ.update({**launcher, **env, **{key: str(job.folder / name) for key, name in paths.items()}})
    os.environ[contract.NAME] = job.ref.name
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class _Tee(io.TextIOBase):
    """Writes to the terminal and to the job's log."""

    def __init__(self, *targets: TextIO) -> None:
        self._targets = targets

    def write(self, text: str) -> int:
        for target in self._targets:
            target.write(text)
        return len(text)

    def flush(self) -> None:
        for target in self._targets:
            target.flush()


def _fetch(job: _Job, role: str, source: InitializerSource) -> str:
    where, _ = fetch(
        local_path(source.storage_uri), job.folder / "cache", list(source.ignore_patterns or ()), source.link
    )
    (job.folder / role).symlink_to(where)
    job.logs[f"{role}-initializer"] = [f"{role}: {source.storage_uri} fetched into {where}"]
    return where.as_uri()


def _sources(request: TrainJobRequest) -> list[tuple[str, InitializerSource]]:
    pairs = (
        (("dataset", request.initializer.dataset), ("model", request.initializer.model)) if request.initializer else ()
    )
    return [(role, source) for role, source in pairs if source is not None]


def _check_source(role: str, source: InitializerSource) -> None:
    try:
        path = local_path(source.storage_uri)
    except ValueError as error:
        raise InvalidRequestError(f"initializer.{role}.storage_uri: {error}") from error
    if not path.exists():
        raise InvalidRequestError(
            f"initializer.{role}.storage_uri: {path} does not exist; make it first, or mend the path"
        )


def _step_names(request: TrainJobRequest) -> list[str]:
    return [f"{role}-initializer" for role, _ in _sources(request)] + (["node-0"] if request.trainer else [])


def _step_status(status: str) -> str:
    return {COMPLETE: "Succeeded", FAILED: "Failed"}.get(status, "Running")


def _concerns(job: _Job, name: str, owner_key: str | None) -> bool:
    return job.ref.name == name or (
        owner_key is not None and job.request.owner is not None and job.request.owner.key == owner_key
    )


def _found(job: _Job) -> Found:
    owner = job.request.owner
    status = job.outcome.status if job.outcome else "Running"
    key, generation = (owner.key, owner.generation) if owner else (None, None)
    return Found(job.ref.name, status, job.request.fingerprint(), key, generation, job.attempt)


def _facts(error: dict[str, Any], log: Sequence[str]) -> StepFacts:
    return StepFacts(
        "node-0",
        exit_code=1,
        node=socket.gethostname(),
        error_type=error.get("type"),
        error_message=str(error.get("message", "")),
        traceback=error.get("traceback"),
        log_tail=list(log),
    )


def _event(job: _Job, reason: str, message: str) -> None:
    job.events.append(Event("TrainJob", job.ref.name, message, reason, datetime.now(timezone.utc)))


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
