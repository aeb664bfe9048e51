"""How a search continues is decided from its entries and the time: not from their order, nor from who decides."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from trainer_core.model.jobs import (
    COMPLETE,
    RUNNING,
    Category,
    ObjectiveReport,
    Observation,
    Outcome,
    Progress,
    TrainJobRef,
)
from trainer_core.search.decisions import (
    Decision,
    Ending,
    EntryView,
    Finish,
    Record,
    Start,
    Stop,
    apply_observation,
    decide,
    judge,
    read_rungs,
)
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.history import RungReport, SettledTrial

LOST = {"category": Category.NODE_LOST.value, "reason": "the node is gone"}


def define(trials: int = 4, parallel: int = 2, **changes: Any) -> SearchDefinition:
    config = {"num_trials": trials, "parallel_trials": parallel}
    config |= {name: changes.pop(name) for name in ("timeout", "retries", "max_failed_trials") if name in changes}
    return SearchDefinition.parse({"x": [1, 2, 3, 4, 5, 6]}, trial_config=config, **changes)


def running(number: int, trial: int | None = None, **changes: Any) -> EntryView:
    trial = number if trial is None else trial
    return EntryView(number, f"tune-{number}", 100.0 + number, trial, {"x": trial}, status=RUNNING, **changes)


def ended(entry: EntryView, state: Any = "Complete", value: float | None = 0.5, **changes: Any) -> EntryView:
    assert entry.trial is not None
    retryable = changes.pop("retryable", False)
    line = SettledTrial(entry.trial, "StoppedEarly" if state == "Paused" else state, value, entry.reports, **changes)
    ending = Ending(state, retryable, replace(line, parameters=entry.parameters, job=entry.job))
    return replace(entry, status=COMPLETE, has_processes=False, ending=ending)


def failed(entry: EntryView, category: Category = Category.USER_CODE, retryable: bool = False) -> EntryView:
    return ended(entry, "Failed", None, category=category.value, reason="it failed", retryable=retryable)


def lost(entry: EntryView) -> EntryView:
    return ended(entry, "Lost", None, **LOST, retryable=True)


def record(number: int, reason: str, definition: SearchDefinition) -> EntryView:
    return EntryView(number, f"tune-{number}", 100.0, reason=reason, limits=definition.limits(), has_processes=False)


def choose(definition: SearchDefinition, *entries: EntryView, now: float = 200.0, **changes: Any) -> Decision:
    return decide(definition, entries, changes.pop("lines", {}), now, **changes)


def list_started(decision: Decision) -> list[int]:
    return [action.trial for action in decision.actions if isinstance(action, Start)]


def report(entry: EntryView, *values: float) -> EntryView:
    reports = tuple(
        RungReport(int(entry.trial or 0), rung, 3**rung, value, 1000 + 10 * entry.number + rung)
        for rung, value in enumerate(values)
    )
    return replace(entry, reports=reports)


# How a run ended


@pytest.mark.parametrize(
    ("value", "best", "own", "expected"),
    [
        ("last", 0.1, 0.5, 0.5),
        ("min", 0.1, 0.5, 0.1),
        ("min", 0.5, 0.1, 0.1),
        ("max", 0.5, 0.9, 0.9),
        ("max", 0.9, 0.5, 0.9),
        ("best", 0.5, 0.1, 0.1),
        ("best", 0.1, math.nan, 0.1),
        ("min", None, 0.5, 0.5),
    ],
)
def test_the_value_of_a_trial_is_the_last_one_or_the_best_of_its_reports_and_its_result(
    value: str, best: float | None, own: float, expected: float
) -> None:
    outcome = Outcome(
        ref=TrainJobRef("local", "/home", "tune-0", "uid").to_dict(),
        status=COMPLETE,
        metrics={"loss": own},
        objective=ObjectiveReport(0.7, 3, best),
    )
    line = judge(outcome, define(objectives=[{"metric": "loss", "value": value}]), 0, {"x": 1}).line
    assert (line.state, line.value) == ("Complete", expected)


@pytest.mark.parametrize("value", ["last", "best", "min", "max"])
@pytest.mark.parametrize(
    "returned", [{"result": {"loss": None}}, {"result": {"metrics": {"loss": "nan"}}}, {"result_truncated": True}]
)
def test_a_trial_that_returns_no_finite_objective_is_never_the_best_whatever_it_reported(
    value: str, returned: dict[str, Any]
) -> None:
    ref = TrainJobRef("local", "/home", "tune-0", "uid").to_dict()
    outcome = Outcome(ref=ref, status=COMPLETE, objective=ObjectiveReport(0.1, 3, 0.1), **returned)
    line = judge(outcome, define(objectives=[{"metric": "loss", "value": value}]), 0, {"x": 1}).line
    assert (line.state, line.value, line.reason) == (
        "Failed",
        None,
        "reported no loss; return it, or call report_metrics()",
    )


def test_a_rung_of_a_trial_that_writes_none_has_the_first_value_read_at_it_and_its_time_in_ms() -> None:
    definition, known = promotion(9), RungReport(4, 0, 1, 0.9, 5)
    reports = read_rungs(definition, 4, Progress(3, None, {"loss": 0.5}), [known], now=7.25)
    assert reports == (known, RungReport(4, 1, 3, 0.5, 7250))


# What starts


def test_a_search_without_entries_fills_its_slots() -> None:
    assert list_started(choose(define(trials=4, parallel=2))) == [0, 1]


def test_an_ended_trial_frees_one_slot() -> None:
    assert list_started(choose(define(), ended(running(0)), running(1))) == [2]


def test_no_more_trials_start_than_the_search_has() -> None:
    assert list_started(choose(define(trials=3), ended(running(0)), ended(running(1)))) == [2]


def test_an_ended_trial_whose_processes_run_keeps_its_slot() -> None:
    assert list_started(choose(define(), replace(ended(running(0)), has_processes=True), running(1))) == []


def test_a_grid_has_as_many_trials_as_cells() -> None:
    decision = choose(define(trials=100, parallel=50, algorithm="GridSearch"))
    assert (len(list_started(decision)), decision.table.total) == (6, 6)


def test_a_retry_comes_before_a_new_trial_and_has_the_parameters_of_its_trial() -> None:
    starts = choose(define(parallel=1), lost(running(0))).actions
    assert starts == (Start(0, {"x": 0}),)


@pytest.mark.parametrize(("retries", "started"), [(2, [0]), (1, [1])])
def test_a_trial_is_started_again_as_often_as_its_retries(retries: int, started: list[int]) -> None:
    entries = lost(running(0)), lost(running(1, trial=0))
    assert list_started(choose(define(parallel=1, retries=retries), *entries)) == started


def test_retries_fill_slots_that_new_trials_do_not_get() -> None:
    entries = [lost(running(0)), lost(running(1)), lost(running(2))]
    assert list_started(choose(define(trials=9, parallel=4), *entries)) == [0, 1, 2, 3]
    assert list_started(choose(define(trials=9, parallel=2), *entries)) == [0, 1]


def test_a_retried_trial_counts_as_complete_with_the_time_of_all_its_runs() -> None:
    first = ended(running(0), "Lost", None, **LOST, retryable=True, seconds=5.0, gpu_hours=1.0)
    second = ended(running(1, trial=0), seconds=7.0, gpu_hours=0.5)
    trial = choose(define(trials=1), first, second).table.trials[0]
    assert trial.settled is not None
    assert (trial.status, trial.runs, trial.settled.seconds, trial.settled.gpu_hours) == ("Complete", 2, 12.0, 1.5)


def test_the_line_of_a_trial_has_the_first_report_of_all_its_runs_at_each_rung() -> None:
    first = lost(report(running(0), 0.3))
    again = report(running(1, trial=0), 0.5, 0.2)
    trial = choose(define(trials=1), first, ended(again, value=0.2)).table.trials[0]
    assert trial.settled is not None
    assert [(each.rung, each.value) for each in trial.settled.rungs] == [(0, 0.3), (1, 0.2)]


def test_a_deleted_trial_is_lost_and_not_started_again() -> None:
    gone = replace(running(0), status="Deleted", has_processes=False)
    decision = choose(define(), gone, running(1))
    assert (list_started(decision), decision.table.trials[0].status) == ([2], "Lost")
    line = decision.table.settled[0]
    assert (line.category, line.reason, line.job, line.parameters) == ("Deleted", "it was deleted", "tune-0", {"x": 0})


def test_a_trial_that_no_entry_and_no_line_has_was_deleted() -> None:
    decision = choose(define(), running(1))
    assert (list_started(decision), decision.table.trials[0].status) == ([2], "Lost")
    assert (decision.table.settled[0].category, decision.table.settled[0].reason) == ("Deleted", "it was deleted")


def test_the_line_of_a_deleted_trial_keeps_its_value() -> None:
    decision = choose(define(), running(1), lines={0: SettledTrial(0, "Complete", 0.25, job="tune-0")})
    assert decision.table.best is not None
    assert (decision.table.best.value, decision.table.best.job) == (0.25, "tune-0")


# History


def test_a_new_trial_is_chosen_from_the_trials_that_many_before_it() -> None:
    definition = define(parallel=3, algorithm={"OptunaSampler": {"lag": 2}})
    (start,) = choose(definition, ended(running(0), value=0.1), ended(running(1), value=0.2), running(2)).actions
    assert isinstance(start, Start)
    assert [(line.trial, line.value) for line in start.history] == [(0, 0.1), (1, 0.2)]
    assert start.running == {2: {"x": 2}}


def test_a_new_trial_waits_for_the_results_from_which_it_is_chosen() -> None:
    for lag, started in ((2, []), (3, [2])):
        definition = define(trials=6, parallel=4, algorithm={"OptunaSampler": {"lag": lag}})
        assert list_started(choose(definition, running(0), ended(running(1)))) == started


def test_with_any_lag_a_new_trial_is_chosen_from_all_that_has_ended() -> None:
    definition = define(algorithm={"OptunaSampler": {"lag": "any"}})
    (start,) = choose(definition, running(0), ended(running(1))).actions
    assert isinstance(start, Start)
    assert ([line.trial for line in start.history], start.running) == ([1], {0: {"x": 0}})


# What ends a search


def test_a_search_whose_trials_have_ended_is_recorded_as_complete_and_then_finished() -> None:
    definition = define(trials=2)
    entries = ended(running(0), value=0.5), ended(running(1), value=0.25)
    decision = choose(definition, *entries)
    assert (decision.actions, decision.table.reason) == ((Record("complete"),), "complete")
    decision = choose(definition, *entries, record(2, "complete", definition))
    assert decision.actions == (Finish("complete"),)
    assert decision.table.best is not None
    assert decision.table.best.number == 1


def test_a_search_continues_beyond_its_record_with_other_limits() -> None:
    entries = ended(running(0)), ended(running(1)), record(2, "complete", define(trials=2))
    assert list_started(choose(define(trials=3), *entries)) == [2]


@pytest.mark.parametrize("reason", ["cancelled", "superseded"])
def test_a_cancelled_search_does_not_continue_with_other_limits(reason: str) -> None:
    entries = ended(running(0)), record(1, reason, define(trials=2)), running(2)
    assert choose(define(trials=9), *entries).actions == (Stop(2, None),)
    assert choose(define(trials=9), *entries[:2]).actions == (Finish(reason),)


def test_a_deleted_record_ends_nothing() -> None:
    definition = define(trials=2)
    gone = replace(record(2, "complete", definition), status="Deleted")
    assert choose(definition, ended(running(0)), ended(running(1)), gone).actions == (Record("complete"),)


def test_a_goal_stops_what_runs_and_names_the_reason() -> None:
    definition = define(objectives=[{"metric": "loss", "goal": 0.5}])
    assert choose(definition, ended(running(0), value=0.5), running(1)).actions == (
        Stop(1, "another trial has reached the goal of the search"),
    )
    assert choose(definition, ended(running(0), value=0.5)).actions == (Record("goal"),)
    assert list_started(choose(definition, ended(running(0), value=0.51), running(1))) == [2]
    assert list_started(choose(definition, ended(running(0), "StoppedEarly", 0.1), running(1))) == [2]


def test_at_the_timeout_nothing_starts_and_what_runs_is_stopped() -> None:
    definition = define(timeout=60)
    assert choose(definition, running(0), now=159.9).wake_at == 160.0
    assert list_started(choose(definition, running(0), now=159.9)) == [1]
    assert choose(definition, running(0), now=160.0).actions == (Stop(0, "the time of the search is over"),)
    assert choose(definition, running(0), now=160.0, started=130.0).wake_at == 190.0


def test_a_search_whose_trials_ended_in_time_is_complete_when_a_driver_looks_later() -> None:
    definition = define(trials=2, timeout=60)
    entries = ended(running(0)), ended(running(1))
    assert choose(definition, *entries, now=1000.0).actions == (Record("complete"),)
    stopped = ended(running(1), "StoppedEarly", 0.4, reason="the time of the search is over")
    assert choose(definition, entries[0], stopped, now=1000.0).actions == (Record("timeout"),)


_TIME_IS_OVER = "the time of the search is over"


@pytest.mark.parametrize("algorithm", ["GridSearch", "RandomSearch"])
def test_an_extended_search_has_new_time_and_tries_what_its_end_had_stopped_again(algorithm: str) -> None:
    short, longer = (define(timeout=timeout, algorithm=algorithm) for timeout in (60, 90))
    stopped = ended(running(1), "StoppedEarly", 0.4, reason=_TIME_IS_OVER)
    entries = [ended(running(0)), stopped, record(2, "timeout", short)]
    assert choose(short, *entries, now=1000.0).actions == (Finish("timeout"),)
    decision = choose(longer, *entries, now=1000.0, limits_since=950.0)
    assert (list_started(decision), decision.wake_at) == ([1, 2], 1040.0)
    assert decision.table.settled.keys() == {0}
    again = ended(running(3, trial=1), "Failed", None, category="UserCode", reason="it failed")
    lines = {1: stopped.ending.line} if stopped.ending else {}
    table = choose(longer, *entries, again, lines=lines, now=1000.0, limits_since=950.0).table
    assert table.trials[1].status == "Failed"


def test_a_search_that_failed_by_its_first_trials_can_be_extended() -> None:
    short = define(trials=5, parallel=1)
    entries = [*(failed(running(each)) for each in range(3)), record(3, "failed", short)]
    assert choose(short, *entries).actions == (Finish("failed"),)
    assert list_started(choose(define(trials=6, parallel=1), *entries)) == [3]


def test_an_explicit_number_of_failures_wins_over_the_rule_of_the_first_trials() -> None:
    entries = [failed(running(each)) for each in range(4)]
    assert list_started(choose(define(trials=9, parallel=1, max_failed_trials=5), *entries)) == [4]
    assert choose(define(trials=9, parallel=1, max_failed_trials=4), *entries).actions == (Record("failed"),)


def test_so_many_failed_trials_fail_a_search_and_stop_what_runs() -> None:
    definition = define(trials=9, parallel=3, max_failed_trials=2)
    one, two = failed(running(0)), failed(running(1), Category.OUT_OF_MEMORY)
    assert list_started(choose(definition, one, running(1))) == [2, 3]
    assert choose(definition, one, two, running(2)).actions == (Stop(2, "the search has failed"),)
    assert choose(definition, one, two).actions == (Record("failed"),)


def test_deleted_trials_are_no_failures() -> None:
    gone = replace(running(0), status="Deleted", has_processes=False)
    assert list_started(choose(define(max_failed_trials=1), gone, running(1))) == [2]


@pytest.mark.parametrize(("parallel", "number"), [(1, 3), (2, 3), (4, 4)])
def test_first_trials_that_all_fail_alike_fail_a_search(parallel: int, number: int) -> None:
    definition = define(trials=9, parallel=parallel)
    entries = [failed(running(each)) for each in range(number)]
    assert choose(definition, *entries).actions == (Record("failed"),)
    assert list_started(choose(definition, *entries[:-1]))
    assert list_started(choose(definition, *entries[:-1], failed(running(number - 1), Category.OUT_OF_MEMORY)))
    assert list_started(choose(definition, ended(running(0)), *entries[1:], failed(running(number))))


def test_a_search_of_which_each_trial_failed_has_failed() -> None:
    entries = failed(running(0)), failed(running(1), Category.OUT_OF_MEMORY)
    assert choose(define(trials=2), *entries).actions == (Record("failed"),)


def test_a_complete_trial_is_better_than_one_that_was_stopped_early() -> None:
    entries = ended(running(0), "StoppedEarly", 0.1), ended(running(1), value=0.9), ended(running(2), value=None)
    best = choose(define(), *entries).table.best
    assert best is not None
    assert (best.number, best.status) == (1, "Complete")
    best = choose(define(), *entries[:1]).table.best
    assert best is not None
    assert (best.number, best.status) == (0, "Stopped early")


def test_a_lost_trial_that_no_retry_follows_has_ended_with_its_search() -> None:
    definition = define(timeout=60)
    decision = choose(definition, ended(running(0)), lost(running(1)), now=1000.0)
    assert (decision.actions, decision.table.trials[1].status) == ((Record("timeout"),), "Lost")


def test_a_lag_is_refused_where_paused_trials_do_not_end() -> None:
    stop = {"Asha": {"max_step": 9, "promote": True}}
    with pytest.raises(ValueError, match="leave out the lag"):
        define(algorithm={"OptunaSampler": {"lag": 1}}, stop=stop)
    assert define(algorithm={"OptunaSampler": {"lag": "any"}}, stop=stop).uses_history


# Stop policies


def test_a_trial_that_loses_is_stopped_once_and_with_a_reason() -> None:
    definition = define(trials=3, parallel=2, stop="Asha")
    winner, loser = report(running(0), 0.1), report(running(1), 0.9)
    assert choose(definition, winner, loser).actions == (Stop(1, "loss 0.9 at step 1 is not the best of 2: 0.1"),)
    assert not any(isinstance(action, Stop) for action in choose(definition, winner, ended(loser)).actions)


@pytest.mark.parametrize(
    ("step", "total", "stop", "is_stopped"),
    [(2, 3, "Asha", True), (3, 3, "Asha", False), (3, None, "Asha", True), (9, None, {"Asha": {"max_step": 9}}, False)],
)
def test_a_trial_that_has_reported_its_last_step_is_not_stopped(
    step: float, total: float | None, stop: Any, is_stopped: bool
) -> None:
    definition = define(trials=2, stop=stop)
    progress = Progress(step, total, {"loss": 0.9})
    loser = apply_observation(report(running(1), 0.9), Observation(RUNNING, progress=progress), definition, 7.0)
    decision = choose(definition, report(running(0), 0.1), loser)
    assert any(isinstance(action, Stop) for action in decision.actions) == is_stopped


def test_a_search_that_begins_with_one_slot_uses_the_four_that_it_is_given_later() -> None:
    one, four = (define(trials=9, parallel=each, algorithm="OptunaSampler") for each in (1, 4))
    assert list_started(choose(one, running(0))) == []
    entries: list[EntryView] = [ended(running(0))]
    while starts := list_started(choose(four, *entries)):
        entries.append(running(starts[0]))
    assert len(entries) == 5


def promotion(trials: int, parallel: int = 1) -> SearchDefinition:
    return define(trials, parallel, stop={"Asha": {"max_step": 9, "factor": 3, "promote": True}})


def paused(entry: EntryView, *values: float) -> EntryView:
    return ended(report(entry, *values), "Paused", values[-1], reason="paused and not promoted")


def test_with_promotion_a_new_trial_runs_to_the_first_rung() -> None:
    assert choose(promotion(9)).actions == (Start(0, None, 0, 1),)


def test_the_best_of_a_rung_is_promoted_before_a_new_trial_starts() -> None:
    entries = paused(running(0), 0.3), paused(running(1), 0.1), paused(running(2), 0.2)
    assert choose(promotion(9), *entries).actions == (Start(1, {"x": 1}, 1, 3),)
    assert choose(promotion(9, parallel=2), *entries).actions == (Start(1, {"x": 1}, 1, 3), Start(3, None, 0, 1))


def test_a_promoted_trial_is_not_promoted_from_the_same_rung_again() -> None:
    entries = [paused(running(0), 0.3), paused(running(1), 0.1), paused(running(2), 0.2), running(3, trial=1)]
    assert list_started(choose(promotion(9, parallel=2), *entries)) == [3]


def test_a_promoted_trial_whose_run_is_lost_is_started_up_to_the_same_rung() -> None:
    again = replace(lost(report(running(3, trial=1), 0.1)), parameters={"x": 1})
    entries = [paused(running(0), 0.3), paused(running(1), 0.1), paused(running(2), 0.2), again]
    assert choose(promotion(9), *entries).actions == (Start(1, {"x": 1}, 1, 3),)


def test_a_trial_that_is_lost_before_its_first_report_is_started_up_to_the_first_rung() -> None:
    assert choose(promotion(9), lost(running(0))).actions == (Start(0, {"x": 0}, 0, 1),)


def test_beyond_the_last_rung_a_promoted_trial_runs_to_the_end_of_the_training() -> None:
    entries = [paused(running(0), 0.3), paused(running(1), 0.1, 0.1)]
    assert choose(promotion(2), *entries).actions == (Start(1, {"x": 1}, None, None),)


def test_when_no_trial_was_trained_fully_the_best_paused_one_is_and_then_the_others_have_ended() -> None:
    entries = paused(running(0), 0.3), paused(running(1), 0.2)
    assert list_started(choose(promotion(2), *entries)) == [1]
    full = ended(report(running(2, trial=1), 0.2, 0.2), value=0.15)
    decision = choose(promotion(2), *entries, full)
    assert decision.actions == (Record("complete"),)
    assert {number: trial.status for number, trial in decision.table.trials.items()} == {
        0: "Stopped early",
        1: "Complete",
    }


# Any course of events

_STOPS = st.sampled_from([None, "MedianStop", "Asha", {"Asha": {"max_step": 9, "promote": True}}])
_ALGORITHMS = st.sampled_from([None, "GridSearch", "OptunaSampler"])


@st.composite
def _definitions(draw: st.DrawFn) -> SearchDefinition:
    stop, algorithm = draw(_STOPS), draw(_ALGORITHMS)
    if algorithm == "OptunaSampler" and stop is None:
        algorithm = {"OptunaSampler": {"lag": draw(st.sampled_from(["any", 1, 2, 5]))}}
    return define(
        draw(st.integers(1, 7)),
        draw(st.integers(1, 4)),
        retries=draw(st.integers(0, 2)),
        max_failed_trials=draw(st.sampled_from([None, None, None, 2])),
        timeout=draw(st.sampled_from([None, None, None, 6])),
        algorithm=algorithm,
        stop=stop,
    )


def _happen(entry: EntryView, event: str, value: float, time: int, start: Start | None) -> EntryView:
    """Return a run after an event. One that has a rung pauses there."""
    passed = len(entry.reports)
    new = RungReport(int(entry.trial or 0), passed, 3**passed, value, time)
    if entry.ending is not None:
        return replace(entry, has_processes=event != "end")
    if event == "report" and (start is None or start.rung is None):
        return replace(entry, reports=(*entry.reports, new)) if passed < 3 else entry
    if event == "end" and start is not None and start.rung is not None:
        return ended(replace(entry, reports=(*entry.reports, new)), "Paused", value)
    changes = {
        "end": lambda: ended(entry, value=value),
        "linger": lambda: replace(ended(entry, value=value), has_processes=True),
        "fail": lambda: failed(entry),
        "lose": lambda: lost(entry),
        "delete": lambda: replace(entry, status="Deleted", has_processes=False),
    }
    return changes.get(event, lambda: entry)()


@given(_definitions(), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_any_course_of_events_starts_each_trial_once_at_a_time_and_ends(
    definition: SearchDefinition, seed: int
) -> None:
    dice = random.Random(seed)  # noqa: S311 -- no secret
    entries: list[EntryView] = []
    settled: dict[int, Any] = {}
    starts: dict[int, Start] = {}
    runs: dict[int, int] = {}
    config = definition.trial_config
    for time in range(300):
        # The entries in any order, and twice by two drivers, one of which keeps the settled trials.
        needed = [entry for entry in entries[:-1] if entry.trial not in settled or entry.is_live] + entries[-1:]
        started = min((entry.created for entry in entries), default=None)
        view, other = dice.sample(needed, len(needed)), dice.sample(entries, len(entries))
        decision = decide(definition, view, {}, 100.0 + time, started=started, settled=settled)
        assert decide(definition, other, {}, 100.0 + time) == decision
        live = [entry for entry in entries if entry.is_live]
        started = list_started(decision)
        assert len(live) + len(started) <= config.parallel_trials or not started
        assert len(set(started)) == len(started)
        assert not {entry.trial for entry in live} & set(started)
        assert all(trial < config.num_trials for trial in started)
        assert live or decision.actions
        if any(isinstance(action, Finish) for action in decision.actions):
            break
        for action in decision.actions:
            number = len(entries)
            if isinstance(action, Start):
                entries.append(replace(running(number, action.trial), rung=action.rung))
                starts[number] = action
                runs[action.trial] = runs.get(action.trial, 0) + 1
            elif isinstance(action, Record):
                entries.append(record(number, action.reason, definition))
            elif isinstance(action, Stop):
                run = entries[action.entry]
                assert run.is_live
                entries[action.entry] = (
                    ended(run, "StoppedEarly", reason=action.why)
                    if run.ending is None
                    else (replace(run, has_processes=False))
                )
        for entry in live:
            event = dice.choice(["end", "end", "end", "linger", "report", "report", "fail", "lose", "delete", "wait"])
            current = entries[entry.number]
            if current.is_live:
                entries[entry.number] = _happen(current, event, dice.random(), 1000 * time, starts[entry.number])
    else:
        raise AssertionError("the search does not end")
    table = decision.table
    assert sorted(table.trials) == list(range(len(table.trials)))
    assert set(table.settled) == set(table.trials)
    assert table.reason != "complete" or len(table.trials) == table.total
