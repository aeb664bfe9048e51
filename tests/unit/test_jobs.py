"""TrainJobRef, TrainJob, Step, Event and Outcome: their fields, and JSON both ways."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from hypothesis import given, strategies as st

from trainer_core.model.jobs import (
    Category,
    Diagnosis,
    Event,
    ObjectiveReport,
    Outcome,
    OwnerReference,
    Progress,
    RungValue,
    Step,
    TrainJob,
    TrainJobRef,
    describe_status,
    extract_metrics,
)
from trainer_core.model.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType
from trainer_core.node.jsonable import extract_artifacts
from trainer_core.tracking.tags import get_run_status

CREATED = datetime(2026, 5, 1, 12, 30, 15, 250000, tzinfo=timezone.utc)
RUNTIME = Runtime("torch", RuntimeTrainer(TrainerType.CUSTOM_TRAINER, "torch", "", command=("torchrun",)))
STEP = Step("node-0", "Failed", "pod-0", "gpu", "2", exit_code=-9, restarts=1, node="m1", started=CREATED)
JOB = TrainJob(
    name="a-job",
    runtime=RUNTIME,
    steps=[STEP],
    num_nodes=2,
    creation_timestamp=CREATED,
    status="Failed",
    uid="u",
    namespace="team-a",
    labels={"a": "1"},
    annotations={"b": "2"},
    reason="killed by SIGKILL",
    finished=CREATED,
    progress=Progress(3, 10, {"loss": 0.5}),
)
EVENT = Event("TrainJob", "a-job", "it started", "Started", CREATED, type="Warning")
REF = TrainJobRef("local", "/home", "job", "uid").to_dict()

texts = st.text(max_size=20)
names = st.text(min_size=1, max_size=30)
times = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(timezone.utc))  # noqa: DTZ001
steps = st.builds(
    Step, texts, st.none() | texts, texts, exit_code=st.none() | st.integers(-64, 255), started=st.none() | times
)
jobs = st.builds(
    TrainJob,
    name=texts,
    runtime=st.builds(Runtime, texts, st.just(RUNTIME.trainer), st.sampled_from(RuntimeKind)),
    steps=st.lists(steps, max_size=3),
    num_nodes=st.integers(1, 100),
    creation_timestamp=times,
    labels=st.dictionaries(texts, texts, max_size=3),
    reason=st.none() | texts,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.builds(TrainJobRef, backend=names, namespace=names, name=names, uid=names))
def test_a_ref_is_the_same_after_json(ref):
    assert TrainJobRef.from_json(ref.to_json()) == ref
    assert TrainJobRef.from_dict(json.loads(json.dumps(ref.to_dict()))) == ref


@pytest.mark.parametrize("data", [None, [], "ref", {}, {"version": 2}, {"version": 1, "backend": "local"}])
def test_data_that_is_not_a_ref_is_refused(data):
    with pytest.raises(ValueError, match=r"is not a TrainJob ref.*; pass what submit returned"):
        TrainJobRef.from_dict(data)


def test_the_message_names_the_missing_fields_of_a_ref():
    with pytest.raises(ValueError, match="it lacks name, uid"):
        TrainJobRef.from_dict({"version": 1, "backend": "local", "namespace": "n", "name": ""})


def test_text_that_is_not_json_is_not_a_ref():
    with pytest.raises(ValueError, match="is not JSON"):
        TrainJobRef.from_json("{")


def test_an_owner_reference_is_read_from_and_written_to_a_manifest():
    entry = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run", "uid": "u", "controller": True}
    owner = OwnerReference.from_manifest(entry)

    assert owner == OwnerReference("argoproj.io/v1alpha1", "Workflow", "run", "u")
    assert OwnerReference.from_manifest(owner.to_manifest()) == owner


@pytest.mark.parametrize("record", [JOB, STEP, EVENT], ids=lambda record: type(record).__name__)
def test_a_record_is_the_same_after_json(record):
    assert type(record).from_json(record.to_json()) == record


@given(jobs)
def test_any_job_is_the_same_after_json(job):
    assert TrainJob.from_json(job.to_json()) == job


def test_a_job_is_plain_data_with_a_version():
    data = JOB.to_dict()
    assert (data["version"], data["status"], data["runtime"]["kind"]) == (1, "Failed", "ClusterTrainingRuntime")
    assert (data["creation_timestamp"], data["steps"][0]["exit_code"]) == ("2026-05-01T12:30:15.250000Z", -9)
    unset = {"checkpoint": None, "resumed_from": None, "objective": None, "silent": None}
    assert data["progress"] == {"step": 3, "total": 10, "metrics": {"loss": 0.5}, **unset}


def test_the_fields_of_the_reference_come_first_and_in_its_order():
    assert TrainJob("a-job", RUNTIME, [], 1, CREATED) == TrainJob(
        name="a-job", runtime=RUNTIME, steps=[], num_nodes=1, creation_timestamp=CREATED, status="Unknown"
    )
    assert Step("node-0", None, "pod-0", "cpu", "4").device_count == "4"
    assert Event("Pod", "pod-0", "message", "Reason", CREATED).event_time == CREATED


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        "a-job",
        {**JOB.to_dict(), "version": 2},
        {**JOB.to_dict(), "colour": "red"},
        {**JOB.to_dict(), "num_nodes": "many"},
        {"version": 1, "name": "a-job"},
    ],
)
def test_data_that_is_not_a_job_is_refused_in_one_line(data):
    with pytest.raises(ValueError, match=r"is not a TrainJob of version 1|TrainJob is invalid: ") as refused:
        TrainJob.from_dict(data)
    assert "\n" not in str(refused.value)


def test_text_that_is_not_json_is_not_a_record():
    with pytest.raises(ValueError, match="a Step is not JSON"):
        Step.from_json("{")


@given(result=json_values, metrics=st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)))
def test_an_outcome_is_the_same_after_json(result, metrics):
    outcome = Outcome(ref=REF, status="Complete", result=result, metrics=metrics)

    assert Outcome.from_json(outcome.to_json()) == outcome
    assert Outcome.from_dict(outcome.to_dict()) == outcome


def test_a_failed_outcome_keeps_its_diagnosis_through_json():
    diagnosis = Diagnosis(
        category=Category.USER_CODE, reason="KeyError: 'x'", step="node-0", exit_code=1, log_tail=("a",)
    )
    outcome = Outcome(ref=REF, status="Failed", diagnosis=diagnosis)

    assert Outcome.from_json(outcome.to_json()).diagnosis == diagnosis
    assert str(diagnosis) == "UserCode in node-0: KeyError: 'x'"


def test_an_outcome_of_another_version_is_refused():
    with pytest.raises(ValueError, match="version"):
        Outcome.from_dict({"version": 2, "ref": REF, "status": "Complete"})


def test_metrics_are_the_numbers_at_the_top_of_a_result():
    result = {"accuracy": 0.9, "epochs": 3, "name": "x", "ok": True, "nested": {"loss": 1}}

    assert extract_metrics(result) == {"accuracy": 0.9, "epochs": 3.0}


def test_a_metrics_entry_replaces_the_numbers_at_the_top_of_a_result():
    assert extract_metrics({"epochs": 3, "metrics": {"loss": 0.1, "note": "x"}}) == {"loss": 0.1}


@pytest.mark.parametrize("number", [10**400, -(10**400), float("nan"), float("inf")])
def test_a_number_that_is_not_a_finite_float_is_no_metric(number):
    assert extract_metrics({"accuracy": 0.9, "number": number}) == {"accuracy": 0.9}


def test_numbers_of_the_result_take_precedence_over_those_of_progress():
    assert extract_metrics({"loss": 0.1}, {"loss": 0.5, "step_time": 2.0}) == {"loss": 0.1, "step_time": 2.0}


@pytest.mark.parametrize("result", [None, 3, "text", [1], {"metrics": 5}, {"artifacts": "x"}])
def test_a_result_of_any_shape_is_accepted(result):
    assert extract_metrics(result) == {}
    assert extract_artifacts(result) == {}


def test_artifacts_are_named_uris():
    assert extract_artifacts({"artifacts": {"model": "file:///m", "size": 3}}) == {"model": "file:///m"}


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        ("Failed", "StoppedEarly: val_loss 0.3 at step 9 is not the best of 2: 0.1", "Stopped early"),
        ("Failed", "UserCode in node-0: StoppedEarly", "Failed"),
        ("Failed", None, "Failed"),
        ("Complete", None, "Complete"),
    ],
)
def test_a_trial_that_was_stopped_early_is_not_shown_as_failed(status, reason, words):
    assert describe_status(status, reason) == words


def test_a_trial_that_was_stopped_early_is_a_finished_run():
    diagnosis = Diagnosis(category=Category.STOPPED_EARLY, reason="val_loss is not a number")
    assert get_run_status(Outcome(ref={}, status="Failed", diagnosis=diagnosis)) == "FINISHED"


def test_an_outcome_without_a_search_has_no_fields_that_earlier_releases_refuse():
    data = Outcome(ref={}, status="Failed", diagnosis=Diagnosis(category=Category.DELETED, reason="x")).to_dict()
    assert not {"objective", "paused_at"} & (data.keys() | data["diagnosis"].keys())


def test_the_values_of_a_trial_are_read_back():
    report = ObjectiveReport(0.5, 3, 0.5, (RungValue(0, 1, None, 7), RungValue(1, 3, 0.5, 9)))
    diagnosis = Diagnosis(category=Category.STOPPED_EARLY, reason="x", objective=report)
    outcome = Outcome(ref={}, status="Failed", diagnosis=diagnosis, objective=report, paused_at=3)
    assert Outcome.from_json(outcome.to_json()) == outcome


@pytest.mark.parametrize("category", Category)
def test_a_category_prints_as_its_value(category):
    assert (f"{category}", str(category)) == (category.value, category.value)
