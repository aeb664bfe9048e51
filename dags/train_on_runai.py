"""Options that only Run:ai has: a fraction of a GPU, and node pools in order of preference.

The connection ``trainjob_runai`` names the project. Without `RunaiSpec`, the DAG would run on any backend.
"""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import dag
from energy import CANDIDATE, DEFAULT_ARGS, forecast_trainer

from airflow_provider.operators.trainjob import TrainJobOperator


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example"],
)
def train_on_runai() -> None:
    """Train on half a GPU of the first node pool with free capacity."""
    TrainJobOperator(
        task_id="train",
        runtime="python",
        trainer=forecast_trainer(),
        backend="runai",
        trainjob_conn_id="trainjob_runai",
        options=[{"RunaiSpec": {"gpu": 0.5, "nodePools": ["a100", "default"]}}],
        outlets=[CANDIDATE],
        deferrable=True,
    )


train_on_runai()
