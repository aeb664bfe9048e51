"""Names → backend classes, loaded on first use, and the sentence that names a missing extra."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from trainer_core.errors import BackendUnavailableError

if TYPE_CHECKING:
    from trainer_core.backends.base import Backend

__all__ = ["BACKENDS", "backend_class"]

#: Where each backend lives, as module:class.
BACKENDS = {
    "local": "trainer_core.backends.local.backend:LocalProcessBackend",
    "debug": "trainer_core.backends.debug.backend:DebugBackend",
    "kubernetes": "trainer_core.backends.kubernetes.backend:KubernetesBackend",
    "container": "trainer_core.backends.container.backend:ContainerBackend",
    "runai": "trainer_core.backends.runai.backend:RunaiBackend",
    "training-operator": "trainer_core.backends.training_operator.backend:TrainingOperatorBackend",
}


def backend_class(name: str) -> type[Backend]:
    """Return the class of a backend. Loads no client library.

    Raises:
        ValueError: No backend has that name.
        BackendUnavailableError: It is not part of this release yet.
    """
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; known are {', '.join(sorted(BACKENDS))}")
    module, _, attribute = BACKENDS[name].partition(":")
    try:
        found: type[Backend] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("trainer_core"):
            raise
        raise BackendUnavailableError(
            f"the {name} backend is not part of this release of trainjob-workflows; use 'local' or 'debug'"
        ) from error
    return found
