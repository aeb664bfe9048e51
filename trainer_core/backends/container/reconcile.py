"""Decides the next action for a job from its state and the time alone, so that any supervisor can continue. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from trainer_core.backends.container.job_journal import Container, ContainerJob
from trainer_core.backends.container.plan import COPY, FETCH, NODE

#: If a container is created and not started for this time, the process that created it is presumed dead.
START_TIMEOUT = timedelta(seconds=10)


@dataclass(frozen=True)
class Wait:
    """Do nothing until the state changes, at most for this number of seconds."""

    seconds: float | None = None


@dataclass(frozen=True)
class Done:
    """Nothing is left to do for the job."""


@dataclass(frozen=True)
class Stop:
    """Stop these containers."""

    containers: Sequence[Container]


@dataclass(frozen=True)
class Copy:
    """Copy the ``file://`` source of this step."""

    step: dict[str, Any]


@dataclass(frozen=True)
class Start:
    """Create the containers of all these steps, then start them."""

    steps: Sequence[dict[str, Any]]
    #: Containers to remove first: the process that created them died before it started them.
    replacing: Sequence[Container] = ()


@dataclass(frozen=True)
class Complete:
    """Record that the job is complete."""


@dataclass(frozen=True)
class Fail:
    """Record that the job has failed. One of the attributes is the reason."""

    containers: Sequence[Container] = ()
    #: Step whose copy failed.
    copy_step: str | None = None
    deadline_seconds: int | None = None
    #: Initializer that ran longer than its timeout.
    timed_out_step: str | None = None
    #: Steps whose containers were removed from the engine.
    removed_steps: Sequence[str] = field(default_factory=tuple)


JobAction: TypeAlias = Wait | Done | Stop | Copy | Start | Complete | Fail


def next_action(job: ContainerJob, now: datetime) -> JobAction:
    if job.outcome is not None:
        return Stop(job.running_containers) if job.running_containers else Done()
    if job.is_suspended:
        if job.running_containers:
            return Stop(job.running_containers)
        return Complete() if _have_functions_returned(job) else Wait()
    if left := [each for each in job.running_containers if each.run < job.run]:
        return Stop(left)
    if job.waiting_restart is not None and job.run_started > now:
        return Wait((job.run_started - now).total_seconds())
    remaining = _seconds_to_deadline(job, now)
    if remaining is not None and remaining <= 0:
        return Fail(deadline_seconds=job.plan["active_deadline_seconds"])
    # After a launch the data is in its volume, even if the containers of the initializers were removed since.
    action = (None if job.was_ever_launched else _initialize(job, now)) or _train(job, now)
    if isinstance(action, Wait) and remaining is not None:
        return Wait(remaining if action.seconds is None else min(remaining, action.seconds))
    return action


def _seconds_to_deadline(job: ContainerJob, now: datetime) -> float | None:
    attempt = job.get_attempt_restarts()
    left = attempt.seconds_left if attempt else job.plan["active_deadline_seconds"]
    return None if left is None else left - (now - job.run_started).total_seconds()


def _initialize(job: ContainerJob, now: datetime) -> JobAction | None:
    """Return the next action of the initializers; None if all of them have succeeded, in this run or an earlier one."""
    for step in _list_steps(job, COPY):
        result = job.get_copy_result(step["name"])
        if result is None:
            return Copy(step)
        if result.get("error"):
            return Fail(copy_step=step["name"])
    pending = [s for s in _list_steps(job, FETCH) if not any(c.succeeded for c in job.list_runs(s["name"]))]
    if not pending:
        return None
    containers = _list_current_containers(job, pending)
    if failed := [each for each in containers if each.failed]:
        return Fail(containers=failed)
    started = min((each.started for each in containers if each.started), default=now)
    remaining = job.plan["initializer_timeout"] - (now - started).total_seconds()
    if remaining <= 0:
        return Fail(timed_out_step=next(each.step for each in containers if not each.has_exited))
    return _start_missing(job, pending, now) or Wait(remaining)


def _train(job: ContainerJob, now: datetime) -> JobAction:
    nodes = _list_steps(job, NODE)
    containers = _list_current_containers(job, nodes)
    if failed := [each for each in containers if each.failed]:
        return Fail(containers=failed)
    if len(containers) == len(nodes) and all(each.succeeded for each in containers):
        return Complete()
    if (job.is_launched or any(each.started for each in containers)) and len(containers) < len(nodes):
        # All nodes are created before the first one is started, so a missing one was removed. No node runs twice.
        return Fail(removed_steps=sorted({step["name"] for step in nodes} - {each.step for each in containers}))
    return _start_missing(job, nodes, now) or Wait()


def _have_functions_returned(job: ContainerJob) -> bool:
    """Return whether the functions of all nodes returned; an image may exit with 0 because it is stopped."""
    nodes = _list_steps(job, NODE)
    containers = _list_current_containers(job, nodes)
    has_functions = bool(nodes) and all(step.get("launch") for step in nodes)
    return has_functions and len(containers) == len(nodes) and all(each.succeeded for each in containers)


def _start_missing(job: ContainerJob, steps: Sequence[dict[str, Any]], now: datetime) -> JobAction | None:
    """Start the steps without a container. New containers belong to their creator until `START_TIMEOUT` has passed."""
    containers = {step["name"]: job.get_current_container(step["name"]) for step in steps}
    new = [each for each in containers.values() if each is not None and each.is_new]
    missing = [step for step in steps if containers[step["name"]] is None or containers[step["name"]] in new]
    if not missing:
        return None
    youngest = max((each.created or now for each in new), default=now - START_TIMEOUT)
    remaining = (youngest + START_TIMEOUT - now).total_seconds()
    return Start(missing, new) if remaining <= 0 else Wait(remaining)


def _list_steps(job: ContainerJob, kind: str) -> list[dict[str, Any]]:
    return [step for step in job.plan["steps"] if step["kind"] == kind]


def _list_current_containers(job: ContainerJob, steps: Sequence[dict[str, Any]]) -> list[Container]:
    return [each for step in steps if (each := job.get_current_container(step["name"])) is not None]
