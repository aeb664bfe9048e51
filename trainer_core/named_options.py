"""Options as plain data: a name with its settings → the option. YAML files and DAGs spell them the same way."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args, get_type_hints

import trainer_core
from trainer_core import checks
from trainer_core.options.base import BaseOption

__all__ = ["options_from"]

_EXAMPLE = "such as [{'QueueName': 'nightly'}, {'Labels': {'team': 'vision'}}, 'Suspend']"


def options_from(given: Sequence[Any] | None) -> list[Any]:
    """Return options, made of what stands for one; those that are options already pass.

    A name stands alone where nothing can be set (``"Suspend"``). Else it is the key of its settings: of the one value
    where there is one (``{"QueueName": "nightly"}``), of a dict where there are several
    (``{"Workspace": {"claim": "data", "size": "1Ti"}}``).

    Args:
        given: A list of options, names, and names with settings; None for none.

    Raises:
        ValueError: No list, an unknown name, an unknown setting, or a value that the option refuses.
    """
    if given is None:
        return []
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
        raise ValueError(f"options must be a list {_EXAMPLE}, got {type(given).__name__}")
    return [_option(each) for each in given]


def _option(given: Any) -> Any:
    if isinstance(given, str):
        return _made(given, None)
    if not isinstance(given, Mapping):
        return given
    if len(given) != 1:
        names = ", ".join(map(str, given)) or "none"
        raise ValueError(f"an option is one name with its settings, {_EXAMPLE}; got {names}")
    ((name, settings),) = given.items()
    return _made(str(name), settings)


def _made(name: str, settings: Any) -> BaseOption:
    kind = _kind(name)
    known = [item.name for item in fields(kind) if item.init]  # type: ignore[arg-type]  # every option is a dataclass
    if settings is None:
        settings = {}
    elif len(known) == 1:
        settings = {known[0]: settings}
    elif not isinstance(settings, Mapping):
        takes = f"a dict of {', '.join(known)}" if known else "no settings"
        raise ValueError(f"option {name} takes {takes}, got {type(settings).__name__}")
    option: BaseOption = _filled(kind, settings)
    return option


def _filled(kind: type[Any], settings: Mapping[str, Any]) -> Any:
    """An object of a dataclass; fields that hold such objects themselves, as in `RuntimePatch`, are filled likewise."""
    given = checks.known_fields(kind, {_snake(str(key)): value for key, value in settings.items()})
    missing = [item.name for item in fields(kind) if item.init and _is_required(item) and item.name not in given]
    if missing:
        raise ValueError(f"{kind.__name__} needs {', '.join(missing)}")
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], value) for name, value in given.items()})


def _value(hint: Any, value: Any) -> Any:
    part = next((each for each in _parts(hint) if inspect.isclass(each) and is_dataclass(each)), None)
    if part is None:
        return value
    if isinstance(value, list):
        return [_value(part, each) for each in value]
    return _filled(part, value) if isinstance(value, Mapping) else value


def _parts(hint: Any) -> Iterator[Any]:
    """What an annotation is made of: of ``list[X] | None`` the X, among others."""
    yield hint
    for each in get_args(hint):
        yield from _parts(each)


def _snake(name: str) -> str:
    """Kubernetes' spelling of a field, which patches are often copied from, or ours."""
    return re.sub("([A-Z])", r"_\1", name).lower()


def _is_required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _kind(name: str) -> type[BaseOption]:
    """The public class of that name; only a name that is unknown makes it look through them all."""
    found = _public_option(name)
    if found is None:
        known = ", ".join(each for each in trainer_core.__all__ if _public_option(each))
        raise ValueError(f"unknown option {name}; known are {known}")
    return found


def _public_option(name: str) -> type[BaseOption] | None:
    found = getattr(trainer_core, name) if name in trainer_core.__all__ else None
    return found if inspect.isclass(found) and issubclass(found, BaseOption) else None
