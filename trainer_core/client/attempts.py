"""Starts the next attempt of a failed TrainJob for a person who retries it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from trainer_core.backends.base import Backend
from trainer_core.errors import ConflictError, InvalidRequestError, JobNotFoundError
from trainer_core.jobs import FAILED, TrainJobRef
from trainer_core.lifecycle import attempt_memory, next_attempt
from trainer_core.request import TrainJobRequest


class _Submit(Protocol):
    def __call__(self, request: TrainJobRequest, *, before_create: Callable[[], None] | None = None) -> TrainJobRef: ...


def start_next_attempt(backend: Backend, submit: _Submit, ref: TrainJobRef) -> TrainJobRef:
    """Submit the request of a failed job as its next attempt; return a later one that exists and has not failed."""
    ended = backend.observe(ref)
    if ended.status != FAILED:
        raise InvalidRequestError(f"TrainJob {ref.name!r} is {ended.status}; only a failed one can be retried")
    request = backend.get_request(ref)
    if request.tracking is not None:  # Each attempt has a separate run.
        run = {"run_id": None, "experiment_id": None}
        request = request.model_copy(update={"tracking": request.tracking.model_copy(update=run)})
    if request.owner is not None:
        found = {each.name: each.attempt for each in backend.find_jobs(request)}
        return submit(next_attempt.restore_owned_request(request, ref.name, found[ref.name]))
    base, attempt = next_attempt.split_name(ref.name)
    if attempt and not _is_same_work(backend, base, request):
        base, attempt = ref.name, 0
    created: list[bool] = []
    while True:
        attempt += 1
        following = next_attempt.build_request(request, base, attempt)
        following = attempt_memory.build_next_request(following, ended.outcome)
        with suppress(ConflictError):  # The name belongs to other work.
            next_ref = submit(following, before_create=lambda: created.append(True))
            if created or (ended := backend.observe(next_ref)).status != FAILED:
                return next_ref


def _is_same_work(backend: Backend, name: str, request: TrainJobRequest) -> bool:
    try:
        return backend.get_request(backend.get_ref(name)).fingerprint() == request.fingerprint()
    except JobNotFoundError:
        return False
