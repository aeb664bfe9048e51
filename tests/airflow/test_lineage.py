"""What tasks tell OpenLineage, by the real provider; skipped where that is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from types import SimpleNamespace

import pytest
from airflow.sdk import TaskInstanceState
from airflow_fakes import double

from airflow_provider.exceptions import TrainJobError
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core import (
    CustomTrainer,
    HuggingFaceModelInitializer,
    Initializer,
    S3DatasetInitializer,
)
from trainer_core.testing.recorder import completes, fails

INITIALIZER = Initializer(
    dataset=S3DatasetInitializer(storage_uri="s3://data/digits/v1"),
    model=HuggingFaceModelInitializer(storage_uri="hf://google/vit"),
)
LEFT = {"accuracy": 0.9, "artifacts": {"model": "file:///models/a b"}}


def a_task(**arguments):
    trainer = CustomTrainer(func=double, func_args={"number": 1})
    return TrainJobOperator(
        task_id="train", runtime="python", trainer=trainer, initializer=INITIALIZER, backend="kubernetes", **arguments
    )


def test_operators_need_no_openlineage():
    program = """
import sys
from airflow_provider.operators.trainjob import TrainJobOperator
print("airflow_provider.lineage_facets" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip().splitlines()[-1] == "False"


@pytest.fixture
def facets():
    return pytest.importorskip("airflow_provider.lineage_facets", exc_type=ImportError)


@pytest.fixture
def ran(facets, trainjob_recorder):
    """A task whose job has ended; the very operator that executed."""

    def run(ending, operator=None):
        trainjob_recorder.script(ending)
        task = operator or a_task()
        try:
            task.execute({"ti": StandInTaskInstance()})
        except TrainJobError as error:
            return task, error
        return task, None

    return run


def places(datasets):
    return [(each.namespace, each.name) for each in datasets]


def test_what_initializers_fetch_is_what_the_task_reads(facets):
    told = a_task().get_openlineage_facets_on_start()

    assert places(told.inputs) == [("s3://data", "digits/v1"), ("hf://huggingface.co", "google/vit")]
    assert [each.facets["datasetType"].datasetType for each in told.inputs] == ["DATASET", "MODEL"]
    assert told.outputs == []


def test_the_code_that_is_shipped_is_the_code_of_the_job(facets):
    source = a_task().get_openlineage_facets_on_start().job_facets["sourceCode"]

    assert source.language == "python"
    assert "def double(number: int)" in source.sourceCode


def test_no_code_is_told_where_that_is_switched_off(facets, monkeypatch):
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__DISABLE_SOURCE_CODE", "True")

    assert a_task().get_openlineage_facets_on_start().job_facets == {}


def test_a_job_that_is_complete_has_written_its_artifacts_and_tells_its_metrics(ran):
    task, _ = ran(completes(LEFT))
    told = task.get_openlineage_facets_on_complete(None)

    assert places(told.outputs) == [("file", "/models/a b")]
    assert told.run_facets["trainjob"].metrics == {"accuracy": 0.9}
    assert told.run_facets["trainjob"].status == "Complete"
    assert told.run_facets["externalQuery"].source == "kubernetes"


def test_a_job_that_failed_tells_why(ran):
    task, error = ran(fails("OutOfMemory", "the batch is too large"))
    told = task.get_openlineage_facets_on_failure(None)

    assert error is not None
    assert told.run_facets["trainjob"].diagnosis == "OutOfMemory in node-0: the batch is too large"
    assert places(told.inputs) == [("s3://data", "digits/v1"), ("hf://huggingface.co", "google/vit")]
    assert told.outputs == []


def test_a_sensor_tells_what_the_job_has_written(ran, trainjob_recorder):
    trainjob_recorder.script(completes(LEFT))
    ref = a_task(wait_for_completion=False)
    submitted, _ = ran(completes(LEFT), ref)
    sensor = TrainJobSensor(task_id="wait", job=trainjob_recorder.job().ref)
    waited, _ = ran(completes(LEFT), sensor)

    assert submitted.get_openlineage_facets_on_complete(None).outputs == []
    assert places(waited.get_openlineage_facets_on_complete(None).outputs) == [("file", "/models/a b")]


def test_the_provider_finds_what_a_task_tells(ran):
    from airflow.providers.openlineage.extractors.manager import ExtractorManager

    task, _ = ran(completes(LEFT))
    ti = StandInTaskInstance()
    told = ExtractorManager().extract_metadata(SimpleNamespace(run_id="run"), task, TaskInstanceState.SUCCESS, ti)

    assert places(told.outputs) == [("file", "/models/a b")]
    assert told.run_facets["trainjob"].metrics == {"accuracy": 0.9}


def test_what_a_task_tells_is_an_event_that_openlineage_can_send(ran):
    from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
    from openlineage.client.serde import Serde

    task, _ = ran(completes(LEFT))
    told = task.get_openlineage_facets_on_complete(None)
    event = RunEvent(
        eventTime="2026-01-01T00:00:00+00:00",
        producer="https://example.com",
        eventType=RunState.COMPLETE,
        run=Run(str(uuid.uuid4()), told.run_facets),
        job=Job("airflow", "dag.train", told.job_facets),
        inputs=told.inputs,
        outputs=told.outputs,
    )
    sent = json.loads(Serde.to_json(event))

    assert sent["run"]["facets"]["trainjob"]["metrics"] == {"accuracy": 0.9}
    assert sent["outputs"][0]["facets"]["datasetType"]["datasetType"] == "MODEL"
