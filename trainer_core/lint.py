"""What is wrong with TrainJobs before anything runs: those of Airflow's DAGs, and of whoever else defines some.

Who can read definitions says so by an entry point of the group `GROUP`: a function of a path that yields what it
finds there, as `Found`. It need not know what is right and wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from pydantic import ValidationError

from trainer_core import checks
from trainer_core.client import TrainerClient
from trainer_core.errors import TrainerError
from trainer_core.request import TrainJobRequest

__all__ = ["GROUP", "Found", "Problem", "definitions", "problems"]

GROUP = "trainjob.lint"


@dataclass(frozen=True)
class Found:
    """A TrainJob that a file defines, or a mistake that kept it from being read.

    Attributes:
        file: The file, with the line where it is known.
        place: Where in the file, such as ``{"dag": "nightly", "task": "train"}``.
        mistake: What is wrong; None if there is a request.
        request: The request, as far as it is known.
        unknown: Paths of values in it that are known only when it runs.
        client: Reaches the backend it is meant for; may raise what `TrainerClient` and orchestrators raise.
    """

    file: str
    place: Mapping[str, str] = field(default_factory=dict)
    mistake: str | None = None
    request: Mapping[str, Any] | None = None
    unknown: tuple[tuple[str, ...], ...] = ()
    client: Callable[[], TrainerClient] | None = None


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        file: As for `Found`.
        place: As for `Found`.
        message: What is wrong, where in the TrainJob, and what to do: one line.
    """

    file: str
    place: Mapping[str, str]
    message: str

    def __str__(self) -> str:
        where = ", ".join(f"{kind} {name}" for kind, name in self.place.items())
        return ": ".join(part for part in (self.file, where, self.message) if part)

    def to_dict(self) -> dict[str, str]:
        """Return it as JSON."""
        return {"file": self.file, **self.place, "problem": self.message}


def definitions(path: str) -> Iterator[Found]:
    """Yield every TrainJob that those who can read definitions find below a path.

    Raises:
        TrainerError: Something that they need is missing.
    """
    for entry in metadata.entry_points(group=GROUP):
        yield from entry.load()(path)


def problems(found: Iterable[Found], *, server: bool = False) -> Iterator[Problem]:
    """Yield what is wrong.

    Args:
        found: As `definitions` yields them.
        server: Ask the backend of each as well, by a dry run; one with values that are not known yet cannot be.
    """
    for each in found:
        messages = [each.mistake] if each.mistake else list(_messages(each))
        if server and not messages and not each.unknown:
            messages = list(_refusals(each))
        yield from (Problem(each.file, each.place, " ".join(message.split())) for message in messages)


def _messages(found: Found) -> Iterator[str]:
    try:
        TrainJobRequest.model_validate(found.request)
    except ValidationError as error:
        for path, message in checks.each_problem(error):
            if not any(_concerns(path, unknown) for unknown in found.unknown):
                yield message


def _concerns(path: tuple[str, ...], unknown: tuple[str, ...]) -> bool:
    """Whether what is wrong at a path may be so because a value is not known: that value, or one that it is part of."""
    length = min(len(path), len(unknown))
    return path[:length] == unknown[:length]


def _refusals(found: Found) -> Iterator[str]:
    try:
        client = found.client() if found.client else None
        if client is not None:
            client.dry_run(TrainJobRequest.parse(found.request or {}))
    except (TrainerError, ValueError) as error:
        yield str(error)
