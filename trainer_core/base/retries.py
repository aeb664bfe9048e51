"""Repeats what fails for a reason that may pass by itself, such as a server that is away."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from threading import TIMEOUT_MAX
from typing import TypedDict, TypeVar

from trainer_core.base.secrets import redact

_T = TypeVar("_T")

_LIMIT_VARIABLE = "TRAINJOB_SUBMIT_RETRY_SECONDS"
#: Seconds between two reports, and between two tries.
_REPORT_SECONDS = 10.0
_MIN_PAUSE, _MAX_PAUSE = 0.5, 4.0


def read_limit(default: float) -> float:
    """Return the seconds for which to repeat: those of the environment, else the default."""
    text = os.environ.get(_LIMIT_VARIABLE)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= TIMEOUT_MAX:
        raise ValueError(f"{_LIMIT_VARIABLE} must be a number of seconds, at least 0, got {redact(text)}")
    return seconds


class Retries(TypedDict):
    """How long which errors are repeated: arguments of `repeat_while_failing`."""

    may_pass: Callable[[Exception], bool]
    limit: float
    report: Callable[[Exception, float], object]


def repeat_while_failing(
    action: Callable[[], _T],
    may_pass: Callable[[Exception], bool],
    limit: float,
    report: Callable[[Exception, float], object] | None = None,
    pauses: tuple[float, float] = (_MIN_PAUSE, _MAX_PAUSE),
) -> _T:
    """Return the result of an action, which is repeated for `limit` seconds as long as its error may pass by itself.

    `report` gets the first error, and one each ten seconds, with the seconds that remain. `pauses` are the first and
    the longest pause; each is twice the one before.
    """
    schedule = _Schedule(may_pass, limit, report, pauses)
    while True:
        try:
            return action()
        except Exception as error:
            pause = schedule.get_pause(error)
            if pause is None:
                raise
        time.sleep(pause)


async def repeat_while_failing_async(
    action: Callable[[], Awaitable[_T]],
    may_pass: Callable[[Exception], bool],
    limit: float,
    report: Callable[[Exception, float], object] | None = None,
    pauses: tuple[float, float] = (_MIN_PAUSE, _MAX_PAUSE),
) -> _T:
    """Do the same without blocking the running event loop."""
    import asyncio  # Takes 40 ms, and most programs that import the core do not wait asynchronously.

    schedule = _Schedule(may_pass, limit, report, pauses)
    while True:
        try:
            return await action()
        except Exception as error:
            pause = schedule.get_pause(error)
            if pause is None:
                raise
        await asyncio.sleep(pause)


class _Schedule:
    """Decides when a failed action is tried again."""

    def __init__(
        self,
        may_pass: Callable[[Exception], bool],
        limit: float,
        report: Callable[[Exception, float], object] | None,
        pauses: tuple[float, float],
    ) -> None:
        self._may_pass = may_pass
        self._report = report
        self._next_report = time.monotonic()
        self._end = self._next_report + limit
        self._pause, self._max_pause = pauses

    def get_pause(self, error: Exception) -> float | None:
        """Return the seconds until the next try; None if the error is final."""
        now = time.monotonic()
        remaining = self._end - now
        if remaining <= 0 or not self._may_pass(error):
            return None
        if self._report is not None and now >= self._next_report:
            self._next_report = now + _REPORT_SECONDS
            self._report(error, remaining)
        pause, self._pause = self._pause, min(2 * self._pause, self._max_pause)
        return min(pause, remaining)
