"""Early stop of trials: which lose at a rung, and which paused one is promoted. Pure.

A decision is a function of the reports: not of their order, of who read them or when. A trial is compared with the
values that were reported before its own, by the order (time, trial).
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol

from trainer_core.search.definition import Asha, MedianStop
from trainer_core.search.history import RungReport

#: Largest number of rungs: each line of progress carries their values.
MAX_RUNGS = 20
#: Values that a reason quotes.
_QUOTED = 3


class Loser(NamedTuple):
    """Where a trial loses, and why: the reason continues a sentence that begins with the name of the metric."""

    rung: int
    step: float
    value: float | None
    reason: str


def list_rungs(policy: Asha | MedianStop) -> list[float]:
    """Return the steps at which trials are compared."""
    if isinstance(policy, Asha):
        steps = (policy.min_step * policy.factor**k for k in range(MAX_RUNGS))
        return [step for step in steps if policy.max_step is None or step < policy.max_step]
    if policy.every is not None:
        return [policy.min_step + k * policy.every for k in range(MAX_RUNGS)]
    return [policy.min_step * 2**k for k in range(MAX_RUNGS)]


def find_losers(policy: Asha | MedianStop, direction: str, reports: Iterable[RungReport]) -> dict[int, Loser]:
    """Return the trials that are to stop, each with the first rung at which it loses.

    Of several reports of a trial at a rung the first counts. A trial has no values after the rung at which it loses.
    With promotion, trials end at their rungs by themselves: only a value that is not a number loses.
    """
    judge: _Judge = _AshaJudge(policy) if isinstance(policy, Asha) else _MedianJudge(policy)
    sign = -1 if direction == "maximize" else 1
    losers: dict[int, Loser] = {}
    for report in _list_first(reports):
        if report.trial not in losers:
            number = _get_number(report)
            reason = "is not a number" if number is None else judge.judge(report, sign * number, sign)
            if reason is not None:
                losers[report.trial] = Loser(report.rung, report.step, number, reason)
    return losers


def choose_promotion(
    policy: Asha,
    direction: str,
    reports: Iterable[RungReport],
    promoted: Collection[tuple[int, int]],
    *,
    final: bool = False,
) -> tuple[int, int] | None:
    """Return a paused trial that is to continue, and the rung at which it is paused; None for no trial.

    From the highest rung down: the best of the top ⌊m/factor⌋ of m values whose trial was not promoted from that rung.
    With `final`, when no trial can start and none was trained fully, the best value of the highest rung, whatever m.
    """
    sign = -1 if direction == "maximize" else 1
    rungs: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
    for report in _list_first(reports):
        if (number := _get_number(report)) is not None:
            rungs[report.rung].append((sign * number, report.time_ms, report.trial))
    for rung, values in sorted(rungs.items(), reverse=True):
        top = sorted(values)[: len(values) if final else len(values) // policy.factor]
        for _, _, trial in top:
            if (trial, rung) not in promoted:
                return trial, rung
    return None


def _list_first(reports: Iterable[RungReport]) -> list[RungReport]:
    """Return the first report of each trial at each rung, by time."""
    first: dict[tuple[int, int], RungReport] = {}
    for report in reports:
        key = report.trial, report.rung
        if key not in first or _order(report) < _order(first[key]):
            first[key] = report
    return sorted(first.values(), key=_order)


def _order(report: RungReport) -> tuple[int, int, int, float, float]:
    number = _get_number(report)
    return report.time_ms, report.trial, report.rung, report.step, math.inf if number is None else number


def _get_number(report: RungReport) -> float | None:
    return report.value if report.value is not None and math.isfinite(report.value) else None


class _Judge(Protocol):
    def judge(self, report: RungReport, score: float, sign: int) -> str | None:
        """Record a value, of which less is better after the change of its sign; return why its trial loses, if so."""


class _AshaJudge:
    """Asynchronous successive halving: of m values at a rung, the best ⌈m/factor⌉ continue."""

    def __init__(self, policy: Asha) -> None:
        self._policy = policy
        #: Sorted scores by rung.
        self._scores: dict[int, list[float]] = defaultdict(list)

    def judge(self, report: RungReport, score: float, sign: int) -> str | None:
        scores = self._scores[report.rung]
        insort(scores, score)
        passes = -(-len(scores) // self._policy.factor)
        # Of equal values the earlier one is better.
        if self._policy.promote or bisect_right(scores, score) <= passes:
            return None
        best = ", ".join(f"{sign * each + 0:.6g}" for each in scores[: min(passes, _QUOTED)])
        more = ", …" if passes > _QUOTED else ""
        among = f"among the best {passes} of {len(scores)}" if passes > 1 else f"the best of {len(scores)}"
        return f"{report.value:.6g} at step {report.step:g} is not {among}: {best}{more}"


class _MedianJudge:
    """A trial continues unless its best value is worse than the median of the others' best values at that time."""

    def __init__(self, policy: MedianStop) -> None:
        self._policy = policy
        #: Scores by trial and rung; best scores of the trials by rung.
        self._scores: dict[int, dict[int, float]] = defaultdict(dict)
        self._bests: dict[int, list[float]] = defaultdict(list)

    def judge(self, report: RungReport, score: float, sign: int) -> str | None:
        self._scores[report.trial][report.rung] = score
        own = min(each for rung, each in self._scores[report.trial].items() if rung <= report.rung)
        bests = self._bests[report.rung]
        count, median = len(bests), statistics.median(bests) if bests else own
        bests.append(own)
        if count < self._policy.min_trials or own <= median:
            return None
        best = f"{sign * own + 0:.6g} up to step {report.step:g}"
        return f"{best} is worse than the median {sign * median + 0:.6g} of {count}"
