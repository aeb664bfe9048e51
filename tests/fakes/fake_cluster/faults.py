"""What goes wrong between a client and a server: as a test says, or at random."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from aiohttp import web


@dataclass(frozen=True)
class Fault:
    """What happens to one request."""

    #: It is refused with this status.
    status: int | None = None
    #: Seconds in the header Retry-After of the refusal.
    retry_after: float | None = None
    reset: bool = False
    #: Seconds without an answer, then the connection is reset.
    hang: float | None = None
    #: It takes effect before it fails, which the client cannot see.
    after: bool = False
    #: The answer breaks off; a watch ends within a line.
    truncate: bool = False
    #: A watch ends with an error event: 410, the resourceVersion is too old.
    gone: bool = False
    #: Seconds between the bytes of an answer.
    drip: float | None = None

    @property
    def name(self) -> str:
        named = {
            "hang": self.hang,
            "reset": self.reset,
            "truncate": self.truncate,
            "gone": self.gone,
            "drip": self.drip,
        }
        words = [str(self.status)] if self.status else [word for word, value in named.items() if value]
        return "-".join([*words, *(["after"] if self.after else [])])

    @property
    def in_stream(self) -> bool:
        """Whether it happens within an answer."""
        return bool(self.truncate or self.gone or self.drip)


#: Under which a request carries what goes wrong within its answer.
OF_REQUEST = web.RequestKey("fault", Fault)
#: What happens at random unless said otherwise; for a watch, what may happen to its stream besides.
KINDS = (
    Fault(status=429, retry_after=0.05),
    Fault(status=500),
    Fault(status=503),
    Fault(status=500, after=True),
    Fault(reset=True),
    Fault(reset=True, after=True),
    Fault(hang=0.5),
)
_WATCH_KINDS = (Fault(truncate=True), Fault(gone=True))


@dataclass
class _Plan:
    method: str | None
    path: re.Pattern[str] | None
    watch: bool | None
    times: int
    fault: Fault

    def fits(self, method: str, path: str, watch: bool) -> bool:
        return (
            self.times > 0
            and self.method in (None, method)
            and self.watch in (None, watch)
            and (self.path is None or bool(self.path.search(path)))
        )


@dataclass
class Faults:
    """The faults of a cluster."""

    #: How often each has happened.
    counts: Counter[str] = field(default_factory=Counter)
    _plans: list[_Plan] = field(default_factory=list)
    _rate: float = 0.0
    _kinds: Sequence[Fault] = KINDS
    _random: random.Random = field(default_factory=random.Random)

    def next(
        self,
        fault: Fault | None = None,
        *,
        method: str | None = None,
        path: str | None = None,
        watch: bool | None = None,
        times: int = 1,
        **facts: float | bool | None,
    ) -> None:
        """Let the next request that fits go wrong.

        Args:
            fault: What happens; else its attributes as keywords: ``next(status=503)``.
            method: Only requests of this method.
            path: Only paths in which this regular expression is found.
            watch: Only watches, or only others.
            times: How many requests.
            **facts: Attributes of the fault.
        """
        fault = replace(fault or Fault(), **facts)  # type: ignore[arg-type]
        self._plans.append(_Plan(method, re.compile(path) if path else None, watch, times, fault))

    def at_random(self, rate: float, seed: int = 0, kinds: Sequence[Fault] | None = None) -> None:
        """Let each request go wrong with this probability, the same ones for the same seed and order."""
        self._rate, self._kinds, self._random = rate, kinds or KINDS, random.Random(seed)  # noqa: S311 -- a test

    def clear(self) -> None:
        self._plans.clear()
        self._rate = 0.0

    def of(self, method: str, path: str, watch: bool) -> Fault | None:
        fault = self._planned(method, path, watch) or self._by_chance(watch)
        if fault is not None:
            self.counts[fault.name] += 1
        return fault

    def _planned(self, method: str, path: str, watch: bool) -> Fault | None:
        for plan in self._plans:
            if plan.fits(method, path, watch):
                plan.times -= 1
                return plan.fault
        return None

    def _by_chance(self, watch: bool) -> Fault | None:
        if self._random.random() >= self._rate:
            return None
        return self._random.choice([*self._kinds, *(_WATCH_KINDS * 2 if watch else ())])
