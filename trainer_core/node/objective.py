"""The objective of a search: what this training has reported of it, at rungs and as the best value.

Rank 0 adds it to its lines of progress and to the record of its node: one line that arrives has all values. The file
travels with the trials of a search only.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import env, termination

#: Names of metrics in the status of a TrainJob: that with [value, step, best], and the begin of those of rungs, with
#: [step, value, milliseconds].
OBJECTIVE_METRIC = "trainjob/objective"
RUNG_METRIC = "trainjob/rung-"
#: Calls of `due` at and after the rung of a pause in which all ranks ask: its value may be reported after the first.
_PAUSE_CALLS = 2


class Paused(SystemExit):
    """The training is at the rung of a search at which it pauses, and its checkpoint is complete."""

    __module__ = "trainjob"

    def __init__(self, step: int) -> None:
        super().__init__(0)
        self.paused_at = step


class Objective:
    """The values of one metric in one trial."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.metric = str(settings["metric"])
        #: Step of the rung at which the training pauses. None: it does not.
        self.until: float | None = settings.get("until")
        #: Reports whose value was not read yet: reading a tensor waits for its device.
        self._noted: list[tuple[float | None, Any, int, Callable[[Any], float | None]]] = []
        #: The last ``value`` and its ``step``, the ``best`` value, and ``rungs``: lists of the number of the rung,
        #: step, value and milliseconds since 1970 of the first report at or after a rung. A value that is not a finite
        #: number is None.
        self._values: dict[str, Any] = {"value": None, "step": None, "best": None, "rungs": []}
        self._trial = settings.get("trial")
        self._rungs = list(enumerate(settings.get("at") or ()))
        self._choose = max if settings.get("best") == "max" else min
        self._counts_best = settings.get("value") == "best"
        self._begun = -math.inf
        self._calls = self._sent = 0

    def resume(self, step: float, values: Mapping[str, Any] | None) -> None:
        """Continue from a checkpoint, with its values if it is of this trial: rungs up to its step are passed."""
        self._begun = step
        if values and values["trial"] == self._trial:
            self._values = {key: values[key] for key in self._values}

    def copy_values(self) -> dict[str, Any]:
        """Return what `resume` takes, to keep it with a checkpoint."""
        return {**self.values, "rungs": list(self.values["rungs"]), "trial": self._trial}

    @property
    def values(self) -> dict[str, Any]:
        """What was reported until now."""
        noted, self._noted = self._noted, []
        for step, value, time_ms, to_number in noted:
            self.record(step, to_number(value), time_ms)
        return self._values

    def report(self, step: float | None, value: Any, to_number: Callable[[Any], float | None]) -> bool:
        """Add a report; return whether it is the first one at or after a rung. Its value is read when it is needed."""
        is_rung = step is not None and bool(self._list_new(step))
        self._noted.append((step, value, int(time.time() * 1000), to_number))
        if is_rung:
            self.store()
        return is_rung

    def _list_new(self, step: float) -> list[int]:
        reached = {rung for rung, *_ in self._values["rungs"]}
        return [k for k, at in self._rungs if k not in reached and self._begun < at <= step]

    def record(self, step: float | None, value: float | None, time_ms: int) -> None:
        """Add a value."""
        values = self.values
        known = [each for each in (value, values["best"]) if each is not None]
        best = self._choose(known) if known else None
        values.update(value=value, step=step, best=best)
        counted = best if self._counts_best and value is not None else value
        if step is not None:
            values["rungs"] += [[k, step, counted, time_ms] for k in self._list_new(step)]

    def store(self) -> None:
        """Add the values to the record of this node, which survives its log."""
        if self.has_values() and env.rank() == 0 and env.setting(env.NAME):
            termination.report_values(Path(env.setting(env.TERMINATION_LOG)), objective=self.values)

    def list_status_metrics(self) -> dict[str, str]:
        """Return the values as metrics of Kubeflow Trainer's status, which are text of at most 64 characters."""
        last = [self.values[name] for name in ("value", "step", "best")]
        rungs = {f"{RUNG_METRIC}{rung}": json.dumps(rest) for rung, *rest in self.values["rungs"]}
        return {OBJECTIVE_METRIC: json.dumps(last), **rungs} if self.has_values() else {}

    def claim_status(self) -> bool:
        """Return whether a rung was reached since the last call."""
        before, self._sent = self._sent, len(self.values["rungs"])
        return before < self._sent

    def has_values(self) -> bool:
        """Return whether anything was reported, here or before the checkpoint."""
        return self.values["step"] is not None or self.values["best"] is not None

    def is_near(self, step: float) -> bool:
        """Return whether all ranks ask at this step whether to pause."""
        is_near = self.until is not None and step >= self.until
        self._calls += is_near
        return is_near and self._calls <= _PAUSE_CALLS

    def is_reached(self) -> bool:
        """Return whether the value of the rung at which the training pauses was reported."""
        return self.until is not None and (self.values["step"] or -math.inf) >= self.until

    def pause(self, step: int) -> None:
        """Let the training end at a step whose checkpoint is complete."""
        if env.rank() == 0:
            termination.report_values(Path(env.setting(env.TERMINATION_LOG)), paused_at=step)
        raise Paused(step)
