"""Recipes: settings with which a library trains a model, without a function of the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from trainer_core.base import validation
from trainer_core.base.secrets import redact
from trainer_core.model import backend_names

if TYPE_CHECKING:
    from typing_extensions import Self


class Recipe:
    """Base of the settings of one library: `TorchTuneConfig`, `TRLConfig`. A subclass is a dataclass.

    Another distribution adds one by an entry point of the group ``trainjob.recipes``: its `framework` and the class.
    """

    #: Name of the library: its key in YAML, and the framework label of its runtimes.
    framework: ClassVar[str]
    #: The program that the image of the runtime contains.
    command: ClassVar[tuple[str, ...]]
    #: Fields that belong to the trainer of a request, and not to the program.
    trainer_fields: ClassVar[tuple[str, ...]] = ("num_nodes", "resources_per_node")
    #: Whether its runtimes run functions, too.
    runs_functions: ClassVar[bool] = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build the settings from plain data, as in a request or a YAML file.

        Raises:
            ValueError: An unknown field, or an invalid value.
        """
        return cls(**validation.known_fields(cls, data))

    @classmethod
    def to_args(cls, config: Mapping[str, Any], dataset_uri: str | None = None) -> list[str]:
        """Return the arguments of the program for settings as plain data, and the URI of the dataset, if any."""
        raise NotImplementedError

    def to_trainer(self, sources: Mapping[str, str]) -> dict[str, Any]:
        """Return the trainer of a request as plain data: a program of the image, with its settings.

        Args:
            sources: URIs that initializers fetch, by role: ``dataset``, ``model``.
        """
        del sources
        config = _to_json_data(asdict(self))  # type: ignore[call-overload]  # A subclass is a dataclass.
        own = {name: value for name in self.trainer_fields if (value := config.pop(name, None))}
        name = {} if self.framework == backend_names.DEFAULT_RECIPE else {"recipe": self.framework}
        return {"kind": "builtin", **name, "config": config, **own}


def is_recipe(name: object) -> bool:
    """Return whether a recipe has this name."""
    return name in backend_names.OWN_RECIPES or name in backend_names.find_plugins(backend_names.RECIPES_GROUP)


def find_recipe(name: str) -> type[Recipe]:
    """Return the class of a recipe by its name.

    Raises:
        ValueError: No recipe has this name.
        BackendUnavailableError: It belongs to another distribution, and cannot be loaded.
    """
    own, group = backend_names.OWN_RECIPES, backend_names.RECIPES_GROUP
    if not is_recipe(name):
        known = ", ".join(sorted({*own, *backend_names.find_plugins(group)}))
        raise ValueError(f"recipe {redact(name)} is unknown; known are {known}")
    reference = own.get(name) or backend_names.find_plugins(group)[name].value
    return backend_names.load_class(name, reference, Recipe, "framework", group)


def _to_json_data(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _to_json_data(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_to_json_data(item) for item in value]
    return value
