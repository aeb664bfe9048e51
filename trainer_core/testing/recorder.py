"""Recorder: the TrainJobs that a test submitted without running them, and how each of them ends."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from trainer_core.backends.base import NameTakenError
from trainer_core.errors import BackendUnavailableError
from trainer_core.observation import FAILED, RUNNING, SUSPENDED
from trainer_core.outcome import Category, Diagnosis, Outcome, complete_outcome
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest

__all__ = ["Ending", "Recorded", "Recorder", "completes", "fails", "goes_on"]

#: What a job will have left; None for one that goes on until somebody ends it.
Ending = Callable[["Recorded"], Outcome | None]

_RETRYABLE = frozenset({Category.PREEMPTED, Category.NODE_LOST, Category.INFRASTRUCTURE, Category.SCHEDULING})
_CANCELLED = Diagnosis(category=Category.DELETED, reason="it was cancelled")


@dataclass
class Recorded:
    """A TrainJob that was submitted.

    Attributes:
        request: What was asked for.
        ref: Where it would be.
        attempt: Of its owner, from 0.
        created: When it was submitted.
        ending: What it will have left.
        outcome: What it has left; None while it goes on.
        suspended: Whether it is suspended.
        deleted: Whether it was deleted.
    """

    request: TrainJobRequest
    ref: TrainJobRef
    attempt: int
    created: datetime
    ending: Ending
    outcome: Outcome | None = None
    suspended: bool = False
    deleted: bool = False

    @property
    def task_id(self) -> str | None:
        """The task it belongs to, None if it belongs to none."""
        return self.request.owner.slug if self.request.owner else None

    @property
    def args(self) -> dict[str, Any]:
        """The arguments that the training function would have been called with."""
        trainer = self.request.trainer
        return dict(trainer.code.args) if trainer and trainer.code else {}

    @property
    def status(self) -> str:
        """Its status now."""
        if self.outcome is not None:
            return self.outcome.status
        return SUSPENDED if self.suspended else RUNNING

    @property
    def cancelled(self) -> bool:
        """Whether somebody ended it before it ended by itself."""
        return self.outcome is not None and self.outcome.diagnosis == _CANCELLED

    def end(self, ending: Ending) -> None:
        """End it, if it goes on."""
        if self.outcome is None:
            self.outcome = ending(self)

    def cancel(self, because: Diagnosis | None = None) -> None:
        """End it as somebody who does not want it any more, if it goes on."""
        self.end(_failed(because or _CANCELLED))


def completes(result: Any = None) -> Ending:
    """The job is Complete.

    Args:
        result: What the training function would have returned; or a function of the `Recorded` job that says so, such
            as ``lambda job: {"accuracy": job.args["rate"]}``.
    """

    def ending(job: Recorded) -> Outcome:
        value = result(job) if callable(result) else result
        at = _now()
        return complete_outcome(job.ref, {"result": value}, started_at=at, finished_at=at)

    return ending


def fails(category: str = "UserCode", reason: str = "scripted by the test", *, retryable: bool | None = None) -> Ending:
    """The job is Failed.

    Args:
        category: One of the values of `Category`.
        reason: One line.
        retryable: Whether another run can help; None for what the category says.
    """
    kind = Category(category)
    can_help = kind in _RETRYABLE if retryable is None else retryable
    return _failed(Diagnosis(category=kind, reason=reason, step="node-0", exit_code=1, retryable=can_help))


def goes_on() -> Ending:
    """The job goes on until the test, or somebody else, ends it."""
    return lambda job: None


def _failed(diagnosis: Diagnosis) -> Ending:
    def ending(job: Recorded) -> Outcome:
        at = _now()
        return Outcome(ref=job.ref.to_dict(), status=FAILED, diagnosis=diagnosis, started_at=at, finished_at=at)

    return ending


class Recorder:
    """What every recording backend of a test shares: the jobs, and the script.

    Attributes:
        jobs: What was submitted, oldest first; deleted jobs too.
        configs: The configurations that backends were made from.
    """

    def __init__(self) -> None:
        self.jobs: list[Recorded] = []
        self.configs: list[Any] = []
        self._scripts: dict[str | None, list[Ending]] = {}
        self._down = False
        self._lock = threading.RLock()

    @property
    def requests(self) -> list[TrainJobRequest]:
        """What was asked for, oldest first."""
        return [job.request for job in self.jobs]

    def script(self, *endings: Ending, task_id: str | None = None) -> None:
        """Say how jobs end: the first submitted one by the first ending, and so on; the last ending is used again.

        Without a script every job is Complete, with no result.

        Args:
            endings: Such as ``fails("NodeLost"), completes({"accuracy": 0.9})``.
            task_id: For the jobs of one task; None for those of tasks without a script of their own.
        """
        if not endings:
            raise ValueError("script needs an ending, such as completes({'accuracy': 0.9})")
        self._scripts[task_id] = list(endings)

    def job(self, task_id: str | None = None) -> Recorded:
        """Return the one job that was submitted, of a task or at all.

        Raises:
            AssertionError: There is none, or more than one.
        """
        found = self.jobs_of(task_id) if task_id else self.jobs
        if len(found) != 1:
            whose = f" by task {task_id!r}" if task_id else ""
            names = ", ".join(job.ref.name for job in found) or "none"
            raise AssertionError(f"one TrainJob should have been submitted{whose}; there are {len(found)}: {names}")
        return found[0]

    def jobs_of(self, task_id: str) -> list[Recorded]:
        """Return the jobs of a task, oldest first: of all its tries and, for a mapped one, of all its instances."""
        return [job for job in self.jobs if job.task_id == task_id]

    def go_down(self) -> None:
        """From now on the backend does not answer."""
        self._down = True

    def come_back(self) -> None:
        """From now on the backend answers again."""
        self._down = False

    def forget(self) -> None:
        """Begin anew, as for another test."""
        self.jobs.clear()
        self.configs.clear()
        self._scripts.clear()
        self._down = False

    def add(self, request: TrainJobRequest, backend: str, attempt: int) -> TrainJobRef:
        """Take a job in."""
        self.check_reachable()
        with self._lock:
            name = request.require_name()
            if any(job.ref.name == name for job in self.present()):
                raise NameTakenError(name)
            ref = TrainJobRef(backend, f"recorded-{os.getpid()}", name, uuid.uuid4().hex)
            job = Recorded(request, ref, attempt, datetime.now(timezone.utc), goes_on(), suspended=request.suspend)
            job.ending = self._next_ending(job.task_id)
            self.jobs.append(job)
        return ref

    def present(self) -> list[Recorded]:
        """The jobs that were not deleted."""
        self.check_reachable()
        return [job for job in self.jobs if not job.deleted]

    def check_reachable(self) -> None:
        """Behave like a backend that does not answer, if that is asked for."""
        if self._down:
            raise BackendUnavailableError("the recording backend does not answer: the test has made it go down")

    def _next_ending(self, task_id: str | None) -> Ending:
        script = self._scripts.get(task_id) or self._scripts.get(None) or [completes()]
        return script.pop(0) if len(script) > 1 else script[0]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()
