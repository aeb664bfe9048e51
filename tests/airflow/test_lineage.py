"""OpenLineage data of tasks, with the real provider; skipped if it is not installed."""

from __future__ import annotations

import datetime
import itertools
import json
import uuid
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG, TaskInstanceState
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
_ids = itertools.count()
LEFT = {"accuracy": 0.9, "artifacts": {"model": "file:///models/a b"}}


def a_task(**arguments):
    trainer = CustomTrainer(func=double, func_args={"number": 1})
    return TrainJobOperator(
        task_id="train", runtime="python", trainer=trainer, initializer=INITIALIZER, backend="kubernetes", **arguments
    )


@pytest.fixture
def facets():
    found = pytest.importorskip("airflow_provider.lineage_facets", exc_type=ImportError)
    _forget_settings()
    yield found
    _forget_settings()


def _forget_settings():
    """Clear the cached settings of the OpenLineage provider."""
    from airflow.providers.openlineage import conf

    for setting in vars(conf).values():
        getattr(setting, "cache_clear", int)()


@pytest.fixture
def ran(facets, trainjob_recorder):
    """Run a task; return the operator that executed."""

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


def test_initializer_uris_are_lineage_inputs(facets):
    told = a_task().get_openlineage_facets_on_start()

    assert places(told.inputs) == [("s3://data", "digits/v1"), ("hf://huggingface.co", "google/vit")]
    assert [each.facets["datasetType"].datasetType for each in told.inputs] == ["DATASET", "MODEL"]
    assert told.outputs == []


def test_the_packaged_source_is_the_source_code_facet(facets):
    source = a_task().get_openlineage_facets_on_start().job_facets["sourceCode"]

    assert source.language == "python"
    assert "def double(number: int)" in source.sourceCode


def test_no_source_code_facet_if_it_is_disabled(facets, monkeypatch):
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__DISABLE_SOURCE_CODE", "True")

    assert a_task().get_openlineage_facets_on_start().job_facets == {}


def test_a_complete_job_has_artifacts_as_outputs_and_metrics(ran):
    task, _ = ran(completes(LEFT))
    told = task.get_openlineage_facets_on_complete(None)

    assert places(told.outputs) == [("file", "/models/a b")]
    assert told.run_facets["trainjob"].metrics == {"accuracy": 0.9}
    assert told.run_facets["trainjob"].status == "Complete"
    assert told.run_facets["externalQuery"].source == "kubernetes"


def test_a_failed_job_has_its_diagnosis_in_the_facet(ran):
    task, error = ran(fails("OutOfMemory", "the batch is too large"))
    told = task.get_openlineage_facets_on_failure(None)

    assert error is not None
    assert told.run_facets["trainjob"].diagnosis == "OutOfMemory in node-0: the batch is too large"
    assert places(told.inputs) == [("s3://data", "digits/v1"), ("hf://huggingface.co", "google/vit")]
    assert told.outputs == []


def test_a_sensor_reports_the_artifacts_of_the_job(ran, trainjob_recorder):
    trainjob_recorder.script(completes(LEFT))
    ref = a_task(wait_for_completion=False)
    submitted, _ = ran(completes(LEFT), ref)
    sensor = TrainJobSensor(task_id="wait", job=trainjob_recorder.job().ref)
    waited, _ = ran(completes(LEFT), sensor)

    assert submitted.get_openlineage_facets_on_complete(None).outputs == []
    assert waited.get_openlineage_facets_on_complete(None).run_facets["trainjob"].run_url is None
    assert places(waited.get_openlineage_facets_on_complete(None).outputs) == [("file", "/models/a b")]


def test_the_openlineage_provider_calls_the_task(ran):
    from airflow.providers.openlineage.extractors.manager import ExtractorManager

    task, _ = ran(completes(LEFT))
    ti = StandInTaskInstance()
    told = ExtractorManager().extract_metadata(SimpleNamespace(run_id="run"), task, TaskInstanceState.SUCCESS, ti)

    assert places(told.outputs) == [("file", "/models/a b")]
    assert told.run_facets["trainjob"].metrics == {"accuracy": 0.9}


def test_the_lineage_is_a_valid_openlineage_event(ran, mlflow):
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

    facet = sent["run"]["facets"]["trainjob"]
    assert facet["metrics"] == {"accuracy": 0.9}
    assert facet["run_url"] == "https://ui.example/#/experiments/7/runs/run-1"
    assert sent["outputs"][0]["facets"]["datasetType"]["datasetType"] == "MODEL"


def listeners():
    """Return the listener manager of the process that runs tasks."""
    try:
        from airflow.sdk.listener import get_listener_manager
    except ImportError:  # before 3.2
        from airflow.listeners.listener import get_listener_manager
    return get_listener_manager()


@pytest.fixture
def sent(facets, trainjob_airflow, monkeypatch, tmp_path):
    """Events that Airflow's listener has sent, by type: START, COMPLETE, FAIL."""
    from airflow.providers.openlineage.plugins.listener import OpenLineageListener

    file = tmp_path / "events.jsonl"
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    # The test process has many threads and must not be forked.
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__EXECUTE_IN_THREAD", "True")
    # Seconds that a task waits for the event to be sent.
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT", "100")
    listener = OpenLineageListener()
    listeners().add_listener(listener)
    yield lambda: {event["eventType"]: event for event in map(json.loads, file.read_text().splitlines())}
    listeners().pm.unregister(listener)


@pytest.fixture
def train(run_trainjob_dag, trainjob_recorder):
    """Run a DAG whose training ends with this result."""

    def run(ending):
        trainjob_recorder.script(ending)
        start = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
        with DAG(f"lineage_{next(_ids)}", schedule=None, start_date=start) as dag:
            a_task()
        return run_trainjob_dag(dag)

    return run


def names(datasets):
    return [(each["namespace"], each["name"]) for each in datasets]


def test_airflow_sends_inputs_and_outputs_of_a_training(sent, train):
    train(completes(LEFT))
    begins, ends = sent()["START"], sent()["COMPLETE"]

    assert names(begins["inputs"]) == [("s3://data", "digits/v1"), ("hf://huggingface.co", "google/vit")]
    assert "def double(number: int)" in begins["job"]["facets"]["sourceCode"]["sourceCode"]
    assert names(ends["outputs"]) == [("file", "/models/a b")]
    assert ends["run"]["facets"]["trainjob"]["metrics"] == {"accuracy": 0.9}
    assert ends["run"]["facets"]["externalQuery"]["source"] == "kubernetes"
    assert ends["run"]["runId"] == begins["run"]["runId"]


def test_airflow_sends_the_diagnosis_of_a_failed_training(sent, train):
    train(fails("OutOfMemory", "the batch is too large"))
    failed = sent()["FAIL"]

    assert failed["run"]["facets"]["trainjob"]["diagnosis"] == "OutOfMemory in node-0: the batch is too large"
    assert "the batch is too large" in failed["run"]["facets"]["errorMessage"]["message"]
    assert failed["outputs"] == []
