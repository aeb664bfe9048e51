"""Early stop: ASHA, ASHA with promotion and median stopping are functions of the reports, and equal a reference."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from trainer_core.search.definition import Asha, MedianStop
from trainer_core.search.early_stop import choose_promotion, find_losers, list_rungs
from trainer_core.search.history import RungReport

_VALUES = st.one_of(st.sampled_from([0.0, -0.0, 0.5, 1.0, math.nan, math.inf]), st.floats(-2, 2, width=16))


@st.composite
def _reports(draw: st.DrawFn) -> list[RungReport]:
    """Draw reports of up to 12 trials at up to 4 rungs: ties of values and times, NaN, delays and repetitions."""
    places = st.tuples(st.integers(0, 11), st.integers(0, 3), _VALUES, st.integers(0, 6))
    return [RungReport(n, k, 3**k, value, time) for n, k, value, time in draw(st.lists(places, max_size=40))]


def _first(reports: Sequence[RungReport]) -> list[tuple[int, int, int, float]]:
    """Return (time, trial, rung, value) of the first report of each trial at each rung, in the order of time."""
    numbers = [(r.time_ms, r.step, math.inf if r.value is None or math.isnan(r.value) else r.value, r) for r in reports]
    firsts: dict[tuple[int, int], tuple[int, int, int, float]] = {}
    for time, _, value, r in sorted(numbers, key=lambda entry: entry[:3]):
        firsts.setdefault((r.trial, r.rung), (time, r.trial, r.rung, value))
    return sorted(firsts.values())


def reference_asha(reports: Sequence[RungReport], factor: int, sign: int) -> set[tuple[int, int]]:
    """Return the (trial, rung) at which ASHA stops trials. Shares nothing with the code."""
    stopped: dict[int, int] = {}
    rungs: dict[int, list[float]] = {}
    for _, trial, rung, value in _first(reports):
        others = rungs.setdefault(rung, [])
        if trial in stopped:
            continue
        rank = 1 + sum(other <= sign * value for other in others)
        if math.isinf(value) or rank > math.ceil((len(others) + 1) / factor):
            stopped[trial] = rung
        if not math.isinf(value):
            others.append(sign * value)
    return set(stopped.items())


def reference_median(reports: Sequence[RungReport], min_trials: int, sign: int) -> set[tuple[int, int]]:
    """Return the (trial, rung) at which median stopping stops trials."""
    stopped: dict[int, int] = {}
    values: dict[tuple[int, int], float] = {}
    bests: dict[int, list[float]] = {}
    for _, trial, rung, value in _first(reports):
        if trial in stopped:
            continue
        if math.isinf(value):
            stopped[trial] = rung
            continue
        values[trial, rung] = sign * value
        best = min(values[trial, k] for k in range(rung + 1) if (trial, k) in values)
        others = bests.setdefault(rung, [])
        if len(others) >= min_trials and best > statistics.median(others):
            stopped[trial] = rung
        others.append(best)
    return set(stopped.items())


def reference_promotions(reports: Sequence[RungReport], factor: int, sign: int) -> list[tuple[int, int]]:
    """Return the (trial, rung) that free slots promote, one after the other: the paper's loop."""
    rungs: dict[int, list[tuple[float, int, int]]] = {}
    for time, trial, rung, value in _first(reports):
        if not math.isinf(value):
            rungs.setdefault(rung, []).append((sign * value, time, trial))
    promoted: dict[int, set[int]] = {rung: set() for rung in rungs}
    jobs = []
    while True:
        for rung in reversed(range(4)):
            top = sorted(rungs.get(rung, []))[: len(rungs.get(rung, [])) // factor]
            candidates = [trial for _, _, trial in top if trial not in promoted[rung]]
            if candidates:
                promoted[rung].add(candidates[0])
                jobs.append((candidates[0], rung))
                break
        else:
            return jobs


def _stopped(policy: Asha | MedianStop, direction: str, reports: Sequence[RungReport]) -> set[tuple[int, int]]:
    return {(trial, loser.rung) for trial, loser in find_losers(policy, direction, reports).items()}


@given(_reports(), st.integers(2, 4), st.sampled_from(["minimize", "maximize"]))
@settings(max_examples=100)
def test_asha_stops_what_its_reference_stops(reports: list[RungReport], factor: int, direction: str) -> None:
    sign = {"minimize": 1, "maximize": -1}[direction]
    assert _stopped(Asha(factor=factor), direction, reports) == reference_asha(reports, factor, sign)


@given(_reports(), st.integers(1, 4), st.sampled_from(["minimize", "maximize"]))
@settings(max_examples=100)
def test_median_stopping_stops_what_its_reference_stops(
    reports: list[RungReport], min_trials: int, direction: str
) -> None:
    sign = {"minimize": 1, "maximize": -1}[direction]
    policy = MedianStop(min_trials=min_trials)
    assert _stopped(policy, direction, reports) == reference_median(reports, min_trials, sign)


@given(_reports(), st.integers(2, 4), st.sampled_from(["minimize", "maximize"]))
@settings(max_examples=50)
def test_free_slots_promote_what_the_loop_of_the_paper_promotes(
    reports: list[RungReport], factor: int, direction: str
) -> None:
    policy, promoted = Asha(max_step=81, factor=factor, promote=True), list[tuple[int, int]]()
    while (found := choose_promotion(policy, direction, reports, promoted)) is not None:
        promoted.append(found)
    assert promoted == reference_promotions(reports, factor, {"minimize": 1, "maximize": -1}[direction])


@given(_reports(), st.randoms(use_true_random=False), st.sampled_from([Asha(), MedianStop(min_trials=2)]))
@settings(max_examples=50)
def test_the_order_and_repetition_of_reports_change_no_decision(
    reports: list[RungReport], random: random.Random, policy: Asha | MedianStop
) -> None:
    repeated = reports + random.sample(reports, len(reports) // 2)
    random.shuffle(repeated)
    assert find_losers(policy, "minimize", repeated) == find_losers(policy, "minimize", reports)


def test_the_first_trial_at_a_rung_always_continues() -> None:
    assert find_losers(Asha(), "minimize", [RungReport(0, 0, 1, 99.0, 1)]) == {}


def test_a_reason_names_the_step_the_rank_and_the_best_values() -> None:
    reports = [RungReport(n, 2, 9, value, n) for n, value in enumerate([0.25, 0.5, 0.12, 0.11, 0.31])]
    assert find_losers(Asha(), "minimize", reports)[4].reason == (
        "0.31 at step 9 is not among the best 2 of 5: 0.11, 0.12"
    )


def test_the_reason_of_a_maximized_metric_has_its_own_sign() -> None:
    reports = [RungReport(0, 0, 1, 0.9, 1), RungReport(1, 0, 1, 0.0, 2)]
    assert find_losers(Asha(), "maximize", reports)[1].reason == "0 at step 1 is not the best of 2: 0.9"


def test_the_reason_of_median_stopping_has_the_median() -> None:
    reports = [RungReport(n, 0, 4, value, n) for n, value in enumerate([0.1, 0.3, 0.5])]
    loser = find_losers(MedianStop(min_trials=2), "minimize", reports)[2]
    assert loser.reason == "0.5 up to step 4 is worse than the median 0.2 of 2"


def test_the_median_is_no_mean_and_its_reason_ends_after_three_values() -> None:
    reports = [RungReport(n, 0, 4, value, n) for n, value in enumerate([9.0, 1.0, 2.0, 3.0])]
    assert set(find_losers(MedianStop(min_trials=3), "minimize", reports)) == {3}
    ranked = [RungReport(n, 0, 1, float(n), n) for n in range(9)]
    reasons = [find_losers(Asha(factor=2), "minimize", ranked[:count])[count - 1].reason for count in (6, 8)]
    assert [reason.partition(": ")[2] for reason in reasons] == ["0, 1, 2", "0, 1, 2, …"]


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_a_number_stops_its_trial_and_counts_nowhere(value: float | None) -> None:
    reports = [RungReport(0, 0, 1, value, 1), RungReport(1, 0, 1, 0.5, 2)]
    losers = find_losers(Asha(), "maximize", reports)
    assert {trial: loser.reason for trial, loser in losers.items()} == {0: "is not a number"}


def test_with_promotion_only_a_value_that_is_not_a_number_stops_its_trial() -> None:
    reports = [RungReport(0, 0, 1, 0.1, 1), RungReport(1, 0, 1, 0.9, 2), RungReport(2, 0, 1, math.nan, 3)]
    assert set(find_losers(Asha(max_step=9, promote=True), "minimize", reports)) == {2}


def test_when_nothing_else_can_start_the_best_of_the_highest_rung_is_promoted() -> None:
    reports = [RungReport(0, 0, 1, 0.1, 1), RungReport(1, 0, 1, 0.2, 2), RungReport(0, 1, 3, 0.9, 3)]
    policy = Asha(max_step=9, promote=True)
    assert choose_promotion(policy, "minimize", reports, [(0, 0)]) is None
    assert choose_promotion(policy, "minimize", reports, [(0, 0)], final=True) == (0, 1)


def test_of_equal_values_the_earlier_one_is_promoted() -> None:
    reports = [RungReport(0, 0, 1, 0.5, 9), RungReport(1, 0, 1, 0.5, 3), RungReport(2, 0, 1, 0.5, 5)]
    policy = Asha(max_step=9, promote=True)
    assert choose_promotion(policy, "minimize", reports, []) == (1, 0)


@pytest.mark.parametrize(
    ("policy", "rungs"),
    [
        (Asha(min_step=1, max_step=30), [1, 3, 9, 27]),
        (Asha(min_step=1, max_step=27), [1, 3, 9]),
        (Asha(min_step=5, factor=2, max_step=11), [5, 10]),
        (MedianStop(min_step=10, every=5), list(range(10, 110, 5))),
        (MedianStop(min_step=3), [3 * 2**k for k in range(20)]),
        (Asha(), [3**k for k in range(20)]),
    ],
)
def test_rungs_of_a_policy(policy: Asha | MedianStop, rungs: list[int]) -> None:
    assert list_rungs(policy) == rungs
