"""Repeats what fails for a reason that may pass by itself, such as a server that is away."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import TIMEOUT_MAX
from typing import TypeVar

from trainer_core.secrets import redact

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


def repeat_while_failing(
    action: Callable[[], _T],
    may_pass: Callable[[Exception], bool],
    limit: float,
    report: Callable[[Exception, float], object],
) -> _T:
    """Return the result of an action, which is repeated for `limit` seconds as long as its error may pass by itself.

    `report` gets the first error, and one each ten seconds, with the seconds that remain.
    """
    begin = next_report = time.monotonic()
    pause = _MIN_PAUSE
    while True:
        try:
            return action()
        except Exception as error:
            now = time.monotonic()
            if now - begin >= limit or not may_pass(error):
                raise
            if now >= next_report:
                next_report = now + _REPORT_SECONDS
                report(error, limit - (now - begin))
        time.sleep(min(pause, max(0.0, begin + limit - now)))
        pause = min(2 * pause, _MAX_PAUSE)
