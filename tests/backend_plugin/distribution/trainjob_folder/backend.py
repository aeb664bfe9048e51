"""FolderBackend: `submit` runs a TrainJob as a process, and returns when that has ended.

A TrainJob is a folder with `job.json`, `node-0.log`, `node-0.json`, which the node writes, and `outcome.json`. The
submitting process holds a lock on `job.json`: who can take it knows that the process has ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from trainer_core.backends.base import Backend, NameTakenError
from trainer_core.backends.environment_secrets import read_secrets
from trainer_core.backends.runtime_packages import list_interpreter_packages
from trainer_core.base.errors import InvalidRequestError, JobNotFoundError, RuntimeNotFoundError, UnsupportedError
from trainer_core.lifecycle.adoption import ExistingJob
from trainer_core.lifecycle.diagnosis import Facts, StepFacts, build_failed_outcome, diagnose
from trainer_core.model import checkpoint_location
from trainer_core.model.jobs import Event, Observation, Outcome, Step, TrainJob, TrainJobRef, build_complete_outcome
from trainer_core.model.logs import find_last_progress
from trainer_core.model.request import TrainJobRequest, list_options
from trainer_core.model.runtimes import Runtime, RuntimeTrainer, TrainerType
from trainer_core.model.storage_schemes import check_scheme
from trainer_core.node import env
from trainer_core.node.requirement import strip_options
from trainer_core.node.termination import parse_record
from trainer_core.packaging import serializer
from trainjob_folder.config import FolderBackendConfig
from trainjob_folder.options import FolderFields

NODE, RUNTIME = "node-0", "python"


class FolderBackend(Backend):
    """Runs a TrainJob in a process, with what is installed here."""

    name = "folder"
    accepts = list_options("folder") | {"FolderSpec"}
    schemes = ()
    default_runtime = RUNTIME

    def __init__(self, config=None):
        self.folder = (config or FolderBackendConfig()).folder.expanduser().absolute()
        self.folder.mkdir(parents=True, exist_ok=True)

    def render(self, request):
        self.get_runtime(request.work.runtime.name if request.work.runtime else RUNTIME)
        for role, source in request.initializer_sources():
            check_scheme(role, source.storage_uri, self.schemes, "by the folder backend")
        trainer = request.work.trainer
        if trainer is None:
            raise InvalidRequestError("the request has nothing to run; set a trainer with a function")
        if trainer.code is None:
            raise UnsupportedError("the folder backend calls functions; use a CustomTrainer with a function")
        if trainer.packages:
            names = ", ".join(map(strip_options, trainer.packages))
            raise UnsupportedError(f"the folder backend installs nothing: install {names} into it")
        request.check_options(self.name, self.accepts)
        variables = {
            "RANK": "0",
            "WORLD_SIZE": "1",
            **request.job_env,
            **trainer.literal_env,
            env.RESOURCE_INTERVAL: "0",
            env.RESULT_URI: trainer.result_uri or "",
            **checkpoint_location.build_variables(request, self.get_checkpoints_uri(request)),
        }
        nice = (request.work.extensions.get("folder") or FolderFields()).nice
        return {"payload": serializer.payload(trainer.code.model_dump()), "env": variables, "nice": nice}

    def get_checkpoints_uri(self, request):
        return checkpoint_location.resolve_uri(request, (self.folder / ".checkpoints").as_uri())

    def find_jobs(self, request):
        owner, name, found = request.context.owner, request.get_attempt_name(), []
        for ref in self._list_refs():
            with suppress(JobNotFoundError):
                known, attempt = self.get_request(ref), self._read(ref)["attempt"]
                theirs = known.context.owner
                if ref.name == name or (owner and theirs and theirs.key == owner.key):
                    key, generation = (theirs.key, theirs.generation) if theirs else (None, None)
                    status = self.observe(ref).status
                    found.append(ExistingJob(ref.name, status, known.fingerprint(), key, generation, attempt))
        return found

    def create(self, prepared):
        request, rendered, secrets = prepared.request, prepared.rendered, read_secrets(prepared.request)
        ref = TrainJobRef(self.name, str(self.folder), request.require_name(), uuid.uuid4().hex)
        created = Path(tempfile.mkdtemp(prefix=".", dir=self.folder))
        with (created / "job.json").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            json.dump(
                {"uid": ref.uid, "attempt": prepared.attempt, "created": utc_now(), "request": request.to_json()}, lock
            )
            lock.flush()
            try:
                created.rename(self.folder / ref.name)
            except OSError as error:
                shutil.rmtree(created)
                raise NameTakenError(ref.name) from error
            self._run(ref, rendered, {name.removeprefix("trainer."): value for name, value in secrets.items()})
        return ref

    def _run(self, ref, rendered, secrets):
        """Run the process, and write the outcome."""
        folder, started = self.folder / ref.name, utc_now()
        (folder / "payload.json").write_text(rendered["payload"])
        own = {env.NAME: ref.name, env.PAYLOAD: str(folder / "payload.json")}
        own[env.TERMINATION_LOG] = str(folder / f"{NODE}.json")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRAINJOB_")}
        with (folder / f"{NODE}.log").open("wb") as log:
            process = subprocess.Popen(
                ["nice", "-n", str(rendered["nice"]), sys.executable, "-m", "trainer_core.node.bootstrap"],
                env={**inherited, **rendered["env"], **secrets, **own},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            (folder / "pid").write_text(str(process.pid))
            code = process.wait()
        record = {}
        with suppress(FileNotFoundError):
            record = parse_record((folder / f"{NODE}.json").read_bytes()) or {}
        lines = self._read_log(ref)
        times = {"started_at": started, "finished_at": utc_now(), "last_progress": find_last_progress(reversed(lines))}
        if code == 0:
            outcome = build_complete_outcome(ref, record, **times)
        else:
            facts = Facts(steps=[StepFacts.from_record(NODE, record, exit_code=code, log_tail=lines)])
            outcome = build_failed_outcome(ref, diagnose(facts), [record], **times)
        (folder / "outcome.new").write_text(outcome.to_json())
        (folder / "outcome.new").rename(folder / "outcome.json")

    def get_request(self, ref):
        return TrainJobRequest.from_json(self._read(ref)["request"])

    def get_ref(self, name):
        for ref in self._list_refs():
            if ref.name == name:
                return ref
        raise JobNotFoundError(f"TrainJob {name!r} does not exist in {self.folder}")

    def observe(self, ref):
        self._read(ref)
        folder = self.folder / ref.name
        is_running = self._is_locked(ref)  # Before the outcome is read: it is written before the lock is released.
        progress = find_last_progress(reversed(self._read_log(ref)))
        if (folder / "outcome.json").exists():
            outcome = Outcome.from_json((folder / "outcome.json").read_text())
            return Observation(outcome.status, progress=progress, outcome=outcome)
        if is_running:
            return Observation("Running", progress=progress)
        facts = Facts(infrastructure_error="the process that submitted it has ended", transient=True)
        return Observation("Failed", outcome=build_failed_outcome(ref, diagnose(facts)))

    def logs(self, ref, step, follow=False):
        self._read(ref)
        if step != NODE:
            raise InvalidRequestError(f"TrainJob {ref.name!r} has no step {step!r}; its steps are {NODE}")
        return iter(self._read_log(ref))

    def events(self, ref):
        reasons = {"Created": self._read(ref)["created"]}
        if outcome := self.observe(ref).outcome:
            reasons[outcome.status] = outcome.finished_at or utc_now()
        return [
            Event("TrainJob", ref.name, f"TrainJob {ref.name}: {reason}", reason, datetime.fromisoformat(time))
            for reason, time in reasons.items()
        ]

    def suspend(self, ref):
        """Do nothing: a TrainJob that a caller can refer to has ended."""

    def resume(self, ref):
        """Do nothing: a TrainJob is never suspended."""

    def cancel(self, ref, diagnosis=None):
        with suppress(JobNotFoundError, FileNotFoundError, ProcessLookupError):
            self._read(ref)
            if self._is_locked(ref):
                os.killpg(int((self.folder / ref.name / "pid").read_text()), signal.SIGKILL)

    def delete(self, ref):
        with suppress(JobNotFoundError):
            self.cancel(ref)
            self._read(ref)
            shutil.rmtree(self.folder / ref.name, ignore_errors=True)

    def get_job(self, name):
        ref = self.get_ref(name)
        request, observation = self.get_request(ref), self.observe(ref)
        outcome = observation.outcome
        status = {"Complete": "Succeeded"}.get(observation.status, observation.status)
        return TrainJob(
            name=name,
            runtime=self.get_runtime(RUNTIME),
            steps=[Step(NODE, status, None, device="cpu")],
            num_nodes=1,
            creation_timestamp=datetime.fromisoformat(self._read(ref)["created"]),
            status=observation.status,
            uid=ref.uid,
            namespace=ref.namespace,
            labels=dict(request.job_metadata.labels),
            annotations=dict(request.job_metadata.annotations),
            reason=str(outcome.diagnosis) if outcome and outcome.diagnosis else None,
            progress=observation.progress,
        )

    def list_jobs(self):
        found = []
        for ref in self._list_refs():
            with suppress(JobNotFoundError):
                found.append(self.get_job(ref.name))
        return sorted(found, key=lambda job: job.creation_timestamp, reverse=True)

    def list_runtimes(self):
        return [self.get_runtime(RUNTIME)]

    def get_runtime(self, name):
        if name != RUNTIME:
            raise RuntimeNotFoundError(f"runtime {name!r} does not exist on the folder backend; use {RUNTIME}")
        trainer = RuntimeTrainer(TrainerType.CUSTOM_TRAINER, "python", "this machine", device="cpu", device_count="1")
        trainer.set_command(("python",))
        return Runtime(name=name, trainer=trainer)

    def get_runtime_packages(self, runtime):
        return list_interpreter_packages()

    def _list_refs(self):
        found = []
        for path in self.folder.glob("[!.]*/job.json"):
            with suppress(FileNotFoundError):
                uid = json.loads(path.read_text())["uid"]
                found.append(TrainJobRef(self.name, str(self.folder), path.parent.name, uid))
        return found

    def _read(self, ref):
        with suppress(FileNotFoundError):
            job = json.loads((self.folder / ref.name / "job.json").read_text())
            if job["uid"] == ref.uid:
                return job
        raise JobNotFoundError(f"TrainJob {ref.name!r} was deleted from {self.folder}")

    def _read_log(self, ref):
        with suppress(FileNotFoundError):
            return (self.folder / ref.name / f"{NODE}.log").read_text(errors="replace").splitlines()
        return []

    def _is_locked(self, ref):
        with suppress(FileNotFoundError), (self.folder / ref.name / "job.json").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def utc_now():
    """Return the time as an ISO timestamp."""
    return datetime.now(timezone.utc).isoformat()
