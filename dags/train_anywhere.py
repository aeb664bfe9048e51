"""One definition on two backends: a short run on the worker, then the training on a cluster.

The connection selects the backend, not the DAG: ``trainjob_cluster`` can be a Kubernetes cluster today and another
backend tomorrow.
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
def train_anywhere() -> None:
    """Test the training locally, then run it on the cluster."""
    smoke = TrainJobOperator(task_id="try_out", runtime="python", backend="local", trainer=forecast_trainer(steps=1))
    # The default runtime is torch-distributed, which every cluster with Kubeflow Trainer has.
    train = TrainJobOperator(
        task_id="train",
        trainer=forecast_trainer(),
        trainjob_conn_id="trainjob_cluster",
        outlets=[CANDIDATE],
        deferrable=True,
    )
    smoke >> train


train_anywhere()
