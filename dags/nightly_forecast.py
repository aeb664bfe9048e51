"""A nightly retraining on the previous day; ``airflow backfill create`` runs it for past days.

Each run has its own TrainJob, named after the run: a backfill of thirty days submits thirty jobs, at most three at a
time. If the run is late in the morning, the triggerer logs an error.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.sdk import dag
from energy import CANDIDATE, DEFAULT_ARGS, forecast_trainer

from airflow_provider.deadlines import late_run
from airflow_provider.operators.trainjob import TrainJobOperator


@dag(
    schedule="0 2 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=3,
    default_args=DEFAULT_ARGS,
    deadline=late_run(timedelta(hours=4), "there is no new energy forecast this morning"),
    tags=["trainjob", "example"],
)
def nightly_forecast() -> None:
    """Train the forecast on the day before the logical date, or before the start of a run without one."""
    TrainJobOperator(
        task_id="train",
        runtime="python",
        # A run that a person or an Asset starts can have no logical date.
        trainer=forecast_trainer(
            day="{{ macros.ds_add((dag_run.logical_date or dag_run.run_after).astimezone(dag.timezone) | ds, -1) }}"
        ),
        outlets=[CANDIDATE],
        deferrable=True,
        execution_timeout=timedelta(hours=2),
    )


nightly_forecast()
