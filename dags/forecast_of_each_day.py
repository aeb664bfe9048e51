"""One training for each day, on the seven days that end with it; the best model of each month is its champion.

Each run has a day as its partition key, and so has its TrainJob: ``trainjob list --partition 2026-11-24``.
``airflow backfill create`` of a year submits 365 TrainJobs, four at a time. Needs Airflow 3.2 or later; an earlier one
has no partitions, and shows the DAG without a schedule.
"""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import dag
from energy import DEFAULT_ARGS, forecast_trainer

from airflow_provider.assets import ModelAsset
from airflow_provider.operators.promote import PromoteModelOperator
from airflow_provider.operators.trainjob import TrainJobOperator

try:
    from airflow.sdk import CronPartitionTimetable

    EACH_DAY = CronPartitionTimetable("0 1 * * *", timezone="UTC", key_format="%Y-%m-%d")
except ImportError:  # before 3.2
    EACH_DAY = None

FORECAST = ModelAsset("energy-forecast-of-day", metric="error", mode="min")


@dag(
    schedule=EACH_DAY,
    start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=4,
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example"],
)
def forecast_of_each_day() -> None:
    """Train on a window of seven days, and promote the model if it is the best one of its month."""
    train = TrainJobOperator(
        task_id="train",
        runtime="python",
        trainer=forecast_trainer(day="{{ macros.ds_add(partition_key, -6) }} to {{ partition_key }}"),
        outlets=[FORECAST],
    )
    PromoteModelOperator(
        task_id="promote",
        job=train.output,
        model="energy-forecast",
        metric="error",
        mode="min",
        partition="{{ partition_key[:7] }}",
    )


forecast_of_each_day()
