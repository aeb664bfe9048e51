"""Progress of a training function, as lines in its log.

Log lines are the one channel that every backend has. Rank 0 prints at most one line per interval; values of calls in
between are merged into the next line, so metrics passed once are not lost. The last step always gets a line.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import beats, env

if TYPE_CHECKING:
    from .objective import Objective

PREFIX = "[trainjob:progress] "
#: Seconds between two lines: frequent enough for a progress bar, and cheap.
INTERVAL = 0.5

#: The training function calls `progress`: reports of libraries are not shown.
is_called = False


def progress(step: float | None = None, total: float | None = None, metrics: Mapping[str, Any] | None = None) -> None:
    """Report the progress of the training to the followers of the job.

    Cheap enough for every step: only rank 0 prints, at most two lines a second, and always for the last step (``step ==
    total``). Metrics that are tensors are read only when a line is printed. Never raises.

    Args:
        step: Completed steps.
        total: Total number of steps.
        metrics: Numbers by name; NaN and infinity become null.

    Example:
        ```python
        from trainer_core import progress

        for step in range(100):
            progress(step=step + 1, total=100, metrics={"loss": 1 / (step + 1)})
        ```
    """
    global is_called
    is_called = True
    with contextlib.suppress(Exception):  # A closed stdout or an unusual metric must not end the training.
        _reporter.report(step, total, metrics)


def report_metrics(metrics: Mapping[str, Any], step: float | None = None) -> None:
    """Report metrics, as `progress` does. The name that the Kubeflow SDK has for it.

    Args:
        metrics: Numbers by name; NaN and infinity become null.
        step: Completed steps.

    Example:
        ```python
        from trainer_core import report_metrics

        report_metrics({"val_loss": 0.3}, step=1)
        ```
    """
    progress(step=step, metrics=metrics)


def get_objective() -> Objective | None:
    """Return what was reported of the objective of a search; None outside of a search."""
    return _reporter.objective


def flush() -> None:
    """Print values of earlier calls of `progress` that no line has shown yet."""
    with contextlib.suppress(Exception):  # At the exit of a process, stdout is often closed already.
        if _reporter.objective:
            _reporter.objective.store()
        _reporter.flush()


def note(**values: int) -> None:
    """Add numbers to every further line: the step of the last checkpoint, and the step that was resumed from."""
    _reporter.notes.update(values)


def reset() -> None:
    """Forget what earlier lines showed, as another training begins in this process."""
    global is_called
    is_called = False
    _reporter.shown, _reporter.notes, _reporter.shown_notes = {}, {}, {}
    _reporter.objective = _read_objective()


class Reporter:
    """Prints progress lines, at most one per interval."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, interval: float = INTERVAL) -> None:
        self._clock = clock
        self._interval = interval
        self._due = -math.inf
        self._pending: dict[str, Any] = {}
        #: Values that lines have shown, numbers of `note`, and those of the last line.
        self.shown: dict[str, Any] = {}
        self.notes: dict[str, int] = {}
        self.shown_notes: dict[str, int] = {}
        #: None outside of a search.
        self.objective = _read_objective()

    def report(self, step: Any = None, total: Any = None, metrics: Any = None) -> None:
        """Print a line if the interval has passed, else keep the values for the next line."""
        beats.beat(step)
        if env.rank() != 0:
            return
        now = self._clock()
        is_last = step is not None and step == total
        is_rung = self.objective is not None and self.objective.report(step, metrics or {}, to_number)
        is_early = now < self._due and not is_last and not is_rung
        counts = {"step": step, "total": total}
        self._pending.update({key: to_number(value) for key, value in counts.items() if value is not None})
        # Only plain numbers are kept: a tensor would keep its graph in memory, and reading it waits for the device.
        read = {str(k): to_number(v) for k, v in (metrics or {}).items() if not is_early or type(v) in (int, float)}
        if read:
            self._pending["metrics"] = {**self._pending.get("metrics", {}), **read}
        if not is_early:
            self._due = now + self._interval
            self.flush()

    def flush(self) -> None:
        """Print the values that no line has shown yet."""
        pending, self._pending = self._pending, {}
        if env.rank() != 0 or not (pending or self.notes != self.shown_notes) or sys.stdout is None:
            return
        if pending:
            # The time of the report: trackers send it, so that a point that is read twice is stored once.
            pending["t"] = int(time.time() * 1000)
        self.shown = {**self.shown, **pending}
        self.shown_notes = dict(self.notes)
        data = {**(pending or self.shown), **self.notes}
        if self.objective is not None and self.objective.has_values():
            data["objective"] = self.objective.values
        # One write, so that lines of other threads cannot interleave.
        report = json.dumps(data, allow_nan=False)
        sys.stdout.write(PREFIX + report + "\n")
        sys.stdout.flush()
        beats.keep_report(report)


def _read_objective() -> Objective | None:
    settings = env.setting(env.OBJECTIVE)
    if not settings:
        return None
    from .objective import Objective  # Only trials of a search have it.

    return Objective(json.loads(settings))


def to_number(value: Any) -> float | int | None:
    """Return a number of any library as a JSON number; None for anything else."""
    try:
        number = value.item() if hasattr(value, "item") else value
        number = int(number) if isinstance(number, int) else float(number)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) else None


_reporter = Reporter()
atexit.register(flush)
