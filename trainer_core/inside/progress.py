"""Progress of a training function, as lines in its log.

A line is the one channel that every backend has. Rank 0 prints at most one per interval; what a call in between
said is merged into the next line, so metrics given once are not lost. The last step always gets its line.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from . import contract

__all__ = ["INTERVAL", "PREFIX", "Reporter", "flush", "parse_progress", "progress"]

PREFIX = "[trainjob:progress] "
#: Seconds between two lines: often enough for a progress bar, rare enough to cost nothing.
INTERVAL = 0.5


def progress(step: float | None = None, total: float | None = None, metrics: Mapping[str, Any] | None = None) -> None:
    """Tell whoever follows the job how far the training is.

    Cheap enough for every step: only rank 0 prints, and at most two lines a second, but the last step
    (``step == total``) always. Metrics that are tensors are read only when a line is printed. Never raises.

    Args:
        step: Steps done.
        total: Steps there are.
        metrics: Numbers by name; NaN and infinity become null.
    """
    with contextlib.suppress(Exception):  # A closed stdout or an odd metric must not end a training.
        _reporter.report(step, total, metrics)


def flush() -> None:
    """Print what the last calls of `progress` said and no line has shown yet."""
    with contextlib.suppress(Exception):  # At the exit of a process, stdout is often closed already.
        _reporter.flush()


def parse_progress(line: str) -> dict[str, Any] | None:
    """Read a line of a log; None where it is no progress line.

    Args:
        line: With or without what a launcher or an unfinished line put in front.

    Returns:
        ``step``, ``total`` and ``metrics`` (floats by name), as far as they are known.
    """
    _, found, text = line.partition(PREFIX)
    if not found:
        return None
    try:
        return _known(json.loads(text))
    except (ValueError, OverflowError, RecursionError, AttributeError):
        return None


def _known(data: dict[str, Any]) -> dict[str, Any]:
    numbers = {key: data[key] for key in ("step", "total") if _is_number(data.get(key))}
    metrics = data.get("metrics")
    if not isinstance(metrics, dict):
        return numbers
    return {**numbers, "metrics": {key: float(value) for key, value in metrics.items() if _is_number(value)}}


class Reporter:
    """Prints progress lines, at most one per interval.

    Args:
        clock: Seconds that only grow.
        interval: Seconds between two lines.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, interval: float = INTERVAL) -> None:
        self._clock = clock
        self._interval = interval
        self._due = -math.inf
        self._pending: dict[str, Any] = {}

    def report(self, step: Any = None, total: Any = None, metrics: Any = None) -> None:
        """Print a line if it is time for one, else keep what was said for the next."""
        if contract.rank() != 0:
            return
        now = self._clock()
        waits = now < self._due and not (step is not None and step == total)
        said = {"step": step, "total": total}
        self._pending.update({key: _number(value) for key, value in said.items() if value is not None})
        # What waits is plain numbers only: a tensor would hold its whole graph in memory, or wait for the device.
        read = {str(k): _number(v) for k, v in (metrics or {}).items() if not waits or type(v) in (int, float)}
        if read:
            self._pending["metrics"] = {**self._pending.get("metrics", {}), **read}
        if not waits:
            self._due = now + self._interval
            self.flush()

    def flush(self) -> None:
        """Print what no line has shown yet."""
        pending, self._pending = self._pending, {}
        if pending and sys.stdout is not None:
            # One write, so that lines of other threads cannot fall in between.
            sys.stdout.write(PREFIX + json.dumps(pending, allow_nan=False) + "\n")
            sys.stdout.flush()


def _number(value: Any) -> float | int | None:
    """A number of any library as JSON has it; None for what is none."""
    try:
        number = value.item() if hasattr(value, "item") else value
        number = int(number) if isinstance(number, int) else float(number)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


_reporter = Reporter()
atexit.register(flush)
