"""Given a job and the time, say what is to be done next. Pure.

Whoever carries a job out asks this again and again and does what it says; nothing is remembered in between, so that
anybody can go on where somebody was killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from trainer_core.backends.container.book import Container, Job
from trainer_core.backends.container.spec import COPY, FETCH, NODE

__all__ = ["STALE", "Action", "Complete", "Copy", "Done", "Fail", "Start", "Stop", "Wait", "decide"]

#: Time between creating a container and starting it after which whoever created it is taken for dead.
STALE = timedelta(seconds=10)


@dataclass(frozen=True)
class Wait:
    """Nothing, before something changes or this many seconds are over."""

    seconds: float | None = None


@dataclass(frozen=True)
class Done:
    """Nothing any more."""


@dataclass(frozen=True)
class Stop:
    """End these containers: the job does not want them to run."""

    containers: Sequence[Container]


@dataclass(frozen=True)
class Copy:
    """Copy a folder of this machine."""

    step: dict[str, Any]


@dataclass(frozen=True)
class Start:
    """Create containers for these steps, all of them, then start them.

    `replacing` was created by somebody who died before starting it.
    """

    steps: Sequence[dict[str, Any]]
    replacing: Sequence[Container] = ()


@dataclass(frozen=True)
class Complete:
    """Write down that the job is complete."""


@dataclass(frozen=True)
class Fail:
    """Write down that the job has failed, and why."""

    containers: Sequence[Container] = ()
    copied: str | None = None
    deadline_seconds: int | None = None
    timed_out: str | None = None
    gone: Sequence[str] = field(default_factory=tuple)


Action: TypeAlias = Wait | Done | Stop | Copy | Start | Complete | Fail


def decide(job: Job, now: datetime) -> Action:
    """Say what is to be done next.

    Args:
        job: The job.
        now: The time, by the engine's clock.
    """
    if job.outcome is not None:
        return Stop(job.running) if job.running else Done()
    if job.suspended:
        return Stop(job.running) if job.running else Wait()
    left = _seconds_left(job, now)
    if left is not None and left <= 0:
        return Fail(deadline_seconds=job.plan["active_deadline_seconds"])
    # What was fetched stays where it is, also when somebody has tidied up the containers that fetched it.
    action = (None if job.ever_launched else _initialize(job, now)) or _train(job, now)
    if isinstance(action, Wait) and left is not None:
        return Wait(left if action.seconds is None else min(left, action.seconds))
    return action


def _seconds_left(job: Job, now: datetime) -> float | None:
    deadline = job.plan["active_deadline_seconds"]
    return None if deadline is None else deadline - (now - job.run_began).total_seconds()


def _initialize(job: Job, now: datetime) -> Action | None:
    """What initializers need; None when all of them have succeeded, in this run or an earlier one."""
    for step in _steps(job, COPY):
        found = job.copied(step["name"])
        if found is None:
            return Copy(step)
        if found.get("error"):
            return Fail(copied=step["name"])
    waiting = [s for s in _steps(job, FETCH) if not any(c.succeeded for c in job.of_step(s["name"]))]
    if not waiting:
        return None
    there = [each for step in waiting if (each := job.now_of(step["name"])) is not None]
    if failed := [each for each in there if each.failed]:
        return Fail(containers=failed)
    began = min((each.started for each in there if each.started), default=now)
    left = job.plan["initializer_timeout"] - (now - began).total_seconds()
    if left <= 0:
        return Fail(timed_out=next(each.step for each in there if not each.ended))
    return _missing(job, waiting, now) or Wait(left)


def _train(job: Job, now: datetime) -> Action:
    nodes = _steps(job, NODE)
    there = [each for step in nodes if (each := job.now_of(step["name"])) is not None]
    if failed := [each for each in there if each.failed]:
        return Fail(containers=failed)
    if len(there) == len(nodes) and all(each.succeeded for each in there):
        return Complete()
    if (job.launched or any(each.started for each in there)) and len(there) < len(nodes):
        # All are created before the first is started: somebody has removed one, and nothing runs twice.
        return Fail(gone=sorted({step["name"] for step in nodes} - {each.step for each in there}))
    return _missing(job, nodes, now) or Wait()


def _missing(job: Job, steps: Sequence[dict[str, Any]], now: datetime) -> Action | None:
    """Start what is not there; leave what somebody is about to start, unless he seems to be dead."""
    found = {step["name"]: job.now_of(step["name"]) for step in steps}
    fresh = [each for each in found.values() if each is not None and each.fresh]
    pending = [step for step in steps if found[step["name"]] is None or found[step["name"]] in fresh]
    if not pending:
        return None
    youngest = max((each.created or now for each in fresh), default=now - STALE)
    left = (youngest + STALE - now).total_seconds()
    return Start(pending, fresh) if left <= 0 else Wait(left)


def _steps(job: Job, kind: str) -> list[dict[str, Any]]:
    return [step for step in job.plan["steps"] if step["kind"] == kind]
