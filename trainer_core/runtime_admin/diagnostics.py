"""Diagnostic: a problem of a runtime manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

#: The API server refuses the runtime, or its TrainJobs fail without a clear reason.
ERROR = "error"
#: The runtime works, with restrictions.
WARNING = "warning"


@dataclass(frozen=True)
class Diagnostic:
    """A problem of a runtime; `docs/guides/runtimes.md` lists the rules, such as ``V4``."""

    rule: str
    path: str
    message: str
    severity: str = ERROR

    def __str__(self) -> str:
        return f"{self.severity} {self.rule} {self.path}: {self.message}"

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


Diagnostics = Iterator[Diagnostic]


def build_error(rule: str, path: str, message: str) -> Diagnostic:
    return Diagnostic(rule, path, message)


def build_warning(rule: str, path: str, message: str) -> Diagnostic:
    return Diagnostic(rule, path, message, WARNING)
