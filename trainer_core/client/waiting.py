"""Waits for a TrainJob: until it has ended, or until it has one of several statuses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime

from trainer_core.backends.base import Backend
from trainer_core.base.clock import Clock
from trainer_core.base.errors import (
    InvalidRequestError,
    JobEndedError,
    JobNotFoundError,
    TrainerError,
    WaitTimeoutError,
)
from trainer_core.client.runs import JobRuns
from trainer_core.lifecycle import wait_state
from trainer_core.model.jobs import (
    COMPLETE,
    FAILED,
    STATUSES,
    JobFailedError,
    Observation,
    Outcome,
    TrainJob,
    TrainJobRef,
)
from trainer_core.model.request import TrainJobRequest

_log = logging.getLogger(__name__)


def wait_for_outcome(
    backend: Backend,
    runs: JobRuns,
    ref: TrainJobRef,
    timeout: float | None = None,
    on_observation: Callable[[Observation], None] | None = None,
    fail_fast: bool = True,
) -> Outcome:
    """Wait until a job has ended; `trainer_core.lifecycle.wait_state` decides when that is."""
    now = backend.clock.monotonic
    state = wait_state.start(ref, now(), timeout, fail_fast)
    with backend.follow(ref, on_observation is not None) as follower, runs.report_progress(ref) as report:
        while state.outcome is None:
            try:
                observation = follower.next_observation(state.timeout(now()))
            except TrainerError as error:
                state = state.on_error(error, now())
            else:
                if on_observation is not None:
                    on_observation(observation)
                state = state.on_observation(observation, now())
                report(observation.status, None)
        outcome = finish_wait(backend, state)
        report(outcome.status, outcome)
    return outcome


def finish_wait(backend: Backend, state: wait_state.WaitState) -> Outcome:
    """Return the outcome of a finished wait, also of an orchestrator's own; cancel the job if the wait decided so."""
    if state.outcome is None:
        raise ValueError(f"the wait for TrainJob {state.ref.name!r} is not finished")
    if not state.should_cancel:
        if state.outcome_is_stored:
            return state.outcome
        with suppress(TrainerError):  # The caller has the outcome; storing it only helps later readers.
            backend.store_outcome(state.outcome)
        return state.outcome
    try:
        backend.cancel(state.ref, diagnosis=state.outcome.diagnosis)
        return backend.observe(state.ref).outcome or state.outcome
    except JobNotFoundError:
        return state.outcome  # Deleted by another process, or by a backend that keeps no cancelled jobs.
    except TrainerError as error:
        _log.warning("TrainJob %r cannot recover and could not be cancelled: %s", state.ref.name, error)
        return state.outcome


def check_restarts(request: TrainJobRequest) -> None:
    """Refuse a RestartPolicy of a request whose next attempt would lack its tokens: they are not stored."""
    if request.policy.restart_policy is not None and request.context.literal_secrets:
        raise InvalidRequestError(
            "RestartPolicy: tokens given as text are not stored for the next attempt; give references to secrets"
        )


def compute_restart_delay(outcome: Outcome, clock: Clock | None = None) -> float | None:
    """Return the seconds until a failed job starts again, counted from its end if known; None if it does not."""
    following = outcome.restarts.following if outcome.restarts else None
    if following is None:
        return None
    if following.at is None:
        return following.delay
    end = datetime.fromisoformat(following.at.replace("Z", "+00:00")).timestamp()  # Python 3.10 does not read the Z.
    return min(following.delay, max(0.0, end + following.delay - (clock or Clock()).time()))


def wait_for_status(
    backend: Backend,
    runs: JobRuns,
    ref: TrainJobRef,
    status: set[str],
    timeout: float,
    polling_interval: float,
    callbacks: Sequence[Callable[[TrainJob], None]],
) -> TrainJob:
    """Wait until a job has one of the statuses; each observation is passed to the callbacks as a TrainJob."""
    now = backend.clock.monotonic
    end = now() + timeout
    with backend.follow(ref) as follower, runs.report_progress(ref) as report:
        while True:
            observation = follower.next_observation(min(polling_interval, max(0.0, end - now())))
            job = follower.get_job()
            report(observation.status, observation.outcome)
            for callback in callbacks:
                callback(job)
            if job.status in status:
                return job
            wanted = " or ".join(sorted(status))
            if job.status == FAILED:
                outcome = wait_for_outcome(backend, runs, ref, timeout=0)
                raise JobFailedError(wait_state.failure_message(outcome), outcome)
            if job.status == COMPLETE:
                raise JobEndedError(f"TrainJob {job.name!r} is Complete and cannot become {wanted}")
            if now() >= end:
                pending = observation.pending_failure
                why = f" ({pending.diagnosis})" if pending else ""
                raise WaitTimeoutError(
                    f"TrainJob {ref.name!r} is {job.status}, not {wanted}, after {timeout} s{why}; "
                    "it has not been stopped"
                )


def check_arguments(status: set[str], timeout: float, polling_interval: float) -> None:
    """Check the arguments of a wait for a status."""
    unknown = set(status) - STATUSES
    if unknown or not status:
        raise ValueError(
            f"status must name one or more of {', '.join(sorted(STATUSES))}; got {', '.join(sorted(unknown)) or 'none'}"
        )
    if timeout <= 0:
        raise ValueError(f"timeout must be a positive number, got timeout={timeout}")
    if polling_interval <= 0:
        raise ValueError(f"polling_interval must be a positive number, got polling_interval={polling_interval}")
    if polling_interval >= timeout:
        raise ValueError(
            f"polling_interval must be less than timeout, got polling_interval={polling_interval}, timeout={timeout}"
        )
