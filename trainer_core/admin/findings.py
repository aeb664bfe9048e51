"""Finding: one thing that is wrong with a runtime. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

__all__ = ["ERROR", "WARNING", "Finding", "Findings", "error", "warning"]

#: The server refuses it, or TrainJobs go wrong without a word.
ERROR = "error"
#: It can be used, though not for everything.
WARNING = "warning"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a runtime.

    Attributes:
        rule: The rule that it breaks, such as ``V4``; `docs/guides/runtimes.md` has the list.
        path: Where, such as ``spec.template.spec.replicatedJobs[node]``.
        message: What is wrong and what to do.
        severity: ``error`` or ``warning``.
    """

    rule: str
    path: str
    message: str
    severity: str = ERROR

    def __str__(self) -> str:
        return f"{self.severity} {self.rule} {self.path}: {self.message}"

    def to_dict(self) -> dict[str, str]:
        """Return it as JSON."""
        return asdict(self)


Findings = Iterator[Finding]


def error(rule: str, path: str, message: str) -> Finding:
    """Return a finding that makes the runtime unfit."""
    return Finding(rule, path, message)


def warning(rule: str, path: str, message: str) -> Finding:
    """Return a finding that leaves the runtime of use."""
    return Finding(rule, path, message, WARNING)
