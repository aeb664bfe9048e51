"""Triggered by an Asset: whenever a forecast was trained, by whatever DAG, the gate compares it with the one in use.

What the training left arrives as the event of the Asset: metrics, where the model lies, and which TrainJob it was.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from airflow.sdk import dag, get_current_context, task
from energy import CANDIDATE, DEFAULT_ARGS, PROMOTED


@dag(
    schedule=[CANDIDATE],
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    max_active_runs=1,
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example"],
)
def promote_forecast() -> None:
    """Promote the newest candidate if it is better than the promoted forecast."""

    @task(inlets=[CANDIDATE])
    def candidate() -> dict[str, Any]:
        """Also started by hand it takes the newest."""
        newest = CANDIDATE.last(get_current_context()["inlet_events"])
        if newest is None:
            raise ValueError("no forecast was trained yet; run nightly_forecast first")
        return newest

    @task.short_circuit(inlets=[PROMOTED])
    def is_better(model: dict[str, Any]) -> bool:
        return PROMOTED.is_improved_by(model["metrics"], get_current_context()["inlet_events"])

    @task(outlets=[PROMOTED])
    def promote(model: dict[str, Any]) -> str:
        get_current_context()["outlet_events"][PROMOTED].extra = model
        return str(model["artifact_uri"])

    found = candidate()
    is_better(found) >> promote(found)


promote_forecast()
