"""The state of a wait for a TrainJob: one observation or error and the time in, the next state out. Pure.

The client, the Airflow sensor and trigger, the KFP wait step and the command all decide by it whether to continue, to
finish, to cancel the TrainJob or to time out. None of them interprets a status itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainer_core.base.errors import (
    BackendUnavailableError,
    JobElsewhereError,
    JobNotFoundError,
    TrainerError,
    WaitTimeoutError,
)
from trainer_core.lifecycle import debugging
from trainer_core.lifecycle.diagnosis import build_failed_outcome
from trainer_core.model.jobs import (
    Category,
    Diagnosis,
    JobFailedError,
    Observation,
    Outcome,
    PendingFailure,
    TrainJobRef,
)

#: After this many errors in a row, other than an unreachable backend, a wait raises the error.
MAX_CONSECUTIVE_ERRORS = 10
#: Seconds for which a wait tolerates an unreachable backend. A restart of a control plane takes less.
MAX_UNAVAILABLE_SECONDS = 1800.0
#: Seconds until the next attempt after an error: after the first one, growth with each further one, and maximum.
_RETRY_SECONDS = 0.1
_RETRY_BACKOFF = 1.5
_MAX_RETRY_SECONDS = 2.0
#: Seconds after which a follower returns an observation even without a change.
_MAX_WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class WaitState:
    """State of the wait for one TrainJob. `on_observation` and `on_error` return the next state."""

    ref: TrainJobRef
    #: When the wait times out, in seconds of the caller's clock. None: never.
    deadline: float | None = None
    #: Whether to cancel a TrainJob with a pending failure once the failure's grace is over.
    fail_fast: bool = True
    errors: int = 0
    #: When the consecutive errors began, in seconds of the caller's clock. None without errors.
    unavailable_since: float | None = None
    #: The last pending failure that was observed.
    pending_failure: PendingFailure | None = None
    #: When it was first observed, in seconds of the caller's clock.
    pending_since: float = 0.0
    #: When the option StartWithin ends the wait for nodes, in seconds of the caller's clock. None: it does not.
    start_by: float | None = None
    #: Set once the wait is finished.
    outcome: Outcome | None = None
    #: Whether the TrainJob itself already has this outcome.
    outcome_is_stored: bool = False
    #: True if the TrainJob is to be cancelled with the diagnosis of `outcome`.
    #: `trainer_core.client.waiting.finish_wait` does that.
    should_cancel: bool = False

    def on_observation(self, observation: Observation, now: float) -> WaitState:
        state = replace(self, errors=0, unavailable_since=None)
        if observation.outcome is not None:
            explained = state._explain(observation.outcome)
            is_stored = observation.outcome_is_stored and explained is observation.outcome
            return replace(state, outcome=explained, outcome_is_stored=is_stored)
        state = state._with_pending_failure(observation.pending_failure, now)
        if state.pending_failure is not None and state._is_grace_over(now):
            outcome = build_failed_outcome(self.ref, state.pending_failure.diagnosis)
            return replace(state, outcome=outcome, should_cancel=True)
        state._check_deadline(now, f"is still {observation.status}")
        return state

    def on_error(self, error: TrainerError, now: float) -> WaitState:
        """Return the state after an observation failed.

        A TrainJob that does not exist counts as deleted. One that lives on another host is raised at once. An
        unreachable backend is tolerated for `MAX_UNAVAILABLE_SECONDS`, other errors `MAX_CONSECUTIVE_ERRORS` times in a
        row.
        """
        if isinstance(error, JobNotFoundError):
            return replace(self, outcome=_build_deleted_outcome(self.ref))
        if isinstance(error, JobElsewhereError):
            raise error
        since = now if self.unavailable_since is None else self.unavailable_since
        state = replace(self, errors=self.errors + 1, unavailable_since=since)
        if state._is_intolerable(error, now):
            raise error
        state._check_deadline(now, f"could not be reached ({error})")
        return state

    def timeout(self, now: float) -> float:
        """Return the seconds after which to observe the TrainJob even if its follower reports no change."""
        limits = [at - now for at in (self.deadline, self._grace_end()) if at is not None]
        return max(0.0, min([self._compute_retry() if self.errors else _MAX_WAIT_SECONDS, *limits]))

    def to_dict(self) -> dict[str, Any]:
        """Return what `restore` needs in another process, as JSON data: a pending failure, and errors in a row."""
        data: dict[str, Any] = {}
        if self.pending_failure is not None:
            diagnosis = self.pending_failure.diagnosis.to_dict()
            data.update(diagnosis=diagnosis, grace=self.pending_failure.grace, since=self.pending_since)
        if self.errors:
            data.update(errors=self.errors, unavailable_since=self.unavailable_since)
        return data

    def _compute_retry(self) -> float:
        # Thirty minutes of errors are tolerated, and a float has a largest power.
        exponent = min(self.errors, MAX_CONSECUTIVE_ERRORS) - 1
        return min(_MAX_RETRY_SECONDS, _RETRY_SECONDS * _RETRY_BACKOFF**exponent)

    def _with_pending_failure(self, pending: PendingFailure | None, now: float) -> WaitState:
        if pending is None:
            # Kept without a grace: it may explain a later failure, and no longer cancels the TrainJob.
            last = self.pending_failure and replace(self.pending_failure, grace=None, start_within=None)
            return replace(self, pending_failure=last, start_by=None)
        is_same = self.pending_failure is not None and _kind(self.pending_failure) == _kind(pending)
        start_by = None if pending.start_within is None else now + pending.start_within
        since = self.pending_since if is_same else now
        return replace(self, pending_failure=pending, pending_since=since, start_by=start_by)

    def _grace_end(self) -> float | None:
        grace = self.pending_failure.grace if self.pending_failure and self.fail_fast else None
        ends = (None if grace is None else self.pending_since + grace, self.start_by)
        return min((end for end in ends if end is not None), default=None)

    def _is_grace_over(self, now: float) -> bool:
        end = self._grace_end()
        return end is not None and now >= end

    def _explain(self, outcome: Outcome) -> Outcome:
        """Prefer the pending failure seen before to one without evidence, unless restart rules decided by that."""
        diagnosis = outcome.diagnosis
        is_unexplained = (
            diagnosis is not None and diagnosis.category is Category.INFRASTRUCTURE and diagnosis.step is None
        )
        if is_unexplained and self.pending_failure is not None and outcome.restarts is None:
            return replace(outcome, diagnosis=self.pending_failure.diagnosis)
        return outcome

    def _is_intolerable(self, error: TrainerError, now: float) -> bool:
        if isinstance(error, BackendUnavailableError) and error.transient:
            return self.unavailable_since is not None and now - self.unavailable_since >= MAX_UNAVAILABLE_SECONDS
        return self.errors >= MAX_CONSECUTIVE_ERRORS

    def _check_deadline(self, now: float, what: str) -> None:
        if self.deadline is not None and now >= self.deadline:
            raise WaitTimeoutError(
                f"TrainJob {self.ref.name!r} {what} after the timeout; it was not stopped: wait again, or end it with "
                f"`trainjob cancel {self.ref.name}`"
            )


def start(ref: TrainJobRef, now: float, timeout: float | None = None, fail_fast: bool = True) -> WaitState:
    """Return the state at the begin of a wait; times are seconds of a monotonic clock of the caller."""
    return WaitState(ref, deadline=None if timeout is None else now + timeout, fail_fast=fail_fast)


def restore(state: WaitState, data: Mapping[str, Any]) -> WaitState:
    """Continue a wait of another process: a pending failure and errors in a row keep their time and number."""
    if "diagnosis" in data:
        pending = PendingFailure(Diagnosis.from_dict(data["diagnosis"]), data["grace"])
        state = replace(state, pending_failure=pending, pending_since=data["since"])
    if "errors" in data:
        state = replace(state, errors=data["errors"], unavailable_since=data["unavailable_since"])
    return state


def raise_if_failed(outcome: Outcome) -> Outcome:
    """Return the outcome of a complete TrainJob."""
    if outcome.succeeded:
        return outcome
    raise JobFailedError(failure_message(outcome), outcome)


def failure_message(outcome: Outcome) -> str:
    """Return the failure of a TrainJob in one line, whether a retry can help, and the command to debug it."""
    diagnosis = outcome.diagnosis
    if diagnosis is None:
        return f"TrainJob {outcome.job.name!r} is Failed"
    retry = "a retry can help" if diagnosis.retryable else "a retry will not help"
    command = debugging.suggest_command(outcome)
    advice = f"; debug it with `{command}`" if command else ""
    return f"TrainJob {outcome.job.name!r} is Failed: {diagnosis} ({retry}){advice}"


def _kind(pending: PendingFailure) -> tuple[Category, float | None]:
    return pending.diagnosis.category, pending.grace


def _build_deleted_outcome(ref: TrainJobRef) -> Outcome:
    reason = f"TrainJob {ref.name!r} was deleted during the wait"
    return build_failed_outcome(ref, Diagnosis(category=Category.DELETED, reason=reason))


class PendingFailureLog:
    """Writes each pending failure of a TrainJob once, when it appears or changes, and once that it is queued."""

    def __init__(self, name: str, write_line: Callable[[str], object]) -> None:
        self._name = name
        self._write_line = write_line
        self._last = ""
        self._was_queued = False

    def report(self, observation: Observation) -> None:
        """Write the pending failure of an observation, unless it was written last, and when the job is queued."""
        pending = observation.pending_failure
        reason = str(pending.diagnosis) if pending is not None else ""
        if reason and reason != self._last:
            self._write_line(f"TrainJob {self._name} is {observation.status}: {reason}")
        self._last = reason
        # Not at each step forward: hundreds of tasks can wait for the same queue.
        if observation.queued and not self._was_queued:
            self._write_line(f"TrainJob {self._name} is {observation.queued}")
        self._was_queued = bool(observation.queued)
