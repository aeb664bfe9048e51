"""Train with the Training Operator, on machines that may be taken away: a PyTorchJob instead of a TrainJob.

The connection ``trainjob_operator`` is of the backend ``training-operator`` and names the cluster. The training is that
of the other examples. The task names the backend, too, because of its options: no other backend takes all of them.
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
    """Start a node again when its machine was taken away, and never when its code has failed."""
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
