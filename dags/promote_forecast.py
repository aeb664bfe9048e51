"""Started by an Asset: when any DAG has trained a forecast, compare it with the promoted one.

The event of the Asset has the data of the training: metrics, URI of the model, and the ref of the TrainJob.
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
        """Return the newest candidate; works in a run that a user started, too."""
        newest = CANDIDATE.last(get_current_context()["inlet_events"])
        if newest is None:
            raise ValueError("Asset energy-candidate has no event; run nightly_forecast first")
        return newest

    @task.short_circuit(inlets=[PROMOTED])
    def is_better(model: dict[str, Any]) -> bool:
        return PROMOTED.is_improved_by(model["metrics"], get_current_context()["inlet_events"])

    @task(outlets=[PROMOTED])
    def promote(model: dict[str, Any]) -> str:
        get_current_context()["outlet_events"][PROMOTED].extra = model
        return str(model["artifact_uri"])

    model = candidate()
    is_better(model) >> promote(model)


promote_forecast()
