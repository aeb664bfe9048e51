"""Retrain the digits model: download, train, wait and promote as four tasks, each with its own retries.

Runs when the dataset is updated, and every night. `train` only submits, so no worker is used during the training. If
the worker of any task dies, the next try attaches to the same TrainJob.
"""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import dag
from registry import DATASET
from retraining import DATA, DEFAULT_ARGS, OPTIONS, PARAMS, TRAINER, promote_if_better

from airflow_provider.operators.trainjob import InitializeOperator, TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor

try:
    from airflow.sdk import AssetOrTimeSchedule, CronTriggerTimetable
except ImportError:  # before 3.2
    from airflow.timetables.assets import AssetOrTimeSchedule
    from airflow.timetables.trigger import CronTriggerTimetable


@dag(
    schedule=AssetOrTimeSchedule(timetable=CronTriggerTimetable("0 3 * * *", timezone="UTC"), assets=[DATASET]),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    params=PARAMS,
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example"],
)
def retrain_digits() -> None:
    """Retrain the digits model and promote it if it is better."""
    initialize = InitializeOperator(task_id="initialize", initializer=DATA)
    train = TrainJobOperator(
        task_id="train", trainer=TRAINER, initializer=DATA, options=OPTIONS, wait_for_completion=False
    )
    wait = TrainJobSensor(task_id="wait", job=train.output, poke_interval=2, timeout=3600)

    initialize >> train >> wait
    promote_if_better(wait.output, wait.output["ref"])


retrain_digits()
