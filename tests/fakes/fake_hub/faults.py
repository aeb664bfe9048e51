"""What goes wrong on the way, at requests whose path has a given part, so many times."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Fault:
    """One thing that goes wrong; `times` counts down."""

    #: Part of the path, and the method, of the requests that the fault applies to.
    part: str
    method: str | None = None
    times: int = 1
    #: Answered instead.
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Bytes of the body that are sent before the connection breaks, or before `gate`.
    after: int = 0
    #: The body is of the right length, and wrong.
    spoils: bool = False
    #: The rest of the body is sent when this is set.
    gate: threading.Event | None = None
    #: Set when the body has come to `after`.
    reached: threading.Event = field(default_factory=threading.Event)

    def meets(self, method: str, path: str) -> bool:
        """Return whether it applies to a request, and count it."""
        if self.times < 1 or self.part not in path or self.method not in (None, method):
            return False
        self.times -= 1
        return True


def refused(part: str, status: int, times: int = 1, method: str | None = None, **headers: str) -> Fault:
    """Return an answer with an error status; underscores in the names of headers stand for hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Fault(part, method, times, status, named)


def cut(part: str, after: int, times: int = 1) -> Fault:
    """Return a connection that breaks in the middle of a body."""
    return Fault(part, "GET", times, after=after)


def held(part: str, after: int, times: int = 1) -> Fault:
    """Return a body that stands still until its gate is opened; `reached` tells when it does."""
    return Fault(part, "GET", times, after=after, gate=threading.Event())


def spoiled(part: str, times: int = 1) -> Fault:
    """Return a body that is not what it should be."""
    return Fault(part, "GET", times, spoils=True)
