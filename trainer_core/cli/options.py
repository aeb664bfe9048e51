"""Global options of the command, and parsing of ``name=value`` options."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar, get_type_hints

from trainer_core.base.errors import InvalidRequestError
from trainer_core.base.secrets import redact
from trainer_core.base.text import WrittenText, write_text
from trainer_core.base.validation import read_value
from trainer_core.base.yaml_documents import parse_yaml
from trainer_core.client import TrainerClient
from trainer_core.model.config import BackendConfig, config_from_dict

_T = TypeVar("_T")
#: Value of ``--from-checkpoint`` without a step.
NEWEST = "newest"


@dataclass
class GlobalOptions:
    """Options for all subcommands."""

    #: Name of the backend; None for ``TRAINJOB_BACKEND``, or ``local`` if it is not set.
    backend: str | None = None
    home: str | None = None
    namespace: str | None = None
    context: str | None = None

    @cached_property
    def config(self) -> BackendConfig:
        """Configuration of the backend."""
        options = {"home": self.home, "namespace": self.namespace, "context": self.context}
        name = self.backend or os.environ.get("TRAINJOB_BACKEND") or "local"
        return config_from_dict(name, {key: value for key, value in options.items() if value is not None})

    @cached_property
    def client(self) -> TrainerClient:
        """Client of the backend, created on first use."""
        return TrainerClient(self.config)


def expand_flags(command: Callable[..., _T]) -> Callable[..., _T]:
    """Decorator of a command that has several parameters as one: the fields of the dataclass of `flags`."""
    own = inspect.signature(command, eval_str=True)
    flags = own.parameters["flags"].annotation
    hints = get_type_hints(flags, include_extras=True)

    @functools.wraps(command)
    def run(**given: Any) -> _T:
        return command(flags=flags(**{name: given.pop(name) for name in hints}), **given)

    parameters: list[inspect.Parameter] = []
    for each in own.parameters.values():
        expanded = fields(flags) if each.name == "flags" else ()
        parameters += [
            each.replace(name=field.name, annotation=hints[field.name], default=field.default) for field in expanded
        ] or [each]
    # Typer reads both.
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def move_global_options(arguments: Sequence[str]) -> list[str]:
    """Return arguments with the global options before the subcommand, where they may also have been given after it."""
    # `runtimes create --namespace` is another option.
    names = {"--backend", "--home", "--context"} | ({"--namespace"} if "create" not in arguments else set())
    first: list[str] = []
    rest: list[str] = []
    remaining = list(arguments)
    while remaining and remaining[0] != "--":
        argument = remaining.pop(0)
        if argument in names and remaining:
            first += [argument, remaining.pop(0)]
        elif argument.partition("=")[0] in names:
            first.append(argument)
        else:
            rest.append(argument)
    return [*first, *rest, *remaining]


def fill_optional_values(arguments: Sequence[str]) -> list[str]:
    """Return arguments in which ``--from-checkpoint`` without a step has the value `NEWEST`."""
    filled: list[str] = []
    for number, argument in enumerate(arguments, start=1):
        filled.append(argument)
        if argument == "--from-checkpoint" and not "".join(arguments[number : number + 1])[:1].isdecimal():
            filled.append(NEWEST)
    return filled


def parse_key_values(option: str, values: Sequence[str] | None) -> dict[str, str]:
    """Parse the values of an option, each ``name=value``."""
    found: dict[str, str] = {}
    for value in values or ():
        name, is_given, text = value.partition("=")
        if not name or not is_given:
            raise InvalidRequestError(f"{option} must be name=value, got {redact(value)}")
        if name in found:
            raise InvalidRequestError(f"{option} {name}= is given twice; give it once")
        found[name] = text
    return found


def parse_arguments(values: Sequence[str] | None) -> dict[str, WrittenText]:
    """Parse the values of ``--arg``, which the declared types of the function decide."""
    return {name: write_text(text, read_value(text)) for name, text in parse_key_values("--arg", values).items()}


def parse_options(values: Sequence[str] | None) -> list[Any]:
    """Parse the values of ``--option``: ``Name=value``, or an option as definitions have it."""
    found = []
    for value in values or ():
        name, is_short, text = value.partition("=")
        is_short = is_short if name.isidentifier() else ""
        try:
            (option,) = parse_yaml(text if is_short else value)
        except ValueError as error:
            raise InvalidRequestError(
                f"--option {redact(value)} is neither Name=value, such as QueueName=nightly, nor JSON, such as "
                f'\'{{"Checkpoints": {{"every_steps": 100}}}}\': {error}'
            ) from error
        found.append({name: option} if is_short else option)
    return found
