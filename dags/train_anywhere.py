"""One definition on any backend: a short run on the worker, then the training where the connection says.

The connection selects the backend, not the DAG: ``trainjob_cluster`` can be processes of the worker on a laptop,
containers in CI, and a Kubernetes cluster in production. What differs between them is named by `OnBackend`.
"""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import dag
from energy import CANDIDATE, DEFAULT_ARGS, forecast_trainer

from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import DeleteAfter, Labels, OnBackend

PORTABLE = [
    Labels({"model": "energy-forecast"}),
    OnBackend("local", runtime="python"),
    OnBackend("container", runtime="python", image="{{ params.image }}"),
    # Only a cluster deletes jobs by itself. The runtime is its default, torch-distributed.
    OnBackend("kubernetes", DeleteAfter(24 * 3600), resources_per_node={"cpu": 1, "memory": "1Gi"}),
]


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    params={"image": "docker.io/library/python:3.11-slim"},
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example"],
)
def train_anywhere() -> None:
    """Test the training locally, then run it on the backend of the connection."""
    smoke = TrainJobOperator(task_id="try_out", runtime="python", backend="local", trainer=forecast_trainer(steps=1))
    train = TrainJobOperator(
        task_id="train",
        trainer=forecast_trainer(),
        options=PORTABLE,
        trainjob_conn_id="trainjob_cluster",
        outlets=[CANDIDATE],
        deferrable=True,
    )
    smoke >> train


train_anywhere()
