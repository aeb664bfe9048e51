"""The names of the backends: those of this project, and those that other distributions add by an entry point."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from trainer_core.base.errors import BackendUnavailableError
from trainer_core.base.text import shorten

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_T = TypeVar("_T")
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


#: The same for what the options of one backend set in a request: the name in a request, and the class of its model.
EXTENSIONS_GROUP = "trainjob.extensions"
OWN_EXTENSIONS = {
    "pytorch_job": "trainer_core.backends.training_operator.options:PyTorchJob",
    "runai": "trainer_core.backends.runai.options:RunaiFields",
}

#: The same for recipes: the name of the library, and the class of its settings.
RECIPES_GROUP = "trainjob.recipes"
#: The recipe of a request that names none.
DEFAULT_RECIPE = "torchtune"
OWN_RECIPES = {
    "torchtune": "trainer_core.model.torchtune:TorchTuneConfig",
    "trl": "trainer_core.definition.trl:TRLConfig",
}
_OWN = {GROUP: OWN_BACKENDS, EXTENSIONS_GROUP: OWN_EXTENSIONS, RECIPES_GROUP: OWN_RECIPES}


@cache
def find_plugins(group: str = GROUP) -> dict[str, EntryPoint]:
    """Return what other distributions add, the first of each name. Reads what is installed; loads nothing."""
    from importlib.metadata import distributions  # Slow to import, and only a name that is not ours needs it.

    found: dict[str, EntryPoint] = {}
    for distribution in distributions():
        with suppress(Exception):  # Metadata that cannot be read must not hide the backends of others.
            for point in distribution.entry_points.select(group=group):
                found.setdefault(point.name, point)
    return {name: point for name, point in found.items() if name not in _OWN[group]}


def is_backend(name: object) -> bool:
    """Return whether a backend has this name. Whether it can be loaded, its use shows."""
    return isinstance(name, str) and (name in OWN_BACKENDS or name in find_plugins())


def list_backends() -> list[str]:
    """Return the names of all backends."""
    return sorted({*OWN_BACKENDS, *find_plugins()})


def get_backend_kinds(name: str) -> frozenset[str]:
    """Return what the nodes of a backend are, which its configuration says; nothing for a name that no backend has."""
    if not is_backend(name):
        return frozenset()
    kind: Any = load_class(name, get_config_reference(name), object, "backend")
    return frozenset(kind.kinds)


def get_config_reference(name: str) -> str:
    """Return module and class of the configuration of a backend."""
    return OWN_BACKENDS.get(name) or find_plugins()[name].value


def is_extension(name: object) -> bool:
    """Return whether a backend has an extension of this name."""
    return isinstance(name, str) and (name in OWN_EXTENSIONS or name in find_plugins(EXTENSIONS_GROUP))


def get_extension_reference(name: str) -> str:
    """Return module and class of the model of an extension."""
    return OWN_EXTENSIONS.get(name) or find_plugins(EXTENSIONS_GROUP)[name].value


def load_class(name: str, reference: str, base: type[_T], attribute: str | None, group: str = GROUP) -> type[_T]:
    """Load a class of a backend; whatever the code of another distribution raises becomes one error.

    Args:
        name: Name of the backend.
        reference: Module and class, as ``module:Class``.
        base: Base class that it must have.
        attribute: Its attribute that must be the name of the backend, if any.
        group: Group of the entry point.
    """
    module, _, kind = reference.partition(":")
    try:
        found = getattr(import_module(module), kind)
        if not (isinstance(found, type) and issubclass(found, base)):
            raise TypeError(f"must be a subclass of {base.__name__}")
        if attribute and getattr(found, attribute, None) != name:
            raise TypeError(f"must have the {attribute} {name!r}")
    except (Exception, SystemExit) as error:
        point = find_plugins(group).get(name) or find_plugins().get(name)
        if point is None:
            raise
        what = "recipe" if group == RECIPES_GROUP else "backend"
        raise BackendUnavailableError(
            f"the {name} {what} cannot be loaded: {shorten(reference, 100)} of {_describe_distribution(point)}: "
            f"{type(error).__name__}: {shorten(str(error), 200)}; update that distribution, or uninstall it"
        ) from error
    return found


def _describe_distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "another distribution"
