"""A training that takes milliseconds, for examples of workflows around a training: the energy use of a building.

It fits a line to energy use and outdoor temperature, with the standard library only, on generated readings of a day.
DAGs and pipelines use it.
"""

from __future__ import annotations

from typing import Any

from trainer_core import CustomTrainer

__all__ = ["forecast_trainer", "train_forecast"]


def train_forecast(day: str, learning_rate: float = 0.5, steps: int = 200) -> dict[str, Any]:
    """Fit a line to the readings of a day.

    Args:
        day: The day; each day has different readings.
        learning_rate: Learning rate of the gradient descent.
        steps: Number of steps of the gradient descent.

    Returns:
        The error, and the URI of the model.
    """
    import json
    import random

    from trainer_core import output_path, progress

    generator = random.Random(day)  # noqa: S311 - readings, not secrets
    temperatures = [generator.uniform(-1, 1) for _ in range(96)]
    readings = [(t, 3 - 2 * t + generator.gauss(0, 0.1)) for t in temperatures]
    slope = base = error = 0.0
    for step in range(1, steps + 1):
        residuals = [(t, base + slope * t - used) for t, used in readings]
        slope -= learning_rate * sum(t * residual for t, residual in residuals) / len(residuals)
        base -= learning_rate * sum(residual for _, residual in residuals) / len(residuals)
        error = (sum(residual * residual for _, residual in residuals) / len(residuals)) ** 0.5
        if step % 50 == 0:
            progress(step=step, total=steps, metrics={"error": error})
    path = output_path() / "forecast.json"
    path.write_text(json.dumps({"day": day, "slope": slope, "base": base}))
    return {"day": day, "learning_rate": learning_rate, "error": error, "artifacts": {"model": path.as_uri()}}


def forecast_trainer(
    day: str = "{{ dag_run.run_after.astimezone(dag.timezone) | ds }}",
    learning_rate: float | str = 0.5,
    steps: int | str = 200,
) -> CustomTrainer:
    """Return the training definition. Numbers can be strings with templates.

    Args:
        day: The day, usually a template. Default: the date of the DAG run in the DAG's time zone.
        learning_rate: Learning rate of the gradient descent.
        steps: Number of steps of the gradient descent.
    """
    return CustomTrainer(func=train_forecast, func_args={"day": day, "learning_rate": learning_rate, "steps": steps})
