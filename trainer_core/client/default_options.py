"""The options that a backend's configuration gives to the TrainJobs whose requests do not have them."""

from __future__ import annotations

import os
from typing import Any

from trainer_core.backends.base import Backend
from trainer_core.base.errors import InvalidRequestError
from trainer_core.lifecycle.attempt_memory import get_attempt_memory
from trainer_core.model.config import BackendConfig, read_default_options
from trainer_core.model.request import DEFAULT_OPTIONS, TrainJobRequest

_VARIABLE = "TRAINJOB_DEFAULT_OPTIONS"


def read_fields(config: BackendConfig, backend: Backend) -> dict[str, Any]:
    """Return the fields that the default options set; those of the environment only where this backend accepts them."""
    what, options = f"{type(config).__name__} default_options", getattr(config, "default_options", None)
    try:
        if options is None and (text := os.environ.get(_VARIABLE)):
            what = _VARIABLE
            options = [each for each in read_default_options(text) if backend.accepts.issuperset(each)]
        if not options:
            return {}
        from trainer_core.definition import request_builder  # Loads the packaging code.

        data = request_builder.build_request_data(backend=backend, options=options)
        request = TrainJobRequest.parse(data)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error
    return {name: getattr(request.policy, name) for name in data if name in DEFAULT_OPTIONS.values()}


def apply(request: TrainJobRequest, fields: dict[str, Any]) -> TrainJobRequest:
    """Return a request with the fields that it does not have, where they apply. Its fingerprint is the same."""
    chosen = {
        name: value
        for name, value in fields.items()
        if getattr(request.policy, name) is None and _is_applicable(name, request.with_fields(**{name: value}))
    }
    if not chosen:
        return request
    defaults = tuple(sorted({*(request.context.defaults or ()), *chosen}))
    return request.with_fields(**chosen, defaults=defaults)


def _is_applicable(name: str, request: TrainJobRequest) -> bool:
    """Return whether a request can have a field: a default must not refuse a TrainJob."""
    trainer = request.work.trainer
    if trainer is None or name == "start_within":
        return name == "start_within"
    if name == "stalled":
        return trainer.code is not None
    if request.context.search is not None:
        return False  # A search decides about the retries of its trials.
    if name == "restart_policy":
        return not request.context.literal_secrets  # They are not stored for the next attempt.
    if name == "more_memory":
        if any(extension.sets_memory for extension in request.work.extensions.values()):
            return False
        try:
            get_attempt_memory(request)
        except InvalidRequestError:
            return False
    return True
