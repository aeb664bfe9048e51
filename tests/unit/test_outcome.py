"""Outcome: what a finished job left, as JSON."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_core import Category, Diagnosis, Outcome, TrainJobRef
from trainer_core.outcome import artifacts_of, metrics_of

REF = TrainJobRef("local", "/home", "job", "uid").to_dict()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(result=JSON, metrics=st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)))
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

    assert metrics_of(result) == {"accuracy": 0.9, "epochs": 3.0}


def test_metrics_named_as_such_stand_for_all_of_them():
    assert metrics_of({"epochs": 3, "metrics": {"loss": 0.1, "note": "x"}}) == {"loss": 0.1}


@pytest.mark.parametrize("number", [10**400, -(10**400), float("nan"), float("inf")])
def test_a_number_that_no_float_holds_is_no_metric(number):
    assert metrics_of({"accuracy": 0.9, "number": number}) == {"accuracy": 0.9}


def test_the_result_wins_over_what_progress_said():
    assert metrics_of({"loss": 0.1}, {"loss": 0.5, "step_time": 2.0}) == {"loss": 0.1, "step_time": 2.0}


@pytest.mark.parametrize("result", [None, 3, "text", [1], {"metrics": 5}, {"artifacts": "x"}])
def test_a_result_of_any_shape_has_metrics_and_artifacts(result):
    assert metrics_of(result) == {}
    assert artifacts_of(result) == {}


def test_artifacts_are_named_uris():
    assert artifacts_of({"artifacts": {"model": "file:///m", "size": 3}}) == {"model": "file:///m"}
