"""LocalProcessBackend: TrainJobs as processes on this machine, the embedded default."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from trainer_core import naming, packaging
from trainer_core.attempts import Found
from trainer_core.backends import fetching_here
from trainer_core.backends.base import Backend, NameTakenError
from trainer_core.backends.following import MOST
from trainer_core.backends.local import observe, plan, runtimes, tailing
from trainer_core.backends.local.files import Home, JobFolder, read_json, write_json
from trainer_core.backends.local.record import Record, StepRecord, now_text
from trainer_core.configs import LocalProcessBackendConfig
from trainer_core.errors import (
    BackendUnavailableError,
    ConflictError,
    InvalidRequestError,
    JobNotFoundError,
    TrainerError,
)
from trainer_core.fetching.settings import PREFIX
from trainer_core.inside import contract
from trainer_core.jobs import Event, TrainJob
from trainer_core.observation import Observation, Tail
from trainer_core.outcome import Diagnosis
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest
from trainer_core.runtimes import Runtime

__all__ = ["LocalProcessBackend"]

_log = logging.getLogger(__name__)
_CANCEL_SECONDS = 15.0
_LEAVE_SECONDS = 1.0
_LOOK_SECONDS = 0.05
#: Environment variables that one job has from its backend or launcher, and that no other shall inherit.
_OF_ONE_JOB = frozenset(
    {
        *(contract.PAYLOAD, contract.TERMINATION_LOG, contract.RESULT_URI, contract.NAME, contract.UID),
        *(contract.DATASET_PATH, contract.MODEL_PATH, contract.OUTPUT_PATH),
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    }
)
_OF_ONE_JOB_BEGINNINGS = (PREFIX, "PET_", "TORCHELASTIC_")


class LocalProcessBackend(Backend):
    """TrainJobs as processes on this machine.

    A detached supervisor for each job runs its initializers and nodes and writes everything into the job's folder,
    so any process that sees the folder can follow, suspend or delete the job, and none is needed for it to go on.

    Args:
        config: Where the state lies and how long finished jobs are kept.
    """

    name: ClassVar[str] = "local"
    accepts: ClassVar[frozenset[str]] = frozenset({"Name", "Labels", "Annotations", "ActiveDeadlineSeconds", "Suspend"})

    def __init__(self, config: LocalProcessBackendConfig | None = None) -> None:
        self._config = config or LocalProcessBackendConfig()
        self._home = Home(self._config.state_home)

    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        name = request.runtime.name if request.runtime else self.default_runtime
        rendered = plan.render(request, runtimes.get(self._home.runtimes, name), self._home)
        keep = {"jobs": self._config.keep_finished, "days": self._config.keep_finished_days}
        return {**rendered, "keep_finished": keep, "keep_environments": not self._config.cleanup_venv}

    def find(self, request: TrainJobRequest) -> Sequence[Found]:
        found = (self._found(name) for name in self._home.job_names() if self._may_concern(name, request))
        return [job for job in found if job is not None]

    def _may_concern(self, name: str, request: TrainJobRequest) -> bool:
        """Say by its name alone whether a job can be the request's or its owner's, so that few of many are read."""
        number = name.rpartition("-")[2]
        attempt = int(number) if number.isdecimal() and request.owner else 0
        return name in (request.attempt_name(), request.attempt_name(attempt))

    def _found(self, name: str) -> Found | None:
        folder = self._home.job(name)
        try:
            record = observe.read(folder)
            status = observe.observe(folder, self._ref(record)).status
            request = observe.request(folder)
        except JobNotFoundError:
            return None
        except InvalidRequestError as error:
            raise ConflictError(f"TrainJob {name!r} exists, but {error}") from error
        return Found(
            name=name,
            status=status,
            fingerprint=request.fingerprint(),
            owner_key=request.owner.key if request.owner else None,
            generation=request.owner.generation if request.owner else None,
            attempt=record.attempt,
        )

    def create(self, request: TrainJobRequest, attempt: int) -> TrainJobRef:
        plan_ = self.render(request)
        for role, source in fetching_here.sources(request):
            fetching_here.check_here(role, source)
        _check_launcher(plan_)
        record = Record(
            uid=uuid.uuid4().hex,
            name=request.require_name(),
            created=now_text(),
            attempt=attempt,
            runtime=plan_["runtime"],
            steps=[StepRecord(step["name"]) for step in plan_["steps"]],
        )
        try:
            with self._home.staged() as staged:
                _fill(staged, request, plan_, record)
                self._launch(staged, record, request)
        except OSError as error:
            raise BackendUnavailableError(
                f"TrainJob {record.name!r} could not be written under {self._home.path}: {error.strerror or error}; "
                "nothing was created"
            ) from error
        return self._ref(record)

    def _launch(self, staged: JobFolder, record: Record, request: TrainJobRequest) -> None:
        """Start the supervisor and hear whether it made the staged folder the job."""
        secrets = {key: value.get_secret_value() for key, value in request.literal_secrets.items()}
        command = [sys.executable, "-m", "trainer_core.backends.local.supervisor", str(staged.path)]
        finished = subprocess.run(
            command,
            input=json.dumps(secrets),
            capture_output=True,
            # Python looks for modules where it is started: not where the submitter happens to stand.
            cwd=self._home.path,
            env=_supervisor_environment(),
            start_new_session=True,
            check=False,
            text=True,
        )
        answer = finished.stdout.strip()
        if answer == "taken":
            raise NameTakenError(record.name)
        if answer != "created" and not self._exists(record):
            reason = answer or (finished.stderr.strip().splitlines() or ["no answer"])[-1]
            raise BackendUnavailableError(
                f"the supervisor of TrainJob {record.name!r} did not start: {reason}; nothing was created"
            )

    def _exists(self, record: Record) -> bool:
        """Whether a supervisor that gave no answer made the job all the same, and died then."""
        try:
            return observe.read(self._home.job(record.name)).uid == record.uid
        except TrainerError:
            return False

    def request(self, ref: TrainJobRef) -> TrainJobRequest:
        return observe.request(self._folder(ref))

    def ref(self, name: str) -> TrainJobRef:
        return self._ref(observe.read(_named(self._home, name)))

    def observe(self, ref: TrainJobRef) -> Observation:
        return observe.observe(_named(self._home_of(ref), ref.name), ref)

    def logs(self, ref: TrainJobRef, step: str, follow: bool = False) -> Iterator[str]:
        folder = self._folder(ref)
        steps = [known.name for known in observe.read(folder).steps]
        if step not in steps:
            raise InvalidRequestError(f"TrainJob {ref.name!r} has no step {step!r}; it has {', '.join(steps)}")
        return tailing.lines(folder, ref, step, follow)

    def tail(self, ref: TrainJobRef, place: Mapping[str, Any], whole: bool = False, most: int = MOST) -> Tail:
        folder = self._folder(ref)
        lines: list[tuple[str, str]] = []
        reached, complete = dict(place), True
        for step in [known.name for known in observe.read(folder).steps]:
            room = most - len(lines)
            new, reached[step], all_ = tailing.some(folder, ref, step, int(place.get(step, 0)), room, whole)
            lines += [(step, line) for line in new]
            complete = complete and all_
        return Tail(lines, reached, complete)

    def events(self, ref: TrainJobRef) -> list[Event]:
        return observe.events(self._folder(ref).events, ref.name)

    def suspend(self, ref: TrainJobRef) -> None:
        self._wish(ref, suspend=True)

    def resume(self, ref: TrainJobRef) -> None:
        self._wish(ref, suspend=False)

    def cancel(self, ref: TrainJobRef, because: Diagnosis | None = None) -> None:
        try:
            self._wish(ref, cancel=True, because=because.model_dump(mode="json") if because else None)
            end = time.monotonic() + _CANCEL_SECONDS
            while self.observe(ref).outcome is None and time.monotonic() < end:
                time.sleep(_LOOK_SECONDS)
            if self.observe(ref).outcome is None:
                self._end_by_force(ref)
        except JobNotFoundError:
            return

    def _end_by_force(self, ref: TrainJobRef) -> None:
        """End a supervisor that does not answer, and what it started."""
        from trainer_core.backends.local import processes  # psutil costs 30 ms that only this needs

        folder = self._folder(ref)
        supervisor = observe.read(folder).supervisor
        if supervisor and folder.supervised():
            processes.kill(supervisor)
        processes.end_all(ref.uid)

    def delete(self, ref: TrainJobRef) -> None:
        self.cancel(ref)
        with suppress(JobNotFoundError):
            # The supervisor of a job that has ended looks after old jobs and leaves.
            end = time.monotonic() + _LEAVE_SECONDS
            while self._folder(ref).supervised() and time.monotonic() < end:
                time.sleep(_LOOK_SECONDS)
            self._end_by_force(ref)
            # Asked again: another deleter may have been faster, and the name have passed to a new job.
            self._home_of(ref).discard(self._folder(ref))

    def get_job(self, name: str) -> TrainJob:
        ref = self.ref(name)
        return observe.train_job(self._home.job(name), ref)

    def list_jobs(self) -> list[TrainJob]:
        jobs = []
        for name in self._home.job_names():
            try:
                jobs.append(self.get_job(name))
            except (TrainerError, OSError, ValueError) as error:
                _log.warning("job %r is left out of the list: %s", name, error)
        return sorted(jobs, key=lambda job: job.creation_timestamp, reverse=True)

    def list_runtimes(self) -> list[Runtime]:
        return [runtime.public() for runtime in runtimes.list_all(self._home.runtimes)]

    def get_runtime(self, name: str) -> Runtime:
        return runtimes.get(self._home.runtimes, name).public()

    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        runtimes.get(self._home.runtimes, runtime.name)
        return sorted(
            {f"{found.metadata['Name']}=={found.version}" for found in metadata.distributions()}, key=str.lower
        )

    def _ref(self, record: Record) -> TrainJobRef:
        return TrainJobRef(self.name, str(self._home.path), record.name, record.uid)

    def _home_of(self, ref: TrainJobRef) -> Home:
        """A ref says where its job lies, whatever home this backend was made with."""
        return Home(Path(ref.namespace))

    def _folder(self, ref: TrainJobRef) -> JobFolder:
        folder = _named(self._home_of(ref), ref.name)
        observe.check_is(folder, ref)
        return folder

    def _wish(self, ref: TrainJobRef, **wish: Any) -> None:
        """Write down what is wanted and tell the supervisor, if the job has not ended."""
        folder = self._folder(ref)
        record = observe.read(folder)
        if record.ended or not folder.supervised():
            return
        write_json(folder.desired, {**_desired(folder), **wish})
        if record.supervisor:
            with suppress(ProcessLookupError):
                os.kill(record.supervisor, signal.SIGUSR1)


def _named(home: Home, name: str) -> JobFolder:
    """The folder of a job. Never a path: a name such as '' or '../other' would lead out of the home."""
    try:
        return home.job(naming.validate_name(name))
    except ValueError:
        raise observe.no_such_job(name, home.jobs) from None


def _fill(staged: JobFolder, request: TrainJobRequest, plan_: dict[str, Any], record: Record) -> None:
    """Write everything of a job but its running."""
    staged.make_folders()
    write_json(staged.request, request.to_dict())
    write_json(staged.plan, plan_)
    write_json(staged.status, record.to_dict())
    staged.make_reserve()
    packaging.ship(staged.code)
    if request.trainer is not None and request.trainer.code is not None:
        write_json(staged.payload, request.trainer.code.model_dump(mode="json"))


def _check_launcher(plan_: dict[str, Any]) -> None:
    """Without packages of its own a job runs in this interpreter: torchrun must be here."""
    uses_torchrun = any("torch.distributed.run" in step["command"] for step in plan_["steps"])
    if uses_torchrun and plan_["environment"] is None and find_spec("torch") is None:
        raise BackendUnavailableError(
            f"runtime {plan_['runtime']!r} needs torch, which {sys.executable} has not: install "
            "'trainjob-workflows[torch]', or use the runtime 'python'"
        )


def _supervisor_environment() -> dict[str, str]:
    """The job's environment is the submitter's, without what a job that submits has from its own backend."""
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in _OF_ONE_JOB and not key.startswith(_OF_ONE_JOB_BEGINNINGS)
    }
    root = str(Path(__file__).parents[3])
    search = [str(Path(entry).absolute()) for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    env["PYTHONPATH"] = os.pathsep.join([root, *search])
    return env


def _desired(folder: JobFolder) -> dict[str, Any]:
    try:
        return dict(read_json(folder.desired))
    except (FileNotFoundError, ValueError):
        return {}
