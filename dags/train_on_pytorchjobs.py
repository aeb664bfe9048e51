"""Train with the Training Operator on spot nodes: a PyTorchJob instead of a TrainJob.

The connection ``trainjob_operator`` has the backend ``training-operator`` and names the cluster. The task also names
the backend, because its options are accepted by this backend only.
"""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import dag
from energy import CANDIDATE, DEFAULT_ARGS, forecast_trainer

from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import DistributedConfig, PyTorchJobSpec


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example", "kubernetes"],
)
def train_on_pytorchjobs() -> None:
    """Restart a node if it was evicted, but not if its code has failed."""
    TrainJobOperator(
        task_id="train",
        backend="training-operator",
        trainjob_conn_id="trainjob_operator",
        trainer=forecast_trainer(),
        options=[
            PyTorchJobSpec(restart_policy="ExitCode", backoff_limit=3),
            DistributedConfig(
                node_selector={"pool": "spot"},
                annotations={"sidecar.istio.io/inject": "false"},
            ),
        ],
        outlets=[CANDIDATE],
        deferrable=True,
    )


train_on_pytorchjobs()
