"""Checks the TrainJobs that files define, such as Airflow DAGs, without running anything.

A package that can read definitions registers an entry point of the group `GROUP`: a function that takes a path and a
list of connections, and yields a `Definition` for each TrainJob it finds there, or one for each connection if the
TrainJob names no backend. The checks are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from pydantic import ValidationError

from trainer_core.base import validation
from trainer_core.base.errors import TrainerError
from trainer_core.client import TrainerClient
from trainer_core.definition import request_builder
from trainer_core.model.request import UNNAMED, TrainJobRequest
from trainer_core.node.requirement import strip_options
from trainer_core.packaging.project_imports import find_import_problems
from trainer_core.runtime_admin import rules

GROUP = "trainjob.lint"
#: Largest number of requirements that a warning names.
_MAX_NAMED = 3


@dataclass(frozen=True)
class Definition:
    """A TrainJob that a file defines, the error that prevented reading it, or warnings about what contains it."""

    #: The file, with the line number if it is known.
    file: str
    #: Location in the file, such as ``{"dag": "nightly", "task": "train"}``.
    location: Mapping[str, str] = field(default_factory=dict)
    #: Why it could not be read. None if there is a request or a warning.
    error: str | None = None
    request: Mapping[str, Any] | None = None
    #: Paths of the values in it that are known only at run time.
    unknown: tuple[tuple[str, ...], ...] = ()
    #: What is wrong with it in some runs only.
    warnings: tuple[str, ...] = ()
    #: Creates the client of its backend. May raise what `TrainerClient` and the orchestrator raise.
    client: Callable[[], TrainerClient] | None = None


@dataclass(frozen=True)
class Problem:
    """One problem of a definition."""

    file: str
    location: Mapping[str, str]
    #: The field, what is wrong with it, and what to do, in one line.
    message: str

    def __str__(self) -> str:
        where = ", ".join(f"{kind} {name}" for kind, name in self.location.items())
        return ": ".join(part for part in (self.file, where, self.message) if part)

    def to_dict(self) -> dict[str, str]:
        """Return the problem as plain JSON data."""
        return {"file": self.file, **self.location, "problem": self.message}


def find_definitions(path: str, connections: Sequence[str] = ()) -> Iterator[Definition]:
    """Yield the TrainJobs that the registered readers find below a path."""
    for entry_point in metadata.entry_points(group=GROUP):
        yield from entry_point.load()(path, connections)


def find_problems(definitions: Iterable[Definition], *, server: bool = False) -> Iterator[Problem]:
    """Yield the problems of definitions."""
    for definition in definitions:
        if definition.error is None and definition.request is None:
            continue  # It only has warnings.
        messages = [definition.error] if definition.error else list(_validate(definition))
        if server and not messages and not definition.unknown:
            messages = list(_dry_run(definition))
        for message in messages:
            yield Problem(definition.file, definition.location, " ".join(message.split()))


def find_warnings(definition: Definition) -> Iterator[str]:
    """Yield what is wrong with a definition in some runs only."""
    yield from definition.warnings
    packages: dict[str, None] = {}
    for backend, request in request_builder.list_variants(definition.request or {}).items():
        trainer = request.get("trainer") or {}
        packages.update(dict.fromkeys(trainer.get("packages") or ()))
        if not (trainer.get("code") or {}).get("project"):
            yield from dict.fromkeys(find_import_problems(trainer, backend or "local"))
    ranges = [strip_options(each) for each in packages if not _is_exact(each)]
    if ranges:
        more = f" and {len(ranges) - _MAX_NAMED} more" if len(ranges) > _MAX_NAMED else ""
        named = ", ".join(ranges[:_MAX_NAMED])
        yield (
            f"packages_to_install: {named}{more}: no exact version, so a retry may install another one; write "
            "name==version, or give a uv.lock"
        )


def _is_exact(requirement: str) -> bool:
    """Return whether a requirement names one version: by ``==``, or by the path or URL of a distribution."""
    specifier = strip_options(requirement).partition(";")[0]
    return ("==" in specifier and "*" not in specifier) or "/" in specifier or validation.is_placeholder(specifier)


def _validate(definition: Definition) -> Iterator[str]:
    messages: dict[str, None] = {}
    for backend, request in request_builder.list_variants(definition.request or {}).items():
        prefix = ("on_backend", backend)
        unknown_paths = [path[2:] if path[:2] == prefix else path for path in definition.unknown]
        try:
            TrainJobRequest.model_validate(request)
        except ValidationError as error:
            for path, message in validation.list_problems(error, hidden=UNNAMED):
                if not any(_overlap(path, unknown) for unknown in unknown_paths):
                    messages[message] = None
        trainer = request.get("trainer") or {}
        if (trainer.get("code") or {}).get("project"):
            messages.update(dict.fromkeys(find_import_problems(trainer, backend or "local")))
        for message in _find_unknown_fields(request):
            messages[message] = None
    yield from messages


def _find_unknown_fields(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield the unknown fields of RuntimePatch, whose dicts no other offline check reads."""
    patches = request.get("patches")
    for index, patch in enumerate(patches if isinstance(patches, list) else ()):
        if isinstance(patch, Mapping):
            for path, message in rules.find_unknown_fields(patch, "RuntimePatch", f"patches.{index}"):
                yield f"{path}: {message}"


def _overlap(path: tuple[str, ...], unknown: tuple[str, ...]) -> bool:
    """Return whether an unknown value may be the cause of a problem: one of the two paths contains the other."""
    length = min(len(path), len(unknown))
    return path[:length] == unknown[:length]


def _dry_run(definition: Definition) -> Iterator[str]:
    try:
        client = definition.client() if definition.client else None
        if client is not None:
            request = request_builder.select_backend(definition.request or {}, client.backend)
            client.dry_run(TrainJobRequest.parse(request))
    except (TrainerError, ValueError) as error:
        yield str(error)
