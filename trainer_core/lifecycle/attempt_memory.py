"""Decides how much memory an attempt asks for, with the option `MoreMemory`. Pure.

The amount depends only on the request and on the outcome of the attempt before. A first attempt of a generation asks
for what the request has. After an attempt that ran out of memory the next one asks for more, otherwise for the same.
"""

from __future__ import annotations

import math
from typing import Any

from trainer_core.base import resources
from trainer_core.base.errors import InvalidRequestError
from trainer_core.model.jobs import AttemptMemory, Category, Outcome
from trainer_core.model.request import MoreMemory, TrainJobRequest

_MEBI, _GIBI = 2**20, 2**30


def get_attempt_memory(request: TrainJobRequest) -> AttemptMemory | None:
    """Return what the attempt of a request asks for; None without the option."""
    policy = request.policy.more_memory
    if policy is None:
        return None
    asked = _get_asked(request)
    if resources.parse_quantity(asked) > resources.parse_quantity(policy.limit):
        raise InvalidRequestError(
            f"MoreMemory: the limit of {policy.limit} is less than the {asked} of resources_per_node; raise the limit"
        )
    amount = request.context.attempt_memory or asked
    return AttemptMemory(amount=amount, asked=asked, next=_grow(amount, policy))


def build_next_request(request: TrainJobRequest, ended: Outcome | None) -> TrainJobRequest:
    """Return a request with the memory of its next attempt; `ended` is the outcome of the one before, if any."""
    first = get_attempt_memory(request.with_fields(attempt_memory=None))
    if request.policy.more_memory is None or first is None:
        return request
    amount = first.amount
    if ended is not None and ended.memory is not None and ended.diagnosis is not None:
        last = max(ended.memory.amount, first.amount, key=resources.parse_quantity)
        # Retryable: the memory of the node, not that of a GPU, was too little, and the limit allows more.
        # Restart rules can make others retryable, which have no `next`.
        is_exhausted = ended.diagnosis.category is Category.OUT_OF_MEMORY and ended.diagnosis.retryable
        is_exhausted = is_exhausted and ended.memory.next is not None
        amount = min(
            (is_exhausted and _grow(last, request.policy.more_memory)) or last,
            request.policy.more_memory.limit,
            key=_size,
        )
    return request.with_fields(attempt_memory=None if amount == first.asked else amount)


def apply_attempt_memory(request: TrainJobRequest) -> TrainJobRequest:
    """Return a request in which the nodes ask for the memory of the attempt: what a manifest is rendered from."""
    memory = get_attempt_memory(request)
    if memory is None or memory.amount == memory.asked:
        return request
    changes: dict[str, Any] = {}
    per_node = request.work.trainer.resources_per_node if request.work.trainer else None
    if request.work.trainer is not None and per_node and "memory" in per_node:
        per_node = {**per_node, "memory": memory.amount}
        changes["trainer"] = request.work.trainer.model_copy(update={"resources_per_node": per_node})
    if request.work.distributed is not None:
        fields = {
            name: {**amounts, "memory": memory.amount}
            for name in ("requests", "limits")
            if "memory" in (amounts := getattr(request.work.distributed, name))
        }
        changes["distributed"] = request.work.distributed.model_copy(update=fields)
    return request.with_fields(**changes)


def _get_asked(request: TrainJobRequest) -> str:
    trainer, distributed = request.work.trainer, request.work.distributed
    amounts = (
        (trainer and trainer.resources_per_node) or {},
        distributed.limits if distributed else {},
        distributed.requests if distributed else {},
    )
    asked = next((str(each["memory"]) for each in amounts if "memory" in each), None)
    if asked is None:
        raise InvalidRequestError(
            "MoreMemory: the request names no memory for its first attempt; set resources_per_node="
            "{'memory': '8Gi'} of the trainer"
        )
    return asked


def _grow(amount: str, policy: MoreMemory) -> str | None:
    """Return an amount times the factor, in whole Mi, at most the limit; None if it is the limit."""
    size, limit = _size(amount), _size(policy.limit)
    if size >= limit:
        return None
    grown = math.ceil(size * resources.parse_quantity(policy.factor) / _MEBI) * _MEBI
    if grown >= limit:
        return policy.limit
    return f"{grown // _GIBI}Gi" if grown % _GIBI == 0 else f"{grown // _MEBI}Mi"


_size = resources.parse_quantity
