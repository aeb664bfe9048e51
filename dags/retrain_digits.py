"""Retrain the digits model: initialize → train → wait → promote, each a task with retries of its own.

Runs when the dataset is new, and every night. `train` only submits; nothing of a worker is blocked while training goes
on, and whichever task dies, its next try finds the same TrainJob.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import AssetOrTimeSchedule, CronTriggerTimetable, Metadata, Param, dag, get_current_context, task
from digits import digits_trainer
from registry import DATASET, MODEL, dataset_folder, promote

from airflow_provider.operators.trainjob import InitializeOperator, TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from trainer_core import FileDatasetInitializer, Initializer

PARAMS = {
    "epochs": Param(15, type="integer", minimum=1, description="Passes over the training scans."),
    "learning_rate": Param(0.005, type="number", exclusiveMinimum=0, description="Of the optimiser."),
    "nodes": Param(1, type="integer", minimum=1, description="Nodes to train on."),
    "processes_per_node": Param(2, type="integer", minimum=1, description="Processes on each node."),
}
DATA = Initializer(dataset=FileDatasetInitializer(dataset_folder().as_uri()))


@dag(
    schedule=AssetOrTimeSchedule(timetable=CronTriggerTimetable("0 3 * * *", timezone="UTC"), assets=[DATASET]),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    params=PARAMS,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    tags=["trainjob", "example"],
)
def retrain_digits():
    """Retrain the digits model and promote it if it is better."""
    initialize = InitializeOperator(task_id="initialize", initializer=DATA)

    train = TrainJobOperator(
        task_id="train",
        trainer=digits_trainer(
            epochs="{{ params.epochs }}",
            learning_rate="{{ params.learning_rate }}",
            num_nodes="{{ params.nodes }}",
            num_proc_per_node="{{ params.processes_per_node }}",
        ),
        initializer=DATA,
        wait_for_completion=False,
    )

    wait = TrainJobSensor(task_id="wait", job=train.output, poke_interval=2, timeout=3600)

    initialize >> train >> wait >> promote_if_better(wait.output)


@task(task_id="promote", outlets=[MODEL])
def promote_if_better(result: dict):
    """Put the model into the registry if it beats the promoted one, and say so by the model's Asset."""
    version = get_current_context()["run_id"].replace(":", "-").replace("+", "-")
    entry = promote(result, version)
    if entry is not None:
        yield Metadata(MODEL, extra=entry)
    return entry


retrain_digits()
