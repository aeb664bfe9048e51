"""A TrainerClient for the inputs of a component, which rides out what passes by itself: the exit of a step is final."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_core.client import TrainerClient
from trainer_core.lifecycle import wait_state
from trainer_core.model.config import config_class, config_from_dict
from trainer_core.model.jobs import TrainJobRef

#: Seconds for which a step repeats what may pass by itself, as long as a wait tolerates errors.
LIMIT_SECONDS = wait_state.MAX_UNAVAILABLE_SECONDS

#: Set in the components' image.
IN_CONTAINER = "TRAINJOB_KFP_CONTAINER"


def create_client(backend: str, settings: dict[str, Any] | None) -> TrainerClient:
    return TrainerClient(config_from_dict(backend, settings or {}), retry_seconds=LIMIT_SECONDS)


def open_job(ref_data: Mapping[str, Any], settings: dict[str, Any] | None) -> tuple[TrainerClient, TrainJobRef]:
    """Return the ref of a job, and a client that reaches the job; settings win over what the ref says."""
    ref = TrainJobRef.from_dict(ref_data)
    kind = config_class(ref.backend)
    known = {kind.namespace_setting: ref.namespace} if kind.namespace_setting in kind.model_fields else {}
    return create_client(ref.backend, {**known, **(settings or {})}), ref
