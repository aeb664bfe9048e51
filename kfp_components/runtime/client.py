"""A TrainerClient for the inputs of a component."""

from __future__ import annotations

from typing import Any

from trainer_core.client import TrainerClient
from trainer_core.config import config_from_dict
from trainer_core.jobs import TrainJobRef

__all__ = ["IN_CONTAINER", "create_client", "create_client_for_ref"]

#: Set in the components' image.
IN_CONTAINER = "TRAINJOB_KFP_CONTAINER"

#: What the namespace of a ref is called in the configuration of its backend.
_PLACES = {"local": "home", "debug": None}


def create_client(backend: str, settings: dict[str, Any] | None) -> TrainerClient:
    """Return a client of a backend.

    Raises:
        ValueError: Unknown backend or setting.
        BackendUnavailableError: It cannot be used here.
    """
    return TrainerClient(config_from_dict(backend, settings or {}))


def create_client_for_ref(ref: TrainJobRef, settings: dict[str, Any] | None) -> TrainerClient:
    """Return a client that reaches the job of a ref; settings win over what the ref says.

    Raises:
        ValueError: Unknown backend or setting.
        BackendUnavailableError: It cannot be used here.
    """
    place = _PLACES.get(ref.backend, "namespace")
    return create_client(ref.backend, {**({place: ref.namespace} if place else {}), **(settings or {})})
