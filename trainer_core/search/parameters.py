"""Puts the parameters of a trial into its request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_core.request import Code, TrainJobRequest
from trainer_core.search.definition import SearchDefinition

__all__ = ["apply_objective", "apply_parameters"]


def apply_parameters(request: TrainJobRequest, parameters: Mapping[str, Any]) -> TrainJobRequest:
    """Return the request of a trial with its parameters as arguments of the function."""
    trainer = request.trainer
    if trainer is None or trainer.code is None:
        return request
    code = Code.model_validate({**trainer.code.model_dump(), "args": {**trainer.code.args, **parameters}})
    return request.model_copy(update={"trainer": trainer.model_copy(update={"code": code})})


def apply_objective(request: TrainJobRequest, definition: SearchDefinition, until: float | None) -> TrainJobRequest:
    """Return the request of a trial with what its nodes report."""
    return request
