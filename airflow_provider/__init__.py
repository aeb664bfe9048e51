"""Airflow: hook, operators, sensor and trigger over the training core."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """What Airflow's provider manager shows and registers."""
    return {
        "package-name": "trainjob-workflows",
        "name": "TrainJob",
        "description": "Run one training definition as an Airflow task on any backend.",
    }
