"""Decides what a submit does, given the TrainJobs that exist: create, attach, reuse a result, or refuse. Pure.

All backends and orchestrators decide "exactly once" here:

* A request without an owner is identified by its name: the same request attaches, another one is refused.
* A request with an owner may have earlier TrainJobs, one for each attempt. The latest attempt decides:

  =========================  =======================  =========================================
  latest attempt             same generation          newer generation (a person cleared the task)
  =========================  =======================  =========================================
  none                       create attempt 0         create attempt 0
  not ended                  attach                   cancel it, create the next attempt
  Complete                   reuse its result         create the next attempt
  Failed                     create the next attempt  create the next attempt
  =========================  =======================  =========================================

The generation stays the same when an orchestrator retries, and increases when a person asks for a new run. A request of
an older generation than any attempt is refused: a worker that continues after its task was cleared must not end,
replace or adopt the TrainJob of the newer run. Generations that are not numbers have no order; a different one counts
as newer.

A complete TrainJob of the same generation is reused as often as it is requested, because a worker that received the
outcome may have died before it recorded it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from trainer_core.base.errors import ConflictError
from trainer_core.model.jobs import COMPLETE, FAILED
from trainer_core.model.request import TrainJobRequest


class Action(str, Enum):
    """What `submit` does."""

    CREATE = "create"
    ATTACH = "attach"
    REUSE_RESULT = "reuse result"


@dataclass(frozen=True)
class ExistingJob:
    """A TrainJob that exists with the name or the owner of a request."""

    name: str
    status: str
    #: `TrainJobRequest.fingerprint` of the request that it was created from.
    fingerprint: str
    #: Key of its owner. None without an owner.
    owner_key: str | None
    #: Generation of its owner when it was created; a number, or any text without an order.
    generation: str | None
    #: Its attempt, 0 for the first.
    attempt: int

    @property
    def has_ended(self) -> bool:
        """Whether it is Complete or Failed."""
        return self.status in (COMPLETE, FAILED)


@dataclass(frozen=True)
class Decision:
    """What a submit does."""

    action: Action
    #: Name of the TrainJob to create, to attach to or to reuse.
    name: str
    attempt: int = 0
    #: Names of the TrainJobs to cancel before the new one is created.
    cancel_first: tuple[str, ...] = ()
    #: Names of the owner's earlier attempts that have ended, when the next attempt is created.
    ended_attempts: tuple[str, ...] = ()
    #: Name of the failed attempt of the same generation that the new one follows.
    retried: str | None = None
    #: True if the existing TrainJob was created from another request of the same owner.
    differs: bool = False


def decide(request: TrainJobRequest, existing: Sequence[ExistingJob]) -> Decision:
    if request.context.owner is None:
        return _decide_by_name(request, existing)
    key = request.context.owner.key
    attempts = sorted((job for job in existing if job.owner_key == key), key=lambda job: job.attempt)
    if not attempts:
        return _create(request, existing, attempt=0)
    newer = next((job for job in attempts if is_older(request.context.owner.generation, job.generation)), None)
    if newer is not None:
        raise ConflictError(
            f"TrainJob {newer.name!r} belongs to generation {newer.generation} of owner {key!r}, and this request to "
            f"generation {request.context.owner.generation}, which is older; end this run of the task, or delete that "
            "TrainJob first"
        )
    latest = attempts[-1]
    is_same_run = latest.generation == request.context.owner.generation
    # An entry of a search is created once, however it ended: a retry of its trial is another entry.
    if is_same_run and (request.context.search is not None or latest.status != FAILED):
        action = Action.REUSE_RESULT if latest.has_ended else Action.ATTACH
        differs = request.context.search is None and latest.fingerprint != request.fingerprint()
        return Decision(action, latest.name, latest.attempt, differs=differs)
    active = tuple(job.name for job in attempts if not job.has_ended)
    ended = tuple(job.name for job in attempts if job.has_ended)
    created = _create(request, existing, attempt=latest.attempt + 1)
    retried = latest.name if is_same_run else None
    return replace(created, cancel_first=active, ended_attempts=ended, retried=retried)


def is_older(generation: str | None, other: str | None) -> bool:
    """Return whether a generation is older than another one. Generations that are not numbers have no order."""
    if generation is None or other is None or not (generation.isdecimal() and other.isdecimal()):
        return False
    return int(generation) < int(other)


def _decide_by_name(request: TrainJobRequest, existing: Sequence[ExistingJob]) -> Decision:
    name = request.require_name()
    job = next((job for job in existing if job.name == name), None)
    if job is None:
        return Decision(Action.CREATE, name)
    if job.owner_key is not None:
        raise ConflictError(f"TrainJob {name!r} belongs to owner {job.owner_key!r}; choose another name")
    if job.fingerprint != request.fingerprint():
        raise ConflictError(
            f"TrainJob {name!r} exists with another request; choose another name, or delete it first "
            f"(`trainjob delete {name}`)"
        )
    return Decision(Action.REUSE_RESULT if job.has_ended else Action.ATTACH, name)


def _create(request: TrainJobRequest, existing: Sequence[ExistingJob], attempt: int) -> Decision:
    name = request.get_attempt_name(attempt)
    owner_key = request.context.owner.key if request.context.owner else None
    conflict = next((job for job in existing if job.name == name and job.owner_key != owner_key), None)
    if conflict is not None:
        other = "has no owner" if conflict.owner_key is None else f"belongs to owner {conflict.owner_key!r}"
        raise ConflictError(f"TrainJob {name!r} exists and {other}; choose another name for owner {owner_key!r}")
    return Decision(Action.CREATE, name, attempt)


def list_other_names(request: TrainJobRequest, found: Sequence[ExistingJob]) -> set[str]:
    """Return the names of the first attempt and the next one that no found job has: another owner's may have them."""
    last_attempt = max((job.attempt for job in found), default=-1)
    names = {request.get_attempt_name(0), request.get_attempt_name(last_attempt + 1)}
    return names - {job.name for job in found}


def describe_existing(name: str, status: str) -> str:
    """Return a line for a person whose submit attached to an existing TrainJob."""
    again = f"; continue it with `trainjob retry {name}`" if status == FAILED else ""
    return f"TrainJob {name!r} exists and is {status}: nothing new was started{again}"
