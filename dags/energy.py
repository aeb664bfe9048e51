"""What the example DAGs around the forecast of energy use share: its training, its Assets and its drift."""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path

from forecast import forecast_trainer

from airflow_provider.assets import ModelAsset

__all__ = ["CANDIDATE", "DEFAULT_ARGS", "PROMOTED", "drift_file", "forecast_trainer"]

DEFAULT_ARGS = {"retries": 2, "retry_delay": timedelta(seconds=30)}

#: Assets of all trained forecasts, and of the promoted ones.
CANDIDATE = ModelAsset("energy-candidate", metric="error", mode="min")
PROMOTED = ModelAsset("energy-forecast", metric="error", mode="min")


def drift_file() -> Path:
    """Return the file that reports drift: ``ENERGY_DRIFT_FILE``, else a file in the temporary folder."""
    return Path(os.environ.get("ENERGY_DRIFT_FILE") or Path(tempfile.gettempdir()) / "energy-drift.json")
