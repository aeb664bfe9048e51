"""InitializeOperator on the local backend, with a fake Hugging Face Hub."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from airflow.sdk import DAG
from fake_hub import TOKEN, in_place_of_the_hub

from airflow_provider.operators.trainjob import InitializeOperator
from trainer_core import HuggingFaceDatasetInitializer, Initializer

FILES = {"train.csv": b"1,2\n", "deep/test.csv": b"3,4\n"}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with in_place_of_the_hub(monkeypatch, tmp_path) as hub:
        hub.publish("team/digits", FILES, kind="dataset", private=True, readers={TOKEN})
        yield hub


def test_a_private_dataset_is_downloaded_with_a_connection(hub, run_dag, xcom, task_log, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_HF_TEAM", json.dumps({"conn_type": "generic", "password": TOKEN}))
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    with DAG("fetch_from_the_hub", schedule=None, start_date=start) as dag:
        InitializeOperator(
            task_id="fetch",
            initializer=Initializer(dataset=HuggingFaceDatasetInitializer("hf://team/digits")),
            secrets={"dataset": "hf_team"},
        )

    run = run_dag(dag)

    fetched = Path(xcom(run, "fetch")["dataset"].removeprefix("file://"))
    assert {path: (fetched / path).read_bytes() for path in FILES} == FILES
    assert "[dataset-initializer] progress 100%" in task_log()
    assert TOKEN not in task_log()
