"""Starts the next attempt of a failed TrainJob: for a person who retries it, or because its RestartPolicy says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from trainer_core.backends.base import Backend
from trainer_core.base.errors import ConflictError, InvalidRequestError, JobNotFoundError
from trainer_core.lifecycle import attempt_memory, next_attempt, restart_policy
from trainer_core.model.jobs import FAILED, TrainJobRef
from trainer_core.model.request import TrainJobRequest

_log = logging.getLogger(__name__)
#: `TrainerClient.submit`, or what an orchestrator does around it.
Submit: TypeAlias = Callable[..., TrainJobRef]


def start_next_attempt(
    backend: Backend, submit: Submit, ref: TrainJobRef, *, is_new_budget: bool = True
) -> TrainJobRef:
    """Submit the request of a failed job as its next attempt; return a later one that exists and has not failed.

    Without a new budget of restarts, the last failed one is returned if its RestartPolicy allows no further start.
    """
    ended = backend.observe(ref)
    if ended.status != FAILED:
        raise InvalidRequestError(f"TrainJob {ref.name!r} is {ended.status}; only a failed one can be retried")
    request = _restore_code(backend.get_request(ref), backend, ref).without_lookup()
    if request.secret_names:
        names = ", ".join(request.secret_names)
        message = f"TrainJob {ref.name!r}: only what has submitted it can start it again: its {names} is not stored"
        if is_new_budget:
            raise InvalidRequestError(message)
        _log.warning("%s", message)
        return ref
    if request.tracking is not None:  # Each attempt has a separate run.
        run = {"run_id": None, "experiment_id": None}
        request = request.model_copy(update={"tracking": request.tracking.model_copy(update=run)})
    if request.owner is not None:
        found = {each.name: each.attempt for each in backend.find_jobs(request) if each.owner_key == request.owner.key}
        if ref.name not in found:
            raise JobNotFoundError(f"TrainJob {ref.name!r} has been deleted")
        last = max(found, key=found.__getitem__) if is_new_budget and request.restart_policy else None
        request = next_attempt.restore_owned_request(request, ref.name, found[ref.name])
        return submit(request.model_copy(update={"retry_of": last}))
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
    if request.trainer is None or request.project is None:
        return request
    trainer = request.trainer.model_copy(update={"code": backend.get_code(ref)})
    return request.model_copy(update={"trainer": trainer})


def _is_same_work(backend: Backend, name: str, request: TrainJobRequest) -> bool:
    try:
        return backend.get_request(backend.get_ref(name)).fingerprint() == request.fingerprint()
    except JobNotFoundError:
        return False
