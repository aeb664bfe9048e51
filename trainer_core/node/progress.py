"""Progress of a training function, as lines in its log.

Log lines are the one channel that every backend has. Rank 0 prints at most one line per interval; values of calls in
between are merged into the next line, so metrics passed once are not lost. The last step always gets a line. Each line
has the last value of every metric: as ``metrics`` if it is new, else as ``last``.
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
from .jsonable import is_finite_number, to_text

if TYPE_CHECKING:
    from .objective import Objective

PREFIX = "[trainjob:progress] "
#: Seconds between two lines: frequent enough for a progress bar, and cheap.
INTERVAL = 0.5
#: Metrics of earlier lines that a line repeats, the newest ones.
_MAX_LAST = 200

#: The training function calls `progress`: reports of libraries are not shown.
is_called = False


def progress(step: float | None = None, total: float | None = None, metrics: Mapping[str, Any] | None = None) -> None:
    """Report the progress of the training to the followers of the job.

    Cheap enough for every step: only rank 0 prints, at most two lines a second, and always for the last step (``step ==
    total``). Metrics that are tensors are read only when a line is printed. The last value of each metric counts. Never
    raises. Outside of a job it prints nothing.

    Args:
        step: Completed steps.
        total: Total number of steps.
        metrics: Numbers by name; one that is NaN or infinite is absent until its next report.

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
        if env.is_in_job():
            _reporter.report(step, total, metrics)


def report_metrics(metrics: Mapping[str, Any], step: float | None = None) -> None:
    """Report metrics, as `progress` does. The name that the Kubeflow SDK has for it.

    Args:
        metrics: Numbers by name; one that is NaN or infinite is absent until its next report.
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
        if env.is_in_job():
            _reporter.flush()


def note(**values: int) -> None:
    """Add numbers to every further line: the step of the last checkpoint, and the step that was resumed from."""
    _reporter.notes.update(values)


def reset() -> None:
    """Forget what earlier lines showed, as another training begins in this process."""
    global is_called
    is_called = False
    _reporter.shown, _reporter.last, _reporter.notes, _reporter.shown_notes = {}, {}, {}, {}
    _reporter.objective = _read_objective()


class Reporter:
    """Prints progress lines, at most one per interval."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, interval: float = INTERVAL) -> None:
        self._clock = clock
        self._interval = interval
        self._due = -math.inf
        self._pending: dict[str, Any] = {}
        #: Values that lines have shown, the last of each metric, numbers of `note`, and those of the last line.
        self.shown: dict[str, Any] = {}
        self.last: dict[str, float | int | None] = {}
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
        new = {to_text(str(name)): _copy_number(value) for name, value in (metrics or {}).items()}
        own = self.objective
        is_rung = own is not None and own.metric in new and own.report(to_number(step), new[own.metric], to_number)
        is_early = now < self._due and not is_last and not is_rung
        counts = {"step": step, "total": total}
        self._pending.update({key: to_number(value) for key, value in counts.items() if value is not None})
        if new:
            self._pending["metrics"] = {**self._pending.get("metrics", {}), **new}
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
            new = {name: to_number(value) for name, value in pending.get("metrics", {}).items()}
            pending |= {"metrics": new} if new else {}
            earlier = {name: value for name, value in self.last.items() if name not in new}
            self.last = dict([*earlier.items(), *new.items()][-_MAX_LAST:])
            pending |= {"last": repeated} if (repeated := {k: v for k, v in earlier.items() if v is not None}) else {}
            self.shown.pop("last", None)
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


def _copy_number(value: Any) -> Any:
    """Return a number, or a copy of a tensor that keeps no graph in memory: reading it waits for the device."""
    if hasattr(value, "detach"):
        return value.detach().clone() if value.numel() == 1 else None
    return to_number(value) if isinstance(value, (int, float)) or hasattr(value, "__array_interface__") else value


def to_number(value: Any) -> float | int | None:
    """Return a number of any library as a JSON number; None for anything else."""
    try:
        number = value.item() if hasattr(value, "item") else value
        number = int(number) if isinstance(number, int) else float(number)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return number if is_finite_number(number) else None


_reporter = Reporter()
atexit.register(flush)
