"""A shared cluster: Kueue admits TrainJobs when their queue has quota, releases before experiments.

The tasks are deferred, so a job that waits for quota uses no worker. Needs a cluster with Kueue, its LocalQueue
``training`` and its WorkloadPriorityClasses ``experiment`` and ``release``.
"""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import dag
from energy import DEFAULT_ARGS, forecast_trainer

from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import ActiveDeadlineSeconds, PriorityClass, QueueName


def create_queued_training(task_id: str, priority: str, **arguments: float) -> TrainJobOperator:
    """Return a task whose job waits in the queue. Its deadline of an hour starts when Kueue admits the job."""
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
    """Submit two experiments and a release at the same time."""
    create_queued_training("experiment_slow", "experiment", learning_rate=0.01)
    create_queued_training("experiment_fast", "experiment", learning_rate=1.0)
    create_queued_training("release", "release")


queue_priorities()
