"""The backends by name. Their modules are loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from trainer_core.base.errors import BackendUnavailableError
from trainer_core.base.secrets import redact

if TYPE_CHECKING:
    from trainer_core.backends.base import Backend

__all__ = ["BACKENDS", "backend_class"]

#: Module and class of each backend, by its name.
BACKENDS = {
    "local": "trainer_core.backends.local.backend:LocalProcessBackend",
    "debug": "trainer_core.backends.debug:DebugBackend",
    "kubernetes": "trainer_core.backends.trainer_v2.backend:KubernetesBackend",
    "container": "trainer_core.backends.container.backend:ContainerBackend",
    "runai": "trainer_core.backends.runai.backend:RunaiBackend",
    "training-operator": "trainer_core.backends.training_operator.backend:TrainingOperatorBackend",
}


def backend_class(name: str) -> type[Backend]:
    """Return the class of a backend. Does not load its client library."""
    if name not in list(BACKENDS):  # A list: the name may be a value that cannot be hashed.
        raise ValueError(f"unknown backend {redact(name)}; known are {', '.join(sorted(BACKENDS))}")
    module, _, attribute = BACKENDS[name].partition(":")
    try:
        backend: type[Backend] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("trainer_core"):
            raise
        raise BackendUnavailableError(
            f"the {name} backend is not part of this release of trainjob-workflows; use 'local' or 'debug'"
        ) from error
    return backend
