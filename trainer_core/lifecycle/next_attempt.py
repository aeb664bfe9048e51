"""Requests of the next attempt of a TrainJob that a person retries. Pure."""

from __future__ import annotations

import re

from trainer_core.base import naming
from trainer_core.model import checkpoint_location
from trainer_core.model.request import TrainJobRequest


def split_name(name: str) -> tuple[str, int]:
    """Return the name of the first attempt and the number of this one: ``("nightly", 2)`` for ``nightly-2``."""
    match = re.fullmatch(r"(.+)-([1-9][0-9]{0,3})", name)
    return (match[1], int(match[2])) if match else (name, 0)


def build_request(request: TrainJobRequest, base: str, attempt: int) -> TrainJobRequest:
    """Return the request of an attempt of a TrainJob without an owner; attempts share the first one's checkpoints."""
    named = request.with_name(naming.build_attempt_name(base, attempt))
    return (
        named
        if request.policy.checkpoints is None
        else named.with_checkpoints_scope(checkpoint_location.build_scope(request))
    )


def restore_owned_request(request: TrainJobRequest, name: str, attempt: int) -> TrainJobRequest:
    """Return a stored request of a TrainJob with an owner as it was submitted: without the number of its attempt."""
    owner = request.context.owner
    if owner is None or name == naming.build_job_name(owner.slug, owner.key, attempt):
        return request.with_fields(name=None)
    return request.with_name(name.removesuffix(f"-{attempt}") if attempt else name)
