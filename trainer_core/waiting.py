"""Given one observation or error and the time, decide: go on, done, give up, timed out. Pure.

Whoever follows a TrainJob (the client, the Airflow sensor and trigger, the KFP wait step, the command) feeds what
it saw and when; nobody interprets a status on their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainer_core.errors import (
    BackendUnavailableError,
    JobFailedError,
    JobNotFoundError,
    TrainerError,
    WaitTimeoutError,
)
from trainer_core.observation import Observation, Trouble
from trainer_core.outcome import Category, Diagnosis, Outcome
from trainer_core.ref import TrainJobRef

__all__ = ["Waiting", "failure_message", "outcome_or_raise", "resume", "start"]

#: A backend that answers with errors this many times in a row is broken.
MAX_ERRORS_IN_A_ROW = 10
#: Seconds for which a backend may be away: longer than the restart of a control plane, shorter than a night.
MAX_SECONDS_AWAY = 1800.0
_FIRST_DELAY = 0.02
_MAX_DELAY = 2.0
#: Seconds after which to look at a job although nothing was said of it.
_MAX_QUIET = 30.0


@dataclass(frozen=True)
class Waiting:
    """Where the waiting for one TrainJob stands. Feed it with `seen` and `failed`.

    Attributes:
        ref: The TrainJob.
        deadline: When to give up, in seconds of the caller's own clock; None for never.
        fail_fast: Give up a job that cannot get well, before its backend does.
        delay: Seconds until the next look, for backends that can only be asked.
        errors: Errors in a row.
        away_since: When the backend could first not be reached, in seconds of the caller's clock.
        trouble: What is wrong with the job although it has not ended.
        trouble_since: Since when, in seconds of the caller's clock.
        outcome: Set when waiting is over.
        gave_up: The job is to be ended for what the outcome says of it: see `TrainerClient.conclude`.
    """

    ref: TrainJobRef
    deadline: float | None = None
    fail_fast: bool = True
    delay: float = _FIRST_DELAY
    errors: int = 0
    away_since: float | None = None
    trouble: Trouble | None = None
    trouble_since: float = 0.0
    outcome: Outcome | None = None
    gave_up: bool = False

    def seen(self, observation: Observation, now: float) -> Waiting:
        """Take in what was observed.

        Raises:
            WaitTimeoutError: It has not ended and the deadline has passed.
        """
        state = replace(self, errors=0, away_since=None)
        if observation.outcome is not None:
            return replace(state, outcome=state._explained(observation.outcome))
        state = state._in_trouble(observation.trouble, now)
        if state.trouble is not None and state._is_hopeless(now):
            return replace(state, outcome=_failed(self.ref, state.trouble.diagnosis), gave_up=True)
        return state._go_on(now, f"is still {observation.status}")

    def failed(self, error: TrainerError, now: float) -> Waiting:
        """Take in that looking failed.

        A TrainJob that is gone has ended: somebody deleted it. A backend that is away is borne for half an hour,
        other errors a few times.

        Raises:
            TrainerError: The error itself, after too many in a row.
            WaitTimeoutError: The deadline has passed.
        """
        if isinstance(error, JobNotFoundError):
            return replace(self, outcome=_deleted(self.ref))
        state = replace(self, errors=self.errors + 1, away_since=now if self.away_since is None else self.away_since)
        if state._is_too_much(error, now):
            raise error
        return state._go_on(now, f"could not be reached ({error})")

    def patience(self, now: float, pushed: bool = False) -> float:
        """Return the seconds until the next look.

        Args:
            now: The caller's clock.
            pushed: The caller is told of changes, so that it need only look now and then.
        """
        ends = [end - now for end in (self.deadline, self._hopeless_at()) if end is not None]
        return max(0.0, min([_MAX_QUIET if pushed and not self.errors else self.delay, *ends]))

    def carried(self) -> dict[str, Any]:
        """Return what `resume` needs, as plain JSON data; empty where there is nothing to remember."""
        if self.trouble is None:
            return {}
        diagnosis = self.trouble.diagnosis.model_dump(mode="json")
        return {"diagnosis": diagnosis, "grace": self.trouble.grace, "since": self.trouble_since}

    def _in_trouble(self, trouble: Trouble | None, now: float) -> Waiting:
        if trouble is None:
            # Kept as the explanation of a failure that comes after it, but it counts no more.
            return replace(self, trouble=self.trouble and replace(self.trouble, grace=None))
        goes_on = self.trouble is not None and _kind(self.trouble) == _kind(trouble)
        return replace(self, trouble=trouble, trouble_since=self.trouble_since if goes_on else now)

    def _hopeless_at(self) -> float | None:
        grace = self.trouble.grace if self.fail_fast and self.trouble else None
        return None if grace is None else self.trouble_since + grace

    def _is_hopeless(self, now: float) -> bool:
        at = self._hopeless_at()
        return at is not None and now >= at

    def _explained(self, outcome: Outcome) -> Outcome:
        """Prefer what was seen while it went wrong to a failure that nothing is known of: pods may be gone by now."""
        found = outcome.diagnosis
        unexplained = found is not None and found.category is Category.INFRASTRUCTURE and found.step is None
        if unexplained and self.trouble is not None:
            return outcome.model_copy(update={"diagnosis": self.trouble.diagnosis})
        return outcome

    def _is_too_much(self, error: TrainerError, now: float) -> bool:
        if isinstance(error, BackendUnavailableError) and error.transient:
            return self.away_since is not None and now - self.away_since >= MAX_SECONDS_AWAY
        return self.errors >= MAX_ERRORS_IN_A_ROW

    def _go_on(self, now: float, state: str) -> Waiting:
        if self.deadline is not None and now >= self.deadline:
            raise WaitTimeoutError(
                f"TrainJob {self.ref.name!r} {state} and the time to wait is over; it was not stopped: "
                f"wait again, or end it with `trainjob cancel {self.ref.name}`"
            )
        return replace(self, delay=min(_MAX_DELAY, self.delay * 1.25))


def start(ref: TrainJobRef, now: float, timeout: float | None = None, fail_fast: bool = True) -> Waiting:
    """Begin to wait.

    Args:
        ref: The TrainJob.
        now: The caller's clock, in seconds; a monotonic one, so that clock jumps do not matter.
        timeout: Seconds to wait at most; None for as long as it takes.
        fail_fast: Give up a job that cannot get well (an image that does not exist, a crash loop, no node that could
            take it for some minutes), before its backend does.
    """
    return Waiting(ref, deadline=None if timeout is None else now + timeout, fail_fast=fail_fast)


def resume(state: Waiting, carried: Mapping[str, Any]) -> Waiting:
    """Go on with a waiting that another process has begun, so that what was wrong then counts as wrong since then.

    Args:
        state: A waiting that was just started, by a clock that all processes share.
        carried: What `Waiting.carried` returned there.
    """
    if not carried:
        return state
    trouble = Trouble(Diagnosis.model_validate(carried["diagnosis"]), carried["grace"])
    return replace(state, trouble=trouble, trouble_since=carried["since"])


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


def _kind(trouble: Trouble) -> tuple[Category, float | None]:
    return trouble.diagnosis.category, trouble.grace


def _deleted(ref: TrainJobRef) -> Outcome:
    reason = f"TrainJob {ref.name!r} was deleted while it was waited for"
    return _failed(ref, Diagnosis(category=Category.DELETED, reason=reason))


def _failed(ref: TrainJobRef, diagnosis: Diagnosis) -> Outcome:
    return Outcome(ref=ref.to_dict(), status="Failed", diagnosis=diagnosis)
