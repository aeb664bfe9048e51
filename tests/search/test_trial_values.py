"""The value of a trial: which report counts, and what a trial without a value is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainer_core.model.jobs import COMPLETE, FAILED, Category, Diagnosis, ObjectiveReport, Outcome, RungValue
from trainer_core.search.decisions import Ending, EntryView, decide, judge
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.history import SettledTrial


def define(**objective: Any) -> SearchDefinition:
    config = {"num_trials": 3, "parallel_trials": 3}
    return SearchDefinition.parse({"x": [1, 2, 3]}, {"metric": "loss", **objective}, config)


def build_outcome(metrics: dict[str, float], best: float | None = None, **fields: Any) -> Outcome:
    ref = {"version": 1, "backend": "manual", "namespace": "memory", "name": "tune-0", "uid": "1"}
    report = ObjectiveReport(best=best, rungs=(RungValue(0, 1.0, 0.5, 1000),))
    return Outcome(ref=ref, status=COMPLETE, metrics=metrics, objective=report, **fields)


@pytest.mark.parametrize(
    ("objective", "best", "expected"),
    [
        ({}, 1.0, 3.0),
        ({"value": "min"}, 1.0, 1.0),
        ({"value": "min"}, 4.0, 3.0),  # The result is better than all reports.
        ({"value": "max"}, 9.0, 9.0),
        ({"value": "best"}, 1.0, 1.0),
        ({"value": "best", "direction": "maximize"}, 9.0, 9.0),
        ({"value": "min"}, None, 3.0),
    ],
)
def test_the_last_the_least_or_the_best_report_counts(
    objective: dict[str, Any], best: float | None, expected: float
) -> None:
    ending = judge(build_outcome({"loss": 3.0}, best), define(**objective), 0, {"x": 1})
    assert (ending.state, ending.line.value) == ("Complete", expected)


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({}, "reported no loss; return it, or call report_metrics()"),
        ({"train_loss": 1.0, "acc@1/top": 0.5}, "reported no loss, but: acc@1/top, train_loss"),
        ({"loss": float("nan")}, "reported no loss, but: loss nan"),
        ({"loss": float("-inf")}, "reported no loss, but: loss -inf"),
    ],
)
def test_a_trial_without_a_value_has_failed_and_names_what_it_has(metrics: dict[str, float], reason: str) -> None:
    ending = judge(build_outcome(metrics), define(), 0, {"x": 1})
    assert (ending.state, ending.retryable, ending.line.reason) == ("Failed", False, reason)


def test_a_trial_whose_nodes_left_nothing_has_the_value_that_the_driver_had_read_when_it_stopped_it() -> None:
    ended = build_outcome({})
    diagnosis = Diagnosis(category=Category.STOPPED_EARLY, reason="not among the best", objective=ended.objective)
    stopped = replace(ended, status=FAILED, objective=None, diagnosis=diagnosis)
    line = judge(stopped, define(), 0, {"x": 1}).line
    assert (line.state, line.value, [each.step for each in line.rungs]) == ("StoppedEarly", 0.5, [1.0])


def test_a_result_that_is_not_a_number_is_named_as_the_reason() -> None:
    note = "null instead of a number that is not finite: result.loss"
    ending = judge(replace(build_outcome({"ok": 1.0}), result_note=note), define(), 0, {"x": 1})
    assert ending.line.reason == f"reported no loss, but: ok ({note})"


def test_of_equal_values_the_first_trial_is_the_best() -> None:
    lines = [SettledTrial(trial, "Complete", value) for trial, value in enumerate((2.0, 1.0, 1.0))]
    endings = [Ending("Complete", False, line) for line in lines]
    entries = [EntryView(n, f"tune-{n}", 0.0, n, has_processes=False, ending=end) for n, end in enumerate(endings)]
    best = decide(define(), entries, {}, 0.0).table.best
    assert best is not None
    assert best.number == 1
