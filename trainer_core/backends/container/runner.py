"""Executes the actions that `reconcile.next_action` decides for a container job.

The supervisor calls `reconcile_once` until it returns `Done`. Each call reads the job from the engine, executes one
action (copy, start, stop, complete, fail), and writes what happened into the journal. A supervisor that is killed at
any moment is followed by another one.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer_core.backends.container import job_journal, names, outcome, paths
from trainer_core.backends.container.engine import Engine, EngineConflictError, EngineNotFoundError, EngineRequestError
from trainer_core.backends.container.job_journal import Container, ContainerJob, format_time
from trainer_core.backends.container.observations import parse_request
from trainer_core.backends.container.paths import CODE_PATH
from trainer_core.backends.container.plan import (
    COPY,
    FETCH,
    NODE,
    SECRETS_PATH,
    CreateInputs,
    build_create_request,
    restore_commands,
)
from trainer_core.backends.container.reconcile import (
    Complete,
    Copy,
    Done,
    Fail,
    JobAction,
    Start,
    Stop,
    Wait,
    next_action,
)
from trainer_core.backends.container.store import JobStore
from trainer_core.base.errors import InvalidRequestError, JobNotFoundError
from trainer_core.fetch import cache
from trainer_core.fetch.local_files import LocalSource, parse_local_path
from trainer_core.fetch.source import FetchError, FetchProgress
from trainer_core.k8s.failure_reasons import is_transient
from trainer_core.lifecycle.diagnosis import Facts, StepFacts, is_consequence
from trainer_core.model.config import CHECKPOINTS_VOLUME
from trainer_core.model.jobs import Category, Outcome, TrainJobRef
from trainer_core.model.request import TRACKING_SECRETS
from trainer_core.node import env

_log = logging.getLogger(__name__)

#: Time for a container to exit after SIGTERM, before SIGKILL.
_TERMINATION_GRACE_SECONDS = 10
_MAX_PARALLEL_STOPS = 16
#: The other nodes usually fail shortly after the first one, and may have the better reason; longest time to wait for
#: the node that made those fail that have failed.
_PEER_FAILURE_SECONDS, _CAUSE_SECONDS = 0.5, 30.0
_COMMAND_NOT_FOUND, _COMMAND_NOT_EXECUTABLE = 127, 126


class _CannotStartError(Exception):
    """The containers of the job cannot be started."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.facts = facts


class CopyTask:
    """Copies a ``file://`` source into the data cache in a thread, which the constructor starts.

    A container would need an image, and could read more.
    """

    def __init__(self, step: Mapping[str, Any], engine: Engine) -> None:
        self._step = step
        self._engine = engine
        self._result: dict[str, Any] | None = None
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def result(self) -> dict[str, Any] | None:
        """Data of the journal entry for this copy; None until it has ended."""
        return self._result

    def _run(self) -> None:
        started = format_time(self._engine.now())
        uri, role = self._step["uri"], self._step["role"]
        result: dict[str, Any] = {"step": self._step["name"], "started": started}
        try:
            path, action = self._copy(parse_local_path(uri), role)
        except (FetchError, OSError, ValueError) as error:
            message = f"{type(error).__name__}: {error}"
            result.update(error=message, log=[f"{role}: {uri}: {message}"])
        else:
            result.update(path=str(path), uri=path.as_uri(), log=[f"{role}: {uri} {action} {path}"])
        self._result = {**result, "finished": format_time(self._engine.now())}

    def _copy(self, source: Path, role: str) -> tuple[Path, str]:
        """Return the folder that containers mount, and how it got there."""
        if self._step["link"]:
            source.stat()
            return source, "is mounted from"
        local_source = LocalSource(source, tuple(self._step["ignore_patterns"]))
        path, fetched = cache.fetch_to_cache(local_source, paths.data_cache(role), FetchProgress())
        return path, "fetched into" if fetched else "found in"


class ContainerJobRunner:
    """Runs one job."""

    def __init__(self, store: JobStore, ref: TrainJobRef, secrets: Mapping[str, str]) -> None:
        self._store = store
        self._engine: Engine = store.engine
        self._ref = ref
        self._secrets = secrets
        self._copy_task: CopyTask | None = None

    def reconcile_once(self) -> JobAction:
        """Read the state of the job, execute the next action and return it."""
        job = self._store.get(self._ref)
        action = next_action(job, self._engine.now())
        match action:
            case Stop():
                # After the failure of a node the other ones cannot save a checkpoint.
                has_ended = job.outcome is not None and not _is_cancelled(job.outcome)
                failed = has_ended or job.waiting_restart is not None
                stop_containers(self._engine, action.containers, None if failed else job.plan.get("grace_seconds"))
            case Done():
                self._erase_credentials(job)
            case Copy():
                return self._continue_copy(job, action)
            case Start():
                self._start_or_fail(job, action)
            case Complete():
                self._record_end(job, outcome.build_complete_entry(job, self._engine))
            case Fail():
                self._fail(job, action)
        return action

    def _record_end(self, job: ContainerJob, entry: Mapping[str, Any]) -> None:
        """Record the end of a job, or of a start that another one follows by its rules."""
        # If another process has written an entry meanwhile, this one is not written, and the next call reads the other.
        if job.outcome is None:
            restarts = entry["outcome"].get("restarts") or {}
            if following := restarts.get("following"):
                data = {"outcome": entry["outcome"], "delay": following["delay"]}
                self._store.append_entry(job, job_journal.RESTART, data)
            else:
                self._store.append_entry(job, job_journal.END, entry)

    def _fail(self, job: ContainerJob, failure: Fail) -> None:
        late = time.monotonic() + _CAUSE_SECONDS
        while failure.containers:
            time.sleep(_PEER_FAILURE_SECONDS)
            job = self._store.get(self._ref)
            # Removing a container by force kills it first, so the reason may be known only now.
            current = next_action(job, self._engine.now())
            if isinstance(current, Fail) and (current.containers or current.removed_steps):
                failure = current
            steps = outcome.collect_facts(job, self._engine, failure).steps
            if not job.running_containers or time.monotonic() > late or not all(map(is_consequence, steps)):
                break
        facts = outcome.collect_facts(job, self._engine, failure)
        records = list(outcome.read_node_records(job, self._engine).values())
        self._record_end(job, outcome.build_failed_entry(job, facts, self._engine.now(), records))

    def _erase_credentials(self, job: ContainerJob) -> None:
        for step in job.plan["steps"]:
            for each in job.list_runs(step["name"]) if step.get("secrets") else ():
                with suppress(EngineRequestError):
                    self._engine.write_file(each.id, SECRETS_PATH, b"{}")

    def _continue_copy(self, job: ContainerJob, action: Copy) -> JobAction:
        """Start the copy, or record its result. It runs in a thread, so that the job can be cancelled meanwhile."""
        if self._copy_task is None:
            self._copy_task = CopyTask(action.step, self._engine)
        result = self._copy_task.result
        if result is None:
            return Wait()
        if self._store.append_entry(job, job_journal.COPIED, result):
            self._copy_task = None
        return action

    def _start_or_fail(self, job: ContainerJob, action: Start) -> None:
        try:
            self._start(job, action)
            return
        except JobNotFoundError:
            # The job was deleted meanwhile. Remove what was created after the deletion.
            with suppress(EngineRequestError):
                self._engine.remove_volume(names.data_volume(job.uid))
                self._engine.remove_network(names.network_name(job.uid))
            raise
        except _CannotStartError as error:
            facts = error.facts
        except EngineRequestError as error:
            facts = Facts(infrastructure_error=str(error))
        current = self._store.get(self._ref)
        self._record_end(current, outcome.build_failed_entry(current, facts, self._engine.now()))

    def _start(self, job: ContainerJob, action: Start) -> None:
        steps = self._restore_steps(job, action.steps)
        # Created before a pull, which can take long, so that other processes see a recent change.
        self._engine.ensure_network(names.network_name(job.uid), self._labels(job))
        self._pull_images(job)
        job, before = self._store.get(self._ref), job
        if job.decisions != before.decisions:
            # The job was suspended or ended during the pull.
            return
        try:
            for each in action.replacing:
                # Without force: if its creator has started it meanwhile, the engine refuses the removal.
                self._engine.remove_container(each.id, force=False)
        except EngineRequestError:
            return
        self._create_volumes(job, steps)
        created = [(step, key) for step in steps if (key := self._create_container(job, step)) is not None]
        if self._confirm_launch(job, steps, [key for _, key in created]):
            for step, key in created:
                self._start_container(step, key)

    def _restore_steps(self, job: ContainerJob, steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the steps with their commands, which the journal does not contain."""
        step_names = {step["name"] for step in steps}
        try:
            plan = restore_commands(job.plan, parse_request(job))
        except InvalidRequestError as error:
            raise _CannotStartError(Facts(rejected=str(error))) from error
        return [step for step in plan["steps"] if step["name"] in step_names]

    def _pull_images(self, job: ContainerJob) -> None:
        """Pull the images of all steps: a missing image must not be noticed after hours of fetching data."""
        images = {step["image"]: step["name"] for step in reversed(job.plan["steps"]) if "image" in step}
        for image, step in images.items():
            try:
                self._pull_image(job, image, step)
            except EngineRequestError as error:
                reason = f"{image} cannot be pulled: {error.reason}"
                raise _CannotStartError(_image_facts(step, reason)) from error

    def _pull_image(self, job: ContainerJob, image: str, step: str) -> None:
        has_image, policy = self._engine.has_image(image), job.plan["pull_policy"]
        if has_image and policy != "Always":
            return
        if policy == "Never":
            raise _CannotStartError(_image_facts(step, f"{image} does not exist on the engine; pull_policy is Never"))
        note = {"reason": "Pulling", "message": f"{image} is pulled for {step}"}
        self._store.append_entry(self._store.get(self._ref), job_journal.NOTE, note)
        self._engine.pull_image(image)

    def _create_volumes(self, job: ContainerJob, steps: Sequence[Mapping[str, Any]]) -> None:
        kinds = {mount["type"] for step in steps for mount in step.get("mounts") or ()}
        if "data" in kinds:
            labels = {**self._labels(job), names.KIND_LABEL: names.DATA_KIND}
            self._engine.get_or_create_volume(_get_data_volume(job), labels)
        if "cache" in kinds:
            labels = {names.MANAGED_LABEL: "true", names.NAMESPACE_LABEL: job.namespace}
            self._engine.get_or_create_volume(names.cache_volume(job.namespace), labels)

    def _create_container(self, job: ContainerJob, step: Mapping[str, Any]) -> str | None:
        """Create the container of a step; return None if another supervisor of the job has created it."""
        name = names.container_name(job.namespace, job.name, step["name"], job.run)
        body = build_create_request(job, step, self._get_inputs(job, step))
        try:
            key = self._engine.create_container(name, body)
        except EngineConflictError as error:
            self._check_container_owner(job, name, error)
            return None
        except EngineNotFoundError as error:
            raise _CannotStartError(_image_facts(step["name"], error.reason)) from error
        except EngineRequestError as error:
            if "already in use" in error.reason:
                self._check_container_owner(job, name, error)
                return None
            raise _CannotStartError(_collect_refusal_facts(step, error)) from error
        if step.get("secrets"):
            self._write_credentials(step, key)
        if step["kind"] == NODE:
            for path in filter(None, map(step["env"].get, (env.TERMINATION_LOG, env.RESULT_URI))):
                self._engine.write_file(key, path, b"", mode=0o666)
            self._copy_code(job, key)
            for mount in step.get("mounts") or ():
                if mount.get("source") == CHECKPOINTS_VOLUME:
                    self._engine.share_volume(key, mount["target"])
        return key

    def _check_container_owner(self, job: ContainerJob, name: str, error: EngineRequestError) -> None:
        with suppress(EngineNotFoundError):
            labels = self._engine.inspect_container(name)["Config"].get("Labels") or {}
            if labels.get(names.UID_LABEL) != job.uid:
                reason = f"container {name!r} exists and belongs to no step of this job; remove it"
                raise _CannotStartError(Facts(infrastructure_error=reason)) from error

    def _get_inputs(self, job: ContainerJob, step: Mapping[str, Any]) -> CreateInputs:
        copied_paths = {
            each["role"]: (job.get_copy_result(each["name"]) or {}).get("path", "")
            for each in job.plan["steps"]
            if each["kind"] == COPY
        }
        image_config = self._engine.get_image_config(step["image"]) if step.get("secrets") else {}
        cache_volume = names.cache_volume(job.namespace) if _uses_cache(job) else None
        return CreateInputs(_get_data_volume(job), copied_paths, image_config, cache_volume)

    def _write_credentials(self, step: Mapping[str, Any], container: str) -> None:
        required = step["secrets"]
        missing = [key for key in required if key not in self._secrets]
        values = {} if missing else {name: step["env"][name] for name in step.get("tracking", ())}
        if missing and TRACKING_SECRETS.issuperset(missing):
            _log.warning("%s: mlflow inside the training gets no server: %s was lost", step["name"], ", ".join(missing))
        elif missing:
            self._engine.remove_container(container)
            reason = (
                f"{step['name']}: {', '.join(missing)} is a secret that was only in the memory of a supervisor, which "
                "was killed; submit the job again"
            )
            raise _CannotStartError(Facts(infrastructure_error=reason))
        wanted = set(required) - (TRACKING_SECRETS if missing else set())
        values.update({key.partition(".")[2]: self._secrets[key] for key in sorted(wanted)})
        owner = self._get_user_id(step, container)
        self._engine.write_file(container, SECRETS_PATH, json.dumps(values).encode(), owner=owner)

    def _copy_code(self, job: ContainerJob, container: str) -> None:
        """Copy the files of a large project into the container of a node, unless it fetches them itself."""
        project = parse_request(job).project
        if project is None or project.file_uri is None:
            return
        try:
            data = parse_local_path(project.file_uri).read_bytes()
        except OSError as error:
            self._engine.remove_container(container)
            reason = f"the files of code cannot be read from {project.uri}: {error.strerror}; submit the job again"
            raise _CannotStartError(Facts(infrastructure_error=reason)) from error
        self._engine.write_file(container, CODE_PATH, data, mode=0o444)

    def _get_user_id(self, step: Mapping[str, Any], container: str) -> int:
        user = step.get("user") or self._engine.get_image_config(step["image"]).get("User") or "root"
        name = str(user).partition(":")[0]
        if name.isdecimal():
            return int(name)
        lines = (self._engine.read_file(container, "/etc/passwd") or b"").decode(errors="replace").splitlines()
        users = dict(line.split(":")[:3:2] for line in lines if line.count(":") > 2)
        return int(users.get(name, "0"))

    def _confirm_launch(self, job: ContainerJob, steps: Sequence[Mapping[str, Any]], created: Sequence[str]) -> bool:
        """Return whether the created containers may be started; otherwise remove them.

        The job is read again, because it may have been suspended, ended or deleted while they were created. The launch
        of nodes is recorded before they start, so that no node runs twice whatever happens to its container.
        """
        try:
            current = self._store.get(self._ref)
            confirmed = current.decisions == job.decisions and (
                not _has_nodes(steps)
                or current.is_launched
                or self._store.append_entry(current, job_journal.LAUNCH, {"run": current.run})
            )
        except JobNotFoundError:
            self._remove_containers(created)
            raise
        if not confirmed:
            self._remove_containers(created)
        return confirmed

    def _remove_containers(self, containers: Sequence[str]) -> None:
        for key in containers:
            self._engine.remove_container(key)

    def _start_container(self, step: Mapping[str, Any], container: str) -> None:
        try:
            self._engine.start_container(container)
        except EngineNotFoundError as error:
            # Also reported for a missing command. If the container itself is missing, it was removed.
            with suppress(EngineNotFoundError):
                self._engine.inspect_container(container)
                raise _CannotStartError(_collect_refusal_facts(step, error)) from error
        except EngineRequestError as error:
            raise _CannotStartError(_collect_refusal_facts(step, error)) from error

    def _labels(self, job: ContainerJob) -> dict[str, str]:
        return names.job_labels(job.namespace, job.name, job.uid)


def stop_containers(engine: Engine, containers: Sequence[Container], grace_seconds: int | None = None) -> None:
    grace = grace_seconds or _TERMINATION_GRACE_SECONDS
    if containers:
        with ThreadPoolExecutor(min(len(containers), _MAX_PARALLEL_STOPS)) as threads:
            list(threads.map(lambda each: _stop_container(engine, each, grace), containers))


def _stop_container(engine: Engine, container: Container, grace: int) -> None:
    with suppress(EngineRequestError):  # It has exited meanwhile.
        engine.stop_container(container.id, grace)


def _is_cancelled(ended: Outcome) -> bool:
    return ended.diagnosis is not None and ended.diagnosis.category in (Category.DELETED, Category.STOPPED_EARLY)


def _has_nodes(steps: Sequence[Mapping[str, Any]]) -> bool:
    return any(step["kind"] == NODE for step in steps)


def _uses_cache(job: ContainerJob) -> bool:
    """Return whether fetched data goes to the shared cache. Without nodes it goes to a volume that outlives the job."""
    steps = job.plan["steps"]
    return _has_nodes(steps) and any(step["kind"] == FETCH for step in steps)


def _get_data_volume(job: ContainerJob) -> str:
    if _has_nodes(job.plan["steps"]):
        return names.data_volume(job.uid)
    return names.fetched_volume(job.namespace, job.name)


def _image_facts(step: str, reason: str) -> Facts:
    return Facts(steps=[StepFacts(step)], image_error=reason, transient=is_transient(reason))


def _collect_refusal_facts(step: Mapping[str, Any], error: EngineRequestError) -> Facts:
    """Return what the error of the engine means if it cannot create or start a container."""
    reason, name = error.reason, step["name"]
    lowered = reason.lower()
    if "no space left" in lowered:
        return Facts(steps=[StepFacts(name)], infrastructure_error=reason)
    if "executable file" in lowered or ("no such file or directory" in lowered and "exec" in lowered):
        return Facts(steps=[StepFacts(name, exit_code=_COMMAND_NOT_FOUND, message=reason)])
    if "permission denied" in lowered and "exec" in lowered:
        return Facts(steps=[StepFacts(name, exit_code=_COMMAND_NOT_EXECUTABLE, message=reason)])
    if step.get("gpus") and any(word in lowered for word in ("device driver", "nvidia", "cdi", "gpu")):
        return Facts(steps=[StepFacts(name)], unschedulable=f"the engine has no GPU available: {reason}")
    return Facts(steps=[StepFacts(name)], rejected=reason)
