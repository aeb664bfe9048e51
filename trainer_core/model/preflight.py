"""What `trainjob doctor` found: the checks of a backend as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

#: States of a check: fulfilled; not fulfilled, and some features do not work; not fulfilled, and no job can run; not
#: determined.
OK = "ok"
LIMITED = "limited"
MISSING = "missing"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class PreflightCheck:
    """Result of one check."""

    what: str
    #: `OK`, `LIMITED`, `MISSING` or `UNKNOWN`.
    state: str
    #: What the check found.
    found: str
    #: What does not work because of it, or what to do; empty if the check is fulfilled.
    cost: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the result as a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class PreflightReport:
    """Results of all checks."""

    checks: tuple[PreflightCheck, ...]
    #: RBAC objects that grant the missing permissions.
    repair: tuple[dict[str, Any], ...] = ()

    @property
    def fit(self) -> bool:
        """Whether jobs can run."""
        return all(check.state != MISSING for check in self.checks)
