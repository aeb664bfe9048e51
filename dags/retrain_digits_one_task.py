"""The same retraining as one deferrable task: it submits, waits in the triggerer, and returns the result."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import dag
from digits import digits_trainer
from retrain_digits import DATA, PARAMS, promote_if_better

from airflow_provider.operators.trainjob import TrainJobOperator


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    params=PARAMS,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    tags=["trainjob", "example"],
)
def retrain_digits_one_task():
    """Retrain the digits model in one deferrable task."""
    retrain = TrainJobOperator(
        task_id="retrain",
        trainer=digits_trainer(
            epochs="{{ params.epochs }}",
            learning_rate="{{ params.learning_rate }}",
            num_nodes="{{ params.nodes }}",
            num_proc_per_node="{{ params.processes_per_node }}",
        ),
        initializer=DATA,
        deferrable=True,
        execution_timeout=timedelta(hours=1),
    )
    promote_if_better(retrain.output)


retrain_digits_one_task()
