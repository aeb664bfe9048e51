"""best_of: the best result of a sweep."""

from __future__ import annotations

from typing import Any, Literal

from airflow.sdk import XComArg, task

from trainer_core.outcome import metrics_of

__all__ = ["best_of"]

_MODES = {"max": max, "min": min}


def best_of(results: Any, *, metric: str, mode: Literal["max", "min"] = "max") -> Any:
    """Return the result with the best value of a metric; of equal ones the first.

    In a DAG file, where the results of a mapped task are not there yet, it is a task that does so, with the id
    ``best_of``. Inside a task it does it at once.

        best = best_of(train.output, metric="accuracy")        # of TrainJobOperator.partial(…).expand(…)
        best = best_of(train.expand(lr=[0.1, 0.01]), metric="loss", mode="min")        # of @task.trainjob

    Args:
        results: What the tasks of a sweep returned. The metrics of a result are the numbers of its ``metrics`` entry,
            else of its top level. Results without the metric do not count: failed tasks have none.
        metric: Its name.
        mode: ``max`` or ``min``: what is best.

    Raises:
        ValueError: No result has the metric, or `mode` is neither.
    """
    if mode not in _MODES:
        raise ValueError(f"mode must be 'max' or 'min', got {mode!r}")
    if isinstance(results, XComArg):
        return task(best_of)(results, metric=metric, mode=mode)
    found = [(result, metrics_of(result)) for result in results]
    rated = [(metrics[metric], result) for result, metrics in found if metric in metrics]
    if not rated:
        known = ", ".join(sorted({name for _, metrics in found for name in metrics})) or "none"
        raise ValueError(f"no result has the metric {metric!r}; those there are: {known}")
    return _MODES[mode](rated, key=lambda each: each[0])[1]
