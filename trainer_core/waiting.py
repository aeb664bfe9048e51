"""Given one observation or error and the time, decide: go on, done, timed out. Pure.

Whoever follows a TrainJob (the client, the Airflow sensor and trigger, the KFP wait step, the command) feeds what
it saw and when; nobody interprets a status on their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainer_core.errors import JobFailedError, JobNotFoundError, TrainerError, WaitTimeoutError
from trainer_core.observation import Observation
from trainer_core.outcome import Category, Diagnosis, Outcome
from trainer_core.ref import TrainJobRef

__all__ = ["Waiting", "failure_message", "outcome_or_raise", "start"]

#: A backend that answers with errors this many times in a row is taken to be gone.
MAX_ERRORS_IN_A_ROW = 10
_FIRST_DELAY = 0.02
_MAX_DELAY = 2.0


@dataclass(frozen=True)
class Waiting:
    """Where the waiting for one TrainJob stands. Feed it with `seen` and `failed`.

    Attributes:
        ref: The TrainJob.
        deadline: When to give up, in seconds of the caller's own clock; None for never.
        delay: Seconds until the next look, for backends that can only be asked.
        errors: Errors in a row.
        outcome: Set when the TrainJob has ended: waiting is over.
    """

    ref: TrainJobRef
    deadline: float | None = None
    delay: float = _FIRST_DELAY
    errors: int = 0
    outcome: Outcome | None = None

    def seen(self, observation: Observation, now: float) -> Waiting:
        """Take in what was observed.

        Raises:
            WaitTimeoutError: It has not ended and the deadline has passed.
        """
        if observation.outcome is not None:
            return replace(self, outcome=observation.outcome, errors=0)
        return self._go_on(now, f"is still {observation.status}", errors=0)

    def failed(self, error: TrainerError, now: float) -> Waiting:
        """Take in that looking failed.

        A TrainJob that is gone has ended: somebody deleted it. Other errors are borne for a while.

        Raises:
            TrainerError: The error itself, after too many in a row.
            WaitTimeoutError: The deadline has passed.
        """
        if isinstance(error, JobNotFoundError):
            return replace(self, outcome=_deleted(self.ref))
        if self.errors + 1 >= MAX_ERRORS_IN_A_ROW:
            raise error
        return self._go_on(now, f"could not be reached ({error})", errors=self.errors + 1)

    def _go_on(self, now: float, state: str, errors: int) -> Waiting:
        if self.deadline is not None and now >= self.deadline:
            raise WaitTimeoutError(
                f"TrainJob {self.ref.name!r} {state} and the time to wait is over; it was not stopped: "
                f"wait again, or end it with `trainjob cancel {self.ref.name}`"
            )
        delay = min(_MAX_DELAY, self.delay * 1.25)
        if self.deadline is not None:
            delay = min(delay, max(0.0, self.deadline - now))
        return replace(self, delay=delay, errors=errors)


def start(ref: TrainJobRef, now: float, timeout: float | None = None) -> Waiting:
    """Begin to wait.

    Args:
        ref: The TrainJob.
        now: The caller's clock, in seconds; a monotonic one, so that clock jumps do not matter.
        timeout: Seconds to wait at most; None for as long as it takes.
    """
    return Waiting(ref, deadline=None if timeout is None else now + timeout)


def outcome_or_raise(outcome: Outcome) -> Outcome:
    """Return the outcome of a complete TrainJob.

    Raises:
        JobFailedError: It failed; the message is the diagnosis.
    """
    if outcome.succeeded:
        return outcome
    raise JobFailedError(failure_message(outcome), outcome)


def failure_message(outcome: Outcome) -> str:
    """Say in one line why a TrainJob failed and whether a retry can help."""
    diagnosis = outcome.diagnosis
    if diagnosis is None:
        return f"TrainJob {outcome.job.name!r} is Failed"
    retry = "a retry can help" if diagnosis.retryable else "a retry will not help"
    return f"TrainJob {outcome.job.name!r} is Failed: {diagnosis} ({retry})"


def _deleted(ref: TrainJobRef) -> Outcome:
    reason = f"TrainJob {ref.name!r} was deleted while it was waited for"
    return Outcome(ref=ref.to_dict(), status="Failed", diagnosis=Diagnosis(category=Category.DELETED, reason=reason))
