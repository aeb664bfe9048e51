"""Retrain the digits model, track it in MLflow, and promote it to `models:/digits@champion`.

The MLflow server is that of the connection `mlflow_default`. Without it nothing is tracked, and the registry is the
folder `registry` in TRAINJOB_HOME.
"""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import dag
from retraining import DATA, DEFAULT_ARGS, OPTIONS, PARAMS, TRAINER

from airflow_provider.assets import ModelAsset
from airflow_provider.operators.promote import PromoteModelOperator
from airflow_provider.operators.trainjob import TrainJobOperator


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    params=PARAMS,
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example"],
)
def retrain_tracked() -> None:
    """Retrain the digits model and promote it in the model registry if it is better."""
    train = TrainJobOperator(task_id="train", trainer=TRAINER, initializer=DATA, options=OPTIONS)
    PromoteModelOperator(
        task_id="promote",
        job=train.output,
        model="digits",
        metric="accuracy",
        outlets=[ModelAsset("digits-champion")],
    )


retrain_tracked()
