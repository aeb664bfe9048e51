"""A shared cluster: Kueue starts TrainJobs when their queue has room, the release before the experiments.

The tasks are deferred, so a job that waits an hour for its quota costs no worker. Needs a cluster with Kueue, its
LocalQueue ``training`` and its WorkloadPriorityClasses ``experiment`` and ``release``.
"""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import dag
from energy import DEFAULT_ARGS, forecast_trainer

from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import ActiveDeadlineSeconds, PriorityClass, QueueName


def queued(task_id: str, priority: str, **arguments: float) -> TrainJobOperator:
    """A training that waits for its turn. Its deadline counts from its start, not from its place in the queue."""
    return TrainJobOperator(
        task_id=task_id,
        backend="kubernetes",
        trainjob_conn_id="trainjob_cluster",
        runtime="python",
        trainer=forecast_trainer(**arguments),
        options=[QueueName("training"), PriorityClass(priority), ActiveDeadlineSeconds(3600)],
        deferrable=True,
    )


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example", "kubernetes"],
)
def queue_priorities() -> None:
    """Two experiments and a release, all submitted at once."""
    queued("experiment_slow", "experiment", learning_rate=0.01)
    queued("experiment_fast", "experiment", learning_rate=1.0)
    queued("release", "release")


queue_priorities()
