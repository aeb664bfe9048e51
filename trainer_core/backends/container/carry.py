"""Carrying a job out: looks, asks `advance` what is to be done, and does it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from trainer_core.backends.container import advance, body, book, copying, ending, names, spec
from trainer_core.backends.container.advance import Action, Complete, Copy, Done, Fail, Start, Stop, Wait
from trainer_core.backends.container.body import Places
from trainer_core.backends.container.book import Container, Job
from trainer_core.backends.container.engine import Engine, NotThereError, RefusedError, TakenError
from trainer_core.backends.container.observe import request as request_of
from trainer_core.backends.container.store import Store
from trainer_core.diagnosis import Facts, StepFacts
from trainer_core.errors import InvalidRequestError, JobNotFoundError
from trainer_core.ref import TrainJobRef

__all__ = ["Carrier", "stop_all"]

_log = logging.getLogger(__name__)
#: What a container has to end by itself.
_STOP_SECONDS = 10
_AT_ONCE = 16
#: Peers of a failed node often fail by themselves a moment later, with the better reason.
_PEERS_SECONDS = 0.5
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class _CannotStartError(Exception):
    """The job cannot be started; carries the facts."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.facts = facts


class Carrier:
    """Carries one job out.

    Args:
        store: Where it is written down.
        ref: The job.
        secrets: What its initializers were given as literal text, by ``role.ENV``.
    """

    def __init__(self, store: Store, ref: TrainJobRef, secrets: Mapping[str, str]) -> None:
        self._store = store
        self._engine: Engine = store.engine
        self._ref = ref
        self._secrets = secrets
        self._copying: copying.Copying | None = None

    def step(self) -> Action:
        """Look once and do what is to be done; say what that was.

        Raises:
            JobNotFoundError: The job is gone.
            BackendUnavailableError: The engine does not answer.
        """
        job = self._store.of(self._ref)
        action = advance.decide(job, self._engine.now())
        if isinstance(action, Stop):
            stop_all(self._engine, action.containers)
        elif isinstance(action, Done):
            self._scrub(job)
        elif isinstance(action, Copy):
            return self._copy(job, action)
        elif isinstance(action, Start):
            self._try_to_start(job, action)
        elif isinstance(action, Complete):
            self._end(job, ending.complete(job, self._engine))
        elif isinstance(action, Fail):
            self._fail(job, action)
        return action

    def _end(self, job: Job, entry: Mapping[str, Any]) -> None:
        # Where somebody else has written the next entry, the next look shows what.
        if job.outcome is None:
            self._store.append(job, book.END, entry)

    def _fail(self, job: Job, why: Fail) -> None:
        if why.containers:
            time.sleep(_PEERS_SECONDS)
            job = self._store.of(self._ref)
            again = advance.decide(job, self._engine.now())
            # Whoever removes a container by force kills it first.
            why = again if isinstance(again, Fail) and (again.containers or again.gone) else why
        self._end(job, ending.failed(job, ending.facts_of(job, self._engine, why), self._engine.now()))

    def _scrub(self, job: Job) -> None:
        """Take back the credentials: what has ended needs none."""
        for step in job.plan["steps"]:
            for each in job.of_step(step["name"]) if step.get("secrets") else ():
                with suppress(RefusedError):
                    self._engine.write(each.key, body.SECRETS, b"{}")

    def _copy(self, job: Job, action: Copy) -> Action:
        """Copying goes on beside looking, so that it can be called off."""
        if self._copying is None:
            self._copying = copying.Copying(action.step, self._engine)
        done = self._copying.done
        if done is None:
            return Wait()
        if self._store.append(job, book.COPIED, done):
            self._copying = None
        return action

    def _try_to_start(self, job: Job, action: Start) -> None:
        try:
            self._start(job, action)
            return
        except JobNotFoundError:
            # Deleted while it was about to be started.
            with suppress(RefusedError):
                self._engine.remove_volume(names.data_volume(job.uid))
                self._engine.remove_network(names.network(job.uid))
            raise
        except _CannotStartError as error:
            facts = error.facts
        except RefusedError as error:
            facts = Facts(infrastructure_error=str(error))
        now = self._store.of(self._ref)
        self._end(now, ending.failed(now, facts, self._engine.now()))

    def _start(self, job: Job, action: Start) -> None:
        steps = self._whole(job, action.steps)
        # Says that somebody is at it, before a pull that may take its time.
        self._engine.make_network(names.network(job.uid), self._labels(job))
        self._have_images(job)
        job, asked = self._store.of(self._ref), job
        if job.turns != asked.turns:
            # A pull takes its time, in which somebody may have ended or suspended it.
            return
        try:
            for each in action.replacing:
                self._engine.remove(each.key, force=False)
        except RefusedError:
            # Not by force: it has been started meanwhile, and the next look shows it.
            return
        self._make_volumes(job, steps)
        made = [(step, key) for step in steps if (key := self._create(job, step)) is not None]
        if self._is_launched(job, steps, [key for _, key in made]):
            for step, key in made:
                self._run(step, key)

    def _whole(self, job: Job, steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        wanted = {step["name"] for step in steps}
        try:
            plan = spec.whole(job.plan, request_of(job))
        except InvalidRequestError as error:
            raise _CannotStartError(Facts(rejected=str(error))) from error
        return [step for step in plan["steps"] if step["name"] in wanted]

    def _have_images(self, job: Job) -> None:
        """All of them, before hours are spent on fetching data for an image that is not there."""
        needed = {step["image"]: step["name"] for step in reversed(job.plan["steps"]) if "image" in step}
        for image, step in needed.items():
            try:
                self._have(job, image, step)
            except RefusedError as error:
                raise _CannotStartError(_image_facts(step, f"{image} cannot be pulled: {error.said}")) from error

    def _have(self, job: Job, image: str, step: str) -> None:
        there, policy = self._engine.has_image(image), job.plan["pull_policy"]
        if there and policy != "Always":
            return
        if policy == "Never":
            raise _CannotStartError(_image_facts(step, f"{image} is not there, and pull_policy is Never"))
        note = {"reason": "Pulling", "message": f"{image} is pulled for {step}"}
        self._store.append(self._store.of(self._ref), book.NOTE, note)
        self._engine.pull(image)

    def _make_volumes(self, job: Job, steps: Sequence[Mapping[str, Any]]) -> None:
        kinds = {mount["type"] for step in steps for mount in step.get("mounts") or ()}
        if "data" in kinds:
            self._engine.make_volume(_data_volume(job), {**self._labels(job), names.KIND: names.DATA})
        if "cache" in kinds:
            labels = {names.MANAGED: "true", names.NAMESPACE: job.namespace}
            self._engine.make_volume(names.cache_volume(job.namespace), labels)

    def _create(self, job: Job, step: Mapping[str, Any]) -> str | None:
        """Create a step's container; None where somebody else has."""
        name = names.container(job.namespace, job.name, step["name"], job.run)
        try:
            key = self._engine.create(name, body.create(job, step, self._places(job, step)))
        except TakenError as error:
            self._check_own(job, name, error)
            return None
        except NotThereError as error:
            raise _CannotStartError(_image_facts(step["name"], error.said)) from error
        except RefusedError as error:
            if "already in use" in error.said:
                self._check_own(job, name, error)
                return None
            raise _CannotStartError(_refused(step, error)) from error
        if step.get("secrets"):
            self._hand_over(step, key)
        return key

    def _check_own(self, job: Job, name: str, error: RefusedError) -> None:
        with suppress(NotThereError):
            labels = self._engine.container(name)["Config"].get("Labels") or {}
            if labels.get(names.UID) != job.uid:
                what = f"a container {name!r} is on the engine that is not of this job; remove it, or use another name"
                raise _CannotStartError(Facts(infrastructure_error=what)) from error

    def _places(self, job: Job, step: Mapping[str, Any]) -> Places:
        copied = {
            each["role"]: (job.copied(each["name"]) or {}).get("path", "")
            for each in job.plan["steps"]
            if each["kind"] == spec.COPY
        }
        image = self._engine.image(step["image"]) if step.get("secrets") else {}
        cache = names.cache_volume(job.namespace) if _shares(job) else None
        return Places(_data_volume(job), copied, image, cache)

    def _hand_over(self, step: Mapping[str, Any], key: str) -> None:
        wanted = step["secrets"]
        missing = [each for each in wanted if each not in self._secrets]
        if missing:
            self._engine.remove(key)
            raise _CannotStartError(
                Facts(
                    infrastructure_error=f"{step['name']}: {', '.join(missing)} was known only to whoever submitted "
                    "the job, and is gone with that process; submit it again"
                )
            )
        found = {each.partition(".")[2]: self._secrets[each] for each in wanted}
        self._engine.write(key, body.SECRETS, json.dumps(found).encode(), owner=self._user(step, key))

    def _user(self, step: Mapping[str, Any], key: str) -> int:
        """The number of the user that an initializer's image runs as: nobody else can read its credentials."""
        name = str(self._engine.image(step["image"]).get("User") or "root").partition(":")[0]
        if name.isdecimal():
            return int(name)
        lines = (self._engine.read(key, "/etc/passwd") or b"").decode(errors="replace").splitlines()
        users = dict(line.split(":")[:3:2] for line in lines if line.count(":") > 2)
        return int(users.get(name, "0"))

    def _is_launched(self, job: Job, steps: Sequence[Mapping[str, Any]], made: Sequence[str]) -> bool:
        """Look once more: the job may have been ended, suspended or deleted while they were made."""
        try:
            now = self._store.of(self._ref)
            # Written down before they run: whatever becomes of their containers then, no node runs twice.
            launched = now.turns == job.turns and (not _are_nodes(steps) or now.launched or self._launch(now))
        except JobNotFoundError:
            self._remove(made)
            raise
        if not launched:
            self._remove(made)
        return launched

    def _launch(self, job: Job) -> bool:
        return self._store.append(job, book.LAUNCH, {"run": job.run})

    def _remove(self, made: Sequence[str]) -> None:
        for key in made:
            self._engine.remove(key)

    def _run(self, step: Mapping[str, Any], key: str) -> None:
        try:
            self._engine.start(key)
        except NotThereError as error:
            with suppress(NotThereError):
                self._engine.container(key)
                raise _CannotStartError(_refused(step, error)) from error
        except RefusedError as error:
            raise _CannotStartError(_refused(step, error)) from error

    def _labels(self, job: Job) -> dict[str, str]:
        return {names.MANAGED: "true", names.NAMESPACE: job.namespace, names.NAME: job.name, names.UID: job.uid}


def stop_all(engine: Engine, containers: Sequence[Container]) -> None:
    """End containers, all at once; each may take its time to end by itself."""
    if containers:
        with ThreadPoolExecutor(min(len(containers), _AT_ONCE)) as threads:
            list(threads.map(lambda each: _stop(engine, each), containers))


def _stop(engine: Engine, container: Container) -> None:
    with suppress(RefusedError):  # It has ended by itself meanwhile.
        engine.stop(container.key, _STOP_SECONDS)


def _are_nodes(steps: Sequence[Mapping[str, Any]]) -> bool:
    return any(step["kind"] == spec.NODE for step in steps)


def _shares(job: Job) -> bool:
    """Whether what is fetched lies in the cache: not where it is to outlive the job, in a volume of its own."""
    return _are_nodes(job.plan["steps"]) and any(step["kind"] == spec.FETCH for step in job.plan["steps"])


def _data_volume(job: Job) -> str:
    """A job that only initializes fills a volume that outlives it."""
    if _are_nodes(job.plan["steps"]):
        return names.data_volume(job.uid)
    return names.fetched_volume(job.namespace, job.name)


def _image_facts(step: str, why: str) -> Facts:
    return Facts(steps=[StepFacts(step)], image_error=why, passing=_may_pass(why))


def _may_pass(why: str) -> bool:
    lowered = why.lower()
    return any(word in lowered for word in ("timeout", "timed out", "connection", "temporary", "toomanyrequests"))


def _refused(step: Mapping[str, Any], error: RefusedError) -> Facts:
    """What an engine says when it cannot create a container, or start it."""
    said = error.said
    lowered = said.lower()
    if "no space left" in lowered:
        return Facts(steps=[StepFacts(step["name"])], infrastructure_error=said)
    if "executable file" in lowered or ("no such file or directory" in lowered and "exec" in lowered):
        return Facts(steps=[StepFacts(step["name"], exit_code=_NOT_FOUND, message=said)])
    if "permission denied" in lowered and "exec" in lowered:
        return Facts(steps=[StepFacts(step["name"], exit_code=_NOT_EXECUTABLE, message=said)])
    if step.get("gpus") and any(word in lowered for word in ("device driver", "nvidia", "cdi", "gpu")):
        return Facts(steps=[StepFacts(step["name"])], unschedulable=f"the engine has no gpu to give: {said}")
    return Facts(steps=[StepFacts(step["name"])], rejected=said)
