"""The attempts of a training: a TrainJob, and those that follow it after failures, within one budget of time.

`for attempt in client.attempts(job)` is the only loop over them: the client, the command, KFP's steps and the tasks of
Airflow follow by it. What follows a failure is the restart that the rules of the TrainJob demand, or else one
that the waiting process was given rules for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias, TypeVar

from trainer_core.backends.base import Backend
from trainer_core.base.errors import ConflictError, InvalidRequestError, JobNotFoundError, WaitTimeoutError
from trainer_core.client import waiting
from trainer_core.client.runs import JobRuns
from trainer_core.lifecycle import attempt_memory, next_attempt, restart_policy, wait_state
from trainer_core.model.jobs import (
    FAILED,
    JobFailedError,
    Observation,
    Outcome,
    RestartCause,
    TrainJob,
    TrainJobRef,
)
from trainer_core.model.request import TrainJobRequest
from trainer_core.model.restart_rules import RestartRules

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
#: `TrainerClient.submit`, or what an orchestrator does around it.
Submit: TypeAlias = Callable[..., TrainJobRef]


class _Client(Protocol):
    """What the attempts need of `TrainerClient`."""

    backend: Backend
    runs: JobRuns

    @property
    def wait(self) -> Callable[..., Outcome]: ...
    @property
    def submit(self) -> Submit: ...
    def observe(self, job: TrainJobRef) -> Observation: ...
    def repeat_while_unavailable(self, what: str, send: Callable[[], _T]) -> _T: ...


class Attempt:
    """One TrainJob of a training.

    Attributes:
        ref: Its ref.
        outcome: How it ended; None until then. `wait` sets it, or a caller that knows it from elsewhere.
    """

    def __init__(self, attempts: Attempts, ref: TrainJobRef) -> None:
        self.ref = ref
        self.outcome: Outcome | None = None
        self._attempts = attempts

    @property
    def following(self) -> RestartCause | None:
        """The restart that follows its end; None if there is none."""
        return self._attempts.decide_next(self.outcome)

    def wait(self, on_observation: Callable[[Observation], None] | None = None, fail_fast: bool = True) -> Outcome:
        """Wait for its end, as `TrainerClient.wait` does, for as long as the budget of all attempts lasts."""
        client, remaining = self._attempts.client, self._attempts.remaining
        self.outcome = client.wait(
            self.ref, timeout=remaining, on_observation=on_observation, fail_fast=fail_fast, restarts=False
        )
        return self.outcome

    def wait_for_status(
        self, status: set[str], polling_interval: float, callbacks: Sequence[Callable[[TrainJob], None]]
    ) -> TrainJob:
        """Wait until it has one of the statuses, as `TrainerClient.wait_for_job_status` does for one TrainJob."""
        client, remaining = self._attempts.client, self._attempts.remaining
        try:
            return waiting.wait_for_status(
                client.backend, client.runs, self.ref, status, remaining or 0.0, polling_interval, callbacks
            )
        except JobFailedError as error:
            self.outcome = error.outcome
            raise


class Attempts:
    """The TrainJobs of a training, one after the other; see `TrainerClient.attempts`."""

    def __init__(
        self,
        client: _Client,
        ref: TrainJobRef,
        timeout: float | None = None,
        rules: RestartRules | None = None,
        submit: Callable[[Outcome], TrainJobRef] | None = None,
    ) -> None:
        self.client = client
        self._ref = ref
        self._rules = rules
        self._submit = submit or self._submit_stored
        self._restarts = 0
        self._clock = client.backend.clock
        self._deadline = None if timeout is None else self._clock.monotonic() + timeout

    @property
    def remaining(self) -> float | None:
        """Seconds that are left for all attempts together; None without a limit."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock.monotonic())

    def __iter__(self) -> Iterator[Attempt]:
        ref: TrainJobRef | None = self._ref
        while ref is not None:
            attempt = Attempt(self, ref)
            yield attempt
            ref = None if attempt.outcome is None else self.start_next(attempt.outcome)

    def decide_next(self, ended: Outcome | None) -> RestartCause | None:
        """Return the restart that follows the end of an attempt; None if there is none."""
        return None if ended is None else restart_policy.decide_next(ended, self._rules, self._restarts)

    def start_next(self, ended: Outcome, *, is_due: bool = False) -> TrainJobRef | None:
        """Start the attempt that follows a failed one; return None if there is none.

        Once its delay is over, unless the caller says that it `is_due`. None also for a TrainJob that a person has
        deleted, so that it is not started again.
        """
        cause = self.decide_next(ended)
        if cause is None:
            return None
        delay = 0.0 if is_due else waiting.compute_restart_delay(ended, self._clock)
        delay = cause.delay if delay is None else delay
        pause = f" in {delay:.0f} s" if delay else ""  # Without one it may exist.
        _log.warning("%s; the next attempt follows%s", wait_state.failure_message(ended), pause)
        self._wait_for_restart(ended, delay)
        try:
            status = self.client.repeat_while_unavailable("The restart", lambda: self.client.observe(ended.job)).status
            following = self._submit(ended) if status == FAILED else ended.job
        except JobNotFoundError:
            return None
        self._restarts += 1
        return None if following == ended.job else following

    def _submit_stored(self, ended: Outcome) -> TrainJobRef:
        """Submit the stored request of a failed attempt as the next one, within the budget of all attempts."""

        def submit(request: TrainJobRequest, *, before_create: Callable[[], None] | None = None) -> TrainJobRef:
            return self.client.submit(request, before_create=before_create, retry_seconds=self.remaining)

        return start_next_attempt(self.client.backend, submit, ended.job, is_new_budget=ended.restarts is None)

    def _wait_for_restart(self, ended: Outcome, delay: float) -> None:
        remaining = self.remaining
        if remaining is None or delay <= remaining:
            self._clock.sleep(delay)
            return
        self._clock.sleep(remaining)
        raise WaitTimeoutError(
            f"TrainJob {ended.job.name!r} is Failed and is started again in {delay - remaining:.0f} s, after the "
            "timeout; wait again"
        )


def start_next_attempt(
    backend: Backend, submit: Submit, ref: TrainJobRef, *, is_new_budget: bool = True
) -> TrainJobRef:
    """Submit the request of a failed job as its next attempt; return a later one that exists and has not failed.

    Without a new budget of restarts, the last failed one is returned if its restart rules allow no further start.
    """
    ended = backend.observe(ref)
    if ended.status != FAILED:
        raise InvalidRequestError(f"TrainJob {ref.name!r} is {ended.status}; only a failed one can be retried")
    request = _restore_code(backend.get_request(ref), backend, ref).without_lookup()
    if request.context.search is not None:
        name = request.context.search.key.removeprefix("search/")
        raise InvalidRequestError(
            f"TrainJob {ref.name!r} is a trial of search {name!r}, which decides what is tried again; continue the "
            f"search with `trainjob search {name} --wait`, or extend it by its definition with other limits"
        )
    if request.context.secret_names:
        names = ", ".join(request.context.secret_names)
        message = f"TrainJob {ref.name!r}: only what has submitted it can start it again: its {names} is not stored"
        if is_new_budget:
            raise InvalidRequestError(message)
        _log.warning("%s", message)
        return ref
    if request.policy.tracking is not None:  # Each attempt has a separate run.
        run = {"run_id": None, "experiment_id": None}
        request = request.with_fields(tracking=request.policy.tracking.model_copy(update=run))
    if request.context.owner is not None:
        found = {
            each.name: each.attempt
            for each in backend.find_jobs(request)
            if each.owner_key == request.context.owner.key
        }
        if ref.name not in found:
            raise JobNotFoundError(f"TrainJob {ref.name!r} has been deleted")
        last = max(found, key=found.__getitem__) if is_new_budget and request.policy.restart_policy else None
        request = next_attempt.restore_owned_request(request, ref.name, found[ref.name])
        return submit(request.with_fields(retry_of=last))
    return _start_named(backend, submit, ref, request, is_new_budget)


def _start_named(
    backend: Backend, submit: Submit, ref: TrainJobRef, request: TrainJobRequest, is_new_budget: bool
) -> TrainJobRef:
    """Submit the next attempt of a failed job without an owner, by the number in its name."""
    ended = backend.observe(ref)
    base, attempt = next_attempt.split_name(ref.name)
    if attempt and not _is_same_work(backend, base, request):
        base, attempt = ref.name, 0
    created: list[bool] = []

    def begin() -> None:
        created.append(True)
        backend.wait_for_left_processes(ref, request)

    while True:
        if not is_new_budget and restart_policy.is_final(request, ended.outcome):
            return ref
        attempt += 1
        following = next_attempt.build_request(request, base, attempt)
        following = attempt_memory.build_next_request(following, ended.outcome)
        following = restart_policy.build_next_request(following, None if is_new_budget else ended.outcome)
        with suppress(ConflictError):  # The name belongs to other work.
            ref = submit(following, before_create=begin)
            if created or (ended := backend.observe(ref)).status != FAILED:
                return ref


def _restore_code(request: TrainJobRequest, backend: Backend, ref: TrainJobRef) -> TrainJobRequest:
    """Return a stored request with the files of its project, which a cluster has in the arguments of the job."""
    if request.work.trainer is None or request.project is None:
        return request
    trainer = request.work.trainer.model_copy(update={"code": backend.get_code(ref)})
    return request.with_fields(trainer=trainer)


def _is_same_work(backend: Backend, name: str, request: TrainJobRequest) -> bool:
    try:
        return backend.get_request(backend.get_ref(name)).fingerprint() == request.fingerprint()
    except JobNotFoundError:
        return False
