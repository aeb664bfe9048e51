"""A training that takes milliseconds, for examples of everything around a training: the energy a building will use.

It fits the energy use of a building to the temperature outside, with the standard library only, on readings that are
made up for a day.
"""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_provider.assets import ModelAsset
from trainer_core import CustomTrainer

__all__ = ["CANDIDATE", "DEFAULT_ARGS", "PROMOTED", "drift_file", "forecast_trainer", "train_forecast"]

DEFAULT_ARGS = {"retries": 2, "retry_delay": timedelta(seconds=30)}

#: Every forecast that was trained, and those of them that are in use.
CANDIDATE = ModelAsset("energy-candidate", metric="error", mode="min")
PROMOTED = ModelAsset("energy-forecast", metric="error", mode="min")


def train_forecast(day: str, learning_rate: float = 0.5, steps: int = 200) -> dict[str, Any]:
    """Fit a line to the readings of a day.

    Args:
        day: Which day; each has readings of its own.
        learning_rate: Of the gradient descent.
        steps: Of the gradient descent.

    Returns:
        The error, and where the model lies.
    """
    import json
    import random

    from trainer_core import output_path, progress

    chance = random.Random(day)  # noqa: S311 - readings, not secrets
    temperatures = [chance.uniform(-1, 1) for _ in range(96)]
    readings = [(t, 3 - 2 * t + chance.gauss(0, 0.1)) for t in temperatures]
    slope = base = error = 0.0
    for step in range(1, steps + 1):
        wrong = [(t, base + slope * t - used) for t, used in readings]
        slope -= learning_rate * sum(t * off for t, off in wrong) / len(wrong)
        base -= learning_rate * sum(off for _, off in wrong) / len(wrong)
        error = (sum(off * off for _, off in wrong) / len(wrong)) ** 0.5
        if step % 50 == 0:
            progress(step=step, total=steps, metrics={"error": error})
    path = output_path() / "forecast.json"
    path.write_text(json.dumps({"day": day, "slope": slope, "base": base}))
    return {"day": day, "learning_rate": learning_rate, "error": error, "artifacts": {"model": path.as_uri()}}


def forecast_trainer(
    day: str = "{{ run_id }}", learning_rate: float | str = 0.5, steps: int | str = 200
) -> CustomTrainer:
    """Return the training definition. Texts stand for numbers that an orchestrator fills in.

    Args:
        day: Which day; a template as a rule.
        learning_rate: Of the gradient descent.
        steps: Of the gradient descent.
    """
    return CustomTrainer(func=train_forecast, func_args={"day": day, "learning_rate": learning_rate, "steps": steps})


def drift_file() -> Path:
    """Return the file by which a monitor says that the forecast is off: ``ENERGY_DRIFT_FILE``, else a temporary one."""
    return Path(os.environ.get("ENERGY_DRIFT_FILE") or Path(tempfile.gettempdir()) / "energy-drift.json")
