"""best_of: select the best result of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from airflow.sdk import XComArg, task

from trainer_core.base import validation
from trainer_core.base.secrets import redact
from trainer_core.model.jobs import extract_metrics

__all__ = ["best_of"]

_MODES = {"max": max, "min": min}


def best_of(results: Any, *, metric: str, mode: Literal["max", "min"] = "max") -> Any:
    """Return the result with the best value of a metric; the first one if several are equal.

    Called in a DAG file with the output of a mapped task, it creates a task with the id ``best_of``. Called inside a
    task, it returns the result.

    Example:
        ```python
        best = best_of(train.output, metric="accuracy")  # TrainJobOperator.partial(…).expand(…)
        best = best_of(train.expand(lr=[0.1, 0.01]), metric="loss", mode="min")  # @task.trainjob
        ```

    Args:
        results: Results of the mapped task. The metrics of a result are the numbers in its ``metrics`` entry or,
            without that entry, at its top level. Results without the metric are skipped, such as those of failed tasks.
        metric: Name of the metric.
        mode: ``max`` (default): the largest value is best; ``min``: the smallest.

    Raises:
        ValueError: No result has the metric, `mode` is invalid, or the task is not mapped.
    """
    validation.check_one_of("mode", mode, tuple(_MODES))
    if isinstance(results, XComArg):
        return task(best_of)(results, metric=metric, mode=mode)
    if not isinstance(results, Iterable) or isinstance(results, (str, Mapping)):
        raise ValueError("best_of takes the results of a mapped task, and got one result: use .expand(), or the result")
    candidates = [(result, extract_metrics(result)) for result in results]
    rated = [(metrics[metric], result) for result, metrics in candidates if metric in metrics]
    if not rated:
        known = ", ".join(sorted({name for _, metrics in candidates for name in metrics})) or "none"
        raise ValueError(f"metric {redact(metric)} is in no result; the results have: {known}")
    return _MODES[mode](rated, key=lambda each: each[0])[1]
