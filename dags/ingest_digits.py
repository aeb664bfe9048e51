"""Write the dataset and update its Asset, which starts the retraining."""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import dag, task
from registry import DATASET, dataset_folder
from retraining import DEFAULT_ARGS


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example"],
)
def ingest_digits() -> None:
    """Write the handwritten digits into the dataset folder."""

    @task(outlets=[DATASET])
    def ingest() -> str:
        from digits import write_dataset

        return str(write_dataset(dataset_folder()))

    ingest()


ingest_digits()
