"""The same retraining as one deferrable task, which submits, waits in the triggerer, and returns the result."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.sdk import dag
from retraining import DATA, DEFAULT_ARGS, OPTIONS, PARAMS, TRAINER, promote_if_better

from airflow_provider.operators.trainjob import TrainJobOperator


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    params=PARAMS,
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example"],
)
def retrain_digits_one_task() -> None:
    """Retrain the digits model in one deferrable task."""
    retrain = TrainJobOperator(
        task_id="retrain",
        trainer=TRAINER,
        options=OPTIONS,
        initializer=DATA,
        deferrable=True,
        execution_timeout=timedelta(hours=1),
    )
    promote_if_better(retrain.output, retrain.output["ref"])


retrain_digits_one_task()
