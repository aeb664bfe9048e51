"""What is written to the run of a TrainJob, beside what the training itself logs to it."""

from __future__ import annotations

import json

import pytest

from trainer_core.base.errors import TrackingError
from trainer_core.model.jobs import Outcome, TrainJobRef
from trainer_core.tracking import tags
from trainer_core.tracking.mlflow_api import MlflowRun, fit_names
from trainer_core.tracking.run import RunWriter, list_unreported_runs

REF = TrainJobRef("local", "/home", "job", "uid-1")


class Api:
    """An MLflow server with one run, which keeps what is written.

    Attributes:
        written: Metrics and updates in their order.
    """

    def __init__(self):
        self.info = {"run_id": "run", "experiment_id": "7", "status": "RUNNING", "lifecycle_stage": "active"}
        self.tags, self.metrics, self.points, self.written = {}, {}, {}, []

    def get_run(self, run_id):
        data = {
            "tags": [{"key": key, "value": value} for key, value in self.tags.items()],
            "metrics": [
                {"key": key, "value": value, **self.points.get(key, {})} for key, value in self.metrics.items()
            ],
        }
        return MlflowRun.model_validate({"info": self.info, "data": data})

    def log_batch(self, run_id, metrics=(), params=None, tags=None):
        assert run_id == "run"
        values = {each["key"]: each["value"] for each in metrics}
        self.metrics |= values
        self.points |= {each["key"]: {"step": each["step"], "timestamp": each["timestamp"]} for each in metrics}
        self.tags |= tags or {}
        self.written += [values] if values else []
        return {}

    def post(self, path, run_id, **fields):
        assert (path, run_id) == ("runs/update", "run")
        self.info["status"] = fields["status"]
        self.written.append(fields)


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def load(api):
    """Return a loaded writer."""

    def load():
        writer = RunWriter(api, "run", "job")
        writer.load()
        return writer

    return load


def send(writer, *points, cursor=None, step=0):
    """Send points in one report, and what it held in the next."""
    writer.begin_report()
    writer.send(points, cursor, step)
    writer.begin_report()
    writer.send([], cursor, step)


def end(writer, status="Complete", **metrics):
    fields = {"started_at": "1970-01-01T00:00:01Z", "finished_at": "1970-01-01T00:00:02Z"}
    outcome = Outcome(ref=REF.to_dict(), status=status, metrics=metrics, **fields)
    writer.end(outcome)
    writer.complete(outcome, 7)


ENDED = {"status": "FINISHED", "end_time": 2000}


def test_a_run_that_a_person_deleted_is_not_written(api, load):
    api.info["lifecycle_stage"] = "deleted"

    with pytest.raises(TrackingError, match="run run was deleted"):
        load()


def test_a_job_that_waits_is_scheduled_and_each_change_of_its_status_is_sent_once(api, load):
    writer = load()
    for status in (None, "Running", "Suspended", "Suspended", None, "Running", "Created"):
        writer.set_status(status)

    assert api.written == [{"status": "SCHEDULED"}, {"status": "RUNNING"}, {"status": "SCHEDULED"}]


def test_points_wait_for_the_next_report(api, load):
    writer = load()
    send(writer, ("loss", 0.5, 1, 1))
    writer.begin_report()
    writer.send([("loss", 0.25, 2, 2), ("gain", 1.0, 2, 2)])

    assert api.written == [{"loss": 0.5}]
    assert writer.has_held_points


@pytest.mark.parametrize("curves", [None, "{", "7", '[["loss"]]'])
def test_points_of_a_metric_that_the_training_logs_itself_have_another_name(api, load, curves):
    api.tags.update({tags.CURVES: curves} if curves else {})  # A person may have changed the tag.
    writer = load()
    writer.begin_report()
    writer.send([("loss", 0.5, 1, 1)])
    api.metrics["loss"] = 1.0  # Between two reports: mlflow takes seconds to import.
    writer.begin_report()
    writer.send([("loss", 0.25, 2, 2)])

    assert api.written == [{"progress/loss": 0.5}]


@pytest.mark.parametrize("name", ["loss", "acc@1", "x" * 300, "own"])
def test_another_process_continues_the_curves(api, load, name):
    api.metrics["own"] = 1.0
    for step in (1, 2):
        send(load(), (name, 0.5 / step, step, step))

    assert [list(each) for each in api.written] == [[next(iter(api.written[0]))]] * 2


def test_hundreds_of_curves_are_continued_and_their_tags_stay_short(api, load):
    names = [f"validation/class_{number:04}/precision at 0.5" for number in range(600)]
    for step in (1, 2):
        send(load(), *((name, 0.5, step, step) for name in names))

    assert api.metrics.keys() == {*names}
    assert max(map(len, api.tags.values())) <= 4000


def test_processes_that_announce_different_curves_at_once_lose_none(api, load):
    first, second = load(), load()
    send(first, ("loss", 0.5, 1, 1))
    send(second, ("loss", 0.5, 1, 1), ("gain", 1.0, 1, 1))
    first._log((), {key: value for key, value in api.tags.items() if "gain" not in value})
    send(load(), ("loss", 0.25, 2, 2), ("gain", 2.0, 2, 2))

    assert api.metrics == {"loss": 0.25, "gain": 2.0}


def test_a_position_is_recorded_when_all_points_before_it_are_stored(api, load):
    writer = load()
    writer.begin_report()
    writer.send([("loss", 0.5, 1, 7)], {"line": 1}, 7)
    positions = [load().cursor]
    send(writer, cursor={"line": 1}, step=7)
    positions.append(load().cursor)

    assert positions == [{}, {"line": 1}]
    assert load().step == 7


@pytest.mark.parametrize("value", ["{", "[1]", '{"cursor": 5, "step": 1}', '{"cursor": {}}'])
def test_a_position_that_a_person_changed_is_the_beginning(api, load, value):
    api.tags[tags.CURSOR] = value

    assert load().cursor == {}


def test_the_end_comes_first_and_adds_the_metrics_that_the_run_does_not_have(api, load):
    api.metrics.update(own=1.0)
    writer = load()
    send(writer, ("loss", 0.5, 1, 1), ("gain", 1.0, 1, 1))
    api.written.clear()
    # One that the training has logged itself, one that was sent, one that has changed since, and a new one.
    end(writer, own=2.0, loss=0.5, gain=2.0, accuracy=0.9)

    assert api.written == [ENDED, {"gain": 2.0, "accuracy": 0.9}]
    assert (api.tags["trainjob.status"], api.tags[tags.REPORTED], api.tags[tags.PENDING]) == ("Complete", "uid-1", "")


def test_an_end_that_was_sent_stays_although_the_job_was_deleted_since(api, load):
    outcome = Outcome(ref=REF.to_dict(), status="Complete", finished_at="1970-01-01T00:00:02Z")
    load().end(outcome)
    end(load(), status="Failed")

    assert api.written == [ENDED]
    assert api.tags["trainjob.status"] == "Complete"


@pytest.mark.parametrize(
    ("status", "pending"),
    [("FINISHED", None), ("RUNNING", "FINISHED")],
    ids=["the training ended its run itself", "killed before the status was sent"],
)
def test_the_end_is_sent_until_a_process_of_the_job_has_sent_it(api, load, status, pending):
    api.info["status"] = status
    api.tags |= {tags.PENDING: pending} if pending else {}
    end(load())

    assert api.written == [ENDED]


def test_names_that_mlflow_refuses_are_replaced_by_distinct_ones():
    names = [
        "acc@1",
        "acc_1",
        "top5 (%)",
        "a//b",
        "a/b",
        "../x",
        "..",
        "/",
        "",
        "y" * 300,
        "y" * 299,
        "é",
        "a\nb",
        "x/..",
    ]
    keys = fit_names(names)

    assert {name: keys[name] for name in ("acc_1", "a/b", "é")} == {"acc_1": "acc_1", "a/b": "a/b", "é": "é"}
    assert len({*keys.values()}) == len(names)
    assert keys["top5 (%)"] == "top5 ___"
    assert max(map(len, keys.values())) == 250
    assert json.dumps(keys) == json.dumps(fit_names(names))


def test_unreported_runs_of_many_experiments_are_searched_in_parts_and_each_is_listed_once():
    experiments, asked = [str(number) for number in range(250)], []

    class Searched(Api):
        def list_experiment_ids(self):
            return experiments

        def search_runs(self, ids, condition):
            asked.append(ids)
            return [self.get_run("run")] if "7" in ids else []

    assert [run.id for run in list_unreported_runs(Searched(), "local")] == ["run"]
    parts = [experiments[:100], experiments[100:200], experiments[200:]]
    assert asked == [part for part in parts for _ in range(3)]


@pytest.mark.parametrize("returned", [{"result": {"accuracy": None}}, {"result_truncated": True}])
def test_a_metric_that_was_returned_without_a_finite_number_is_not_the_last_value_of_its_curve(load, api, returned):
    send(load(), ("accuracy", 0.95, 1000, 1), ("loss", 0.5, 1000, 1), ("system/cpu", 3.0, 1000, 0))
    outcome = Outcome(ref=REF.to_dict(), status="Complete", metrics={"loss": 0.5}, **returned)
    writer = load()
    writer.end(outcome)
    writer.complete(outcome, 7)

    assert api.metrics["accuracy"] == "NaN"
    assert (api.metrics["loss"], api.metrics["system/cpu"]) == (0.5, 3.0)
    assert [each for each in api.written if each == {"accuracy": "NaN"}] == [{"accuracy": "NaN"}]
