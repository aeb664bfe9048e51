"""The objective of a search: what this training has reported of it, at rungs and as the best value.

Rank 0 adds it to its lines of progress and to the record of its node: one line that arrives has all values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["OBJECTIVE_METRIC", "RUNG_METRIC", "Objective"]

#: Names of metrics in the status of a TrainJob: that with [value, step, best], and the begin of those of rungs, with
#: [step, value, milliseconds].
OBJECTIVE_METRIC = "trainjob/objective"
RUNG_METRIC = "trainjob/rung-"


class Objective:
    """The values of one metric in one trial.

    Attributes:
        metric: Its name.
        until: Step of the rung at which the training pauses. None: it does not.
        values: The last ``value`` and its ``step``, the ``best`` value, and ``rungs``: lists of the number of the rung,
            step, value and milliseconds since 1970 of the first report at or after a rung. A value that is not a finite
            number is None.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.metric = str(settings["metric"])
        self.until: float | None = settings.get("until")
        self.values: dict[str, Any] = {"value": None, "step": None, "best": None, "rungs": []}
        self._trial = settings.get("trial")
        self._rungs = list(enumerate(settings.get("at") or ()))
        self._choose = max if settings.get("best") == "max" else min
        self._counts_best = settings.get("value") == "best"
        self._begun = -math.inf

    def resume(self, step: float, values: Mapping[str, Any] | None) -> None:
        """Continue from a checkpoint, with its values if it is of this trial: rungs up to its step are passed."""
        self._begun = step
        if values and values["trial"] == self._trial:
            self.values = {key: values[key] for key in self.values}

    def copy_values(self) -> dict[str, Any]:
        """Return what `resume` takes, to keep it with a checkpoint."""
        return {**self.values, "rungs": list(self.values["rungs"]), "trial": self._trial}

    def record(self, step: float | None, value: float | None, time_ms: int) -> bool:
        """Add a report; return whether it is the first one at or after a rung."""
        values = self.values
        known = [each for each in (value, values["best"]) if each is not None]
        best = self._choose(known) if known else None
        values.update(value=value, step=step, best=best)
        if step is None:
            return False
        reached = {rung for rung, *_ in values["rungs"]}
        counted = best if self._counts_best and value is not None else value
        new = [k for k, at in self._rungs if k not in reached and self._begun < at <= step]
        values["rungs"] += [[k, step, counted, time_ms] for k in new]
        return bool(new)

    def list_status_metrics(self) -> dict[str, str]:
        """Return the values as metrics of Kubeflow Trainer's status, which are text of at most 64 characters."""
        last = [self.values[name] for name in ("value", "step", "best")]
        rungs = {f"{RUNG_METRIC}{rung}": json.dumps(rest) for rung, *rest in self.values["rungs"]}
        return {OBJECTIVE_METRIC: json.dumps(last), **rungs} if self.has_values() else {}

    def has_values(self) -> bool:
        """Return whether anything was reported, here or before the checkpoint."""
        return self.values["step"] is not None or self.values["best"] is not None

    def is_reached(self) -> bool:
        """Return whether the value of the rung at which the training pauses was reported."""
        return self.until is not None and (self.values["step"] or -math.inf) >= self.until
