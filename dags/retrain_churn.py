"""Retrains a model whose code is a project: a package of several modules, its data file, and its settings.

The folder `churn_project` beside this file travels with the job. The training image needs Python 3.10 and nothing else.
"""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import dag
from energy import DEFAULT_ARGS

from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import CustomTrainer


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    params={"epochs": 20},
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example"],
)
def retrain_churn() -> None:
    """Train the churn model."""
    TrainJobOperator(
        task_id="train",
        runtime="python",
        trainer=CustomTrainer("churn.train:main", func_args={"epochs": "{{ params.epochs }}"}, code="churn_project"),
        deferrable=True,
    )


retrain_churn()
