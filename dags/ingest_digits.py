"""Upstream of the retraining: write the dataset, and tell the world that it is new."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import dag, task
from registry import DATASET, dataset_folder


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    tags=["trainjob", "example"],
)
def ingest_digits():
    """Write the handwritten digits into the dataset folder."""

    @task(outlets=[DATASET])
    def ingest() -> str:
        from digits import write_dataset

        return str(write_dataset(dataset_folder()))

    ingest()


ingest_digits()
