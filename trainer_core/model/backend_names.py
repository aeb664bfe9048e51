"""The names of the backends: those of this project, and those that other distributions add by an entry point."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Group of the entry points: the name of a backend, and the class of its configuration.
GROUP = "trainjob.backends"
#: The entry points of this project, as pyproject.toml has them: they are found without reading what is installed.
OWN_BACKENDS = {
    "local": "trainer_core.model.config:LocalProcessBackendConfig",
    "debug": "trainer_core.model.config:DebugBackendConfig",
    "kubernetes": "trainer_core.model.config:KubernetesBackendConfig",
    "container": "trainer_core.model.config:ContainerBackendConfig",
    "runai": "trainer_core.backends.runai.config:RunaiBackendConfig",
    "training-operator": "trainer_core.backends.training_operator.config:TrainingOperatorBackendConfig",
}


@cache
def find_plugins() -> dict[str, EntryPoint]:
    """Return the backends of other distributions, the first of each name. Reads what is installed; loads nothing."""
    from importlib.metadata import distributions  # Slow to import, and only a name that is not ours needs it.

    found: dict[str, EntryPoint] = {}
    for distribution in distributions():
        with suppress(Exception):  # Metadata that cannot be read must not hide the backends of others.
            for point in distribution.entry_points.select(group=GROUP):
                found.setdefault(point.name, point)
    return {name: point for name, point in found.items() if name not in OWN_BACKENDS}


def is_backend(name: object) -> bool:
    """Return whether a backend has this name. Whether it can be loaded, its use shows."""
    return isinstance(name, str) and (name in OWN_BACKENDS or name in find_plugins())


def list_backends() -> list[str]:
    """Return the names of all backends."""
    return sorted({*OWN_BACKENDS, *find_plugins()})
