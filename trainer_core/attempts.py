"""Given what exists, decide: create, attach, hand over, next attempt, refuse. Pure.

The one place where exactly-once is decided, for every backend and every orchestrator:

* A request without an owner stands for its name alone: the same request attaches, another is refused.
* A request with an owner may have left jobs behind, one for each attempt. The latest one counts:

  ========================  ==========================  =======================================
  latest job of the owner   same generation             other generation (a person cleared it)
  ========================  ==========================  =======================================
  none                      create the first attempt    (the same)
  live                      attach                      end it, create the next attempt
  Complete                  hand its outcome over       create the next attempt
  Failed                    create the next attempt     create the next attempt
  ========================  ==========================  =======================================

The generation says whether an orchestrator retries by itself (it stays) or a person asked for a new run (it
changes). A complete job of the same generation is handed over however often it is asked for: the worker that
took the outcome may have died before it could say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from trainer_core.errors import ConflictError
from trainer_core.request import TrainJobRequest

__all__ = ["Action", "Decision", "Found", "decide"]


class Action(str, Enum):
    """What `submit` shall do."""

    CREATE = "create"
    ATTACH = "attach"
    HAND_OVER = "hand over"


@dataclass(frozen=True)
class Found:
    """A TrainJob that exists under the request's name or owner.

    Attributes:
        name: Its name.
        status: Its status now.
        fingerprint: `TrainJobRequest.fingerprint` of the request that made it.
        owner_key: Key of its owner, None if it has none.
        generation: Its owner's generation when it was made.
        attempt: Its attempt.
    """

    name: str
    status: str
    fingerprint: str
    owner_key: str | None = None
    generation: str | None = None
    attempt: int = 0

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.status not in ("Complete", "Failed")


@dataclass(frozen=True)
class Decision:
    """What to do.

    Attributes:
        action: Create a job, attach to a live one, or hand over the outcome of a complete one.
        name: The job to create or to take.
        attempt: Its attempt.
        end_first: Names of jobs to end before the new one is created.
        differs: The job taken was made by another request of the same owner.
    """

    action: Action
    name: str
    attempt: int = 0
    end_first: tuple[str, ...] = ()
    differs: bool = False


def decide(request: TrainJobRequest, found: Sequence[Found]) -> Decision:
    """Decide what a submit of this request means.

    Args:
        request: The request, with a name or an owner.
        found: Every TrainJob there is with the request's name or of its owner.

    Raises:
        ConflictError: The name belongs to another owner, or to another request.
    """
    if request.owner is None:
        return _by_name(request, found)
    key = request.owner.key
    own = sorted((job for job in found if job.owner_key == key), key=lambda job: job.attempt)
    if not own:
        return _create(request, found, attempt=0)
    latest = own[-1]
    if latest.generation == request.owner.generation and latest.status != "Failed":
        action = Action.ATTACH if latest.live else Action.HAND_OVER
        differs = latest.fingerprint != request.fingerprint()
        return Decision(action, latest.name, latest.attempt, differs=differs)
    live = tuple(job.name for job in own if job.live)
    return _create(request, found, attempt=latest.attempt + 1, end_first=live)


def _by_name(request: TrainJobRequest, found: Sequence[Found]) -> Decision:
    name = request.require_name()
    taken = next((job for job in found if job.name == name), None)
    if taken is None:
        return Decision(Action.CREATE, name)
    if taken.owner_key is not None:
        raise ConflictError(f"TrainJob {name!r} belongs to {taken.owner_key!r}; choose another name")
    if taken.fingerprint != request.fingerprint():
        raise ConflictError(
            f"TrainJob {name!r} exists with another request; choose another name, or delete it first "
            f"(`trainjob delete {name}`)"
        )
    return Decision(Action.HAND_OVER if not taken.live else Action.ATTACH, name)


def _create(
    request: TrainJobRequest, found: Sequence[Found], attempt: int, end_first: tuple[str, ...] = ()
) -> Decision:
    name = request.attempt_name(attempt)
    owner_key = request.owner.key if request.owner else None
    stranger = next((job for job in found if job.name == name and job.owner_key != owner_key), None)
    if stranger is not None:
        whose = "somebody else" if stranger.owner_key is None else repr(stranger.owner_key)
        raise ConflictError(f"TrainJob {name!r} belongs to {whose}, not to {owner_key!r}; choose another name")
    return Decision(Action.CREATE, name, attempt, end_first=end_first)
