"""A sweep: one TrainJob for each learning rate, in parallel, and the selection of the best result."""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import Param, dag
from energy import DEFAULT_ARGS, forecast_trainer

from airflow_provider.best_of import best_of
from airflow_provider.operators.trainjob import TrainJobOperator


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    params={"steps": Param(5, type="integer", minimum=1, description="Number of steps of the gradient descent.")},
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example"],
)
def sweep_forecast() -> None:
    """Find the learning rate with the smallest error after a few steps."""
    train = TrainJobOperator.partial(
        task_id="train",
        runtime="python",
        trainer=forecast_trainer(steps="{{ params.steps }}"),
        deferrable=True,
        max_active_tis_per_dagrun=4,
    ).expand(func_args=[{"learning_rate": rate} for rate in (0.01, 0.1, 0.5, 1.0)])

    best_of(train.output, metric="error", mode="min")


sweep_forecast()
