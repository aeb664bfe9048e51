"""What is written to the run of a TrainJob, beside what the training itself logs to it."""

from __future__ import annotations

import json

import pytest

from trainer_core.errors import TrackingError
from trainer_core.jobs import Outcome, TrainJobRef
from trainer_core.tracking import run_writer, tags
from trainer_core.tracking.mlflow_api import MlflowRun
from trainer_core.tracking.run_writer import RunWriter

REF = TrainJobRef("local", "/home", "job", "uid-1")


class Api:
    """An MLflow server with one run, which keeps what is written.

    Attributes:
        written: Metrics, tags and updates in their order.
    """

    def __init__(self):
        self.info = {"run_id": "run", "experiment_id": "7", "status": "RUNNING", "lifecycle_stage": "active"}
        self.tags, self.metrics, self.written = {}, {}, []

    def get_run(self, run_id):
        data = {
            "tags": [{"key": key, "value": value} for key, value in self.tags.items()],
            "metrics": [{"key": key, "value": value} for key, value in self.metrics.items()],
        }
        return MlflowRun.model_validate({"info": self.info, "data": data})

    def log_batch(self, run_id, metrics=(), params=None, tags=None):
        assert run_id == "run"
        self.written += [{each["key"]: each["value"] for each in metrics}] if metrics else []
        self.written += [tags] if tags else []

    def post(self, path, run_id, **fields):
        assert (path, run_id) == ("runs/update", "run")
        self.written.append(fields)


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def load(api):
    """Return a loaded writer."""

    def load():
        writer = RunWriter(api, "run")
        writer.load()
        return writer

    return load


def end(writer, **metrics):
    fields = {"started_at": "1970-01-01T00:00:01Z", "finished_at": "1970-01-01T00:00:02Z"}
    writer.end(Outcome(ref=REF.to_dict(), status="Complete", metrics=metrics, **fields), 7)


ENDED = [{"status": "FINISHED", "end_time": 2000}, {"trainjob.status": "Complete", tags.REPORTED: "uid-1"}]


def test_a_run_that_a_person_deleted_is_not_written(api, load):
    api.info["lifecycle_stage"] = "deleted"

    with pytest.raises(TrackingError, match="run run was deleted"):
        load()


def test_a_job_that_waits_is_scheduled_and_each_change_of_its_status_is_sent_once(api, load):
    writer = load()
    for status in (None, "Running", "Suspended", "Suspended", None, "Running", "Created"):
        writer.set_status(status)

    assert api.written == [{"status": "SCHEDULED"}, {"status": "RUNNING"}, {"status": "SCHEDULED"}]


def test_points_are_sent_after_the_names_of_their_curves(api, load):
    writer = load()
    writer.send([])
    writer.send([("loss", 0.5, 1, 1)])
    writer.send([("loss", 0.25, 2, 2)])

    assert api.written == [{tags.CURVES: '["loss"]'}, {"loss": 0.5}, {"loss": 0.25}]


@pytest.mark.parametrize("curves", [None, "{", "7"])
def test_points_of_a_metric_that_the_training_logs_itself_have_another_name(api, load, curves):
    api.metrics["loss"] = 1.0
    api.tags.update({tags.CURVES: curves} if curves else {})  # A person may have changed the tag.
    load().send([("loss", 0.5, 1, 1)])

    assert api.written == [{"progress/loss": 0.5}]


def test_another_process_continues_the_curves(api, load):
    api.metrics["loss"] = 1.0
    api.tags[tags.CURVES] = json.dumps(["loss"])
    load().send([("loss", 0.5, 1, 1)])

    assert api.written == [{"loss": 0.5}]


def test_the_end_adds_the_metrics_that_the_run_does_not_have(api, load):
    api.metrics.update(own=1.0)
    writer = load()
    writer.send([("loss", 0.5, 1, 1), ("gain", 1.0, 1, 1)])
    api.written.clear()
    # One that the training has logged itself, one that was sent, one that has changed since, and a new one.
    end(writer, own=2.0, loss=0.5, gain=2.0, accuracy=0.9)

    assert api.written == [{"gain": 2.0, "accuracy": 0.9}, *ENDED]


def test_metrics_of_the_end_are_sent_in_batches(api, load, monkeypatch):
    monkeypatch.setattr(run_writer, "MAX_BATCH", 2)
    end(load(), a=1.0, b=2.0, c=3.0)

    assert api.written == [{"a": 1.0, "b": 2.0}, {"c": 3.0}, *ENDED]
