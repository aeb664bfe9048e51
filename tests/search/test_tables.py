"""What users see of a search, from its table."""

from __future__ import annotations

import math
from typing import Any

import pytest
from test_driver import backend, connect, train

from trainer_core import CustomTrainer, Name
from trainer_core.search import tables
from trainer_core.search.decisions import (
    CANCELLED,
    COMPLETED,
    FAILED,
    GOAL,
    SUPERSEDED,
    TIMEOUT,
    SearchTable,
    TrialView,
)
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.history import RungReport, SettledTrial
from trainer_core.search.results import BestTrial, Metric, SearchOutcome, Trial

DEFINITION = SearchDefinition.parse(search_space={"x": [1, 2, 3]})
RUNNING = TrialView(0, "Running", {"x": 1})


def settle(number: int, status: str, value: float | None = None, job: str | None = None, **line: Any) -> TrialView:
    settled = SettledTrial(number, status.replace("Stopped early", "StoppedEarly"), value, **line)  # type: ignore[arg-type]
    return TrialView(number, status, {"x": number}, job, value, settled=settled)


def build_table(*trials: TrialView, best: TrialView | None = None, reason: str | None = None) -> SearchTable:
    return SearchTable({trial.number: trial for trial in trials}, best, 9, reason)


BEST = settle(6, "Complete", 0.12345678)


@pytest.mark.parametrize(
    ("table", "status"),
    [
        (build_table(), "Created"),
        (build_table(TrialView(0, "Created", {}), TrialView(1, "Created", {})), "Created"),
        (build_table(TrialView(0, "Created", {}), TrialView(1, "Running", {})), "Running"),
        (build_table(BEST, best=BEST), "Running"),
        *((build_table(BEST, best=BEST, reason=each), "Complete") for each in (COMPLETED, GOAL, TIMEOUT)),
        *((build_table(BEST, best=BEST, reason=each), "Failed") for each in (CANCELLED, FAILED, SUPERSEDED)),
        (build_table(RUNNING, reason=TIMEOUT), "Failed"),
    ],
)
def test_a_search_is_complete_if_it_ended_by_itself_and_has_a_best_trial(table: SearchTable, status: str) -> None:
    assert tables.get_status(table) == status


def test_the_progress_counts_trials_by_what_they_do_and_lost_ones_as_failed() -> None:
    trials = [
        RUNNING,
        TrialView(1, "Suspended", {}),
        TrialView(2, "Retrying", {}),
        TrialView(3, "Paused", {}),
        settle(4, "Stopped early", 3.0),
        settle(5, "Failed"),
        BEST,
        settle(7, "Lost"),
    ]
    line = "4 of 9, 3 running, 1 paused, 1 stopped early, 2 failed, best loss 0.123457 (minimized, trial 6)"
    assert tables.describe(DEFINITION, build_table(*trials, best=BEST)) == line
    assert tables.describe(DEFINITION, build_table(RUNNING)) == "0 of 9, 1 running"


def test_a_trial_has_the_range_of_its_objective_and_what_its_line_says() -> None:
    line = {"metrics": {"accuracy": 0.5}, "seconds": 7.0, "gpu_hours": 0.2, "reason": "it lost"}
    reports = tuple(RungReport(4, rung, rung, value, 0) for rung, value in enumerate((3.0, None, math.inf, 1.0)))
    shown = settle(4, "Stopped early", 2.0, "tune-4", **line)
    shown = TrialView(4, "Stopped early", {"x": 3}, "tune-4", 2.0, 8.0, reports, shown.settled)
    running, stopped = tables.build_trials(DEFINITION, build_table(shown, RUNNING))
    assert (running.number, running.metrics, running.reason, running.seconds) == (0, [], None, None)
    assert stopped.metrics == [Metric("loss", "1.0", "3.0", "2.0"), Metric("accuracy", "0.5", "0.5", "0.5")]
    assert (stopped.number, stopped.name, stopped.step) == (4, "tune-4", 8.0)
    assert (stopped.parameters, stopped.values) == ({"x": "3"}, {"x": 3})
    assert (stopped.reason, stopped.seconds, stopped.gpu_hours) == ("it lost", 7.0, 0.2)


FIRST_FAILURE = {"category": "UserCode", "reason": "no luck"}
STOPPED = settle(4, "Stopped early", 0.5, gpu_hours=2.0)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (build_table(RUNNING, reason=CANCELLED), "it was cancelled: 0 of 9, 1 running"),
        (build_table(RUNNING, reason=SUPERSEDED), "a newer generation of it began: 0 of 9, 1 running"),
        (build_table(RUNNING, reason=COMPLETED), "0 of 9, 1 running"),
        (
            build_table(settle(1, "Lost", **FIRST_FAILURE), settle(2, "Failed", category="Image"), reason=FAILED),
            "too many trials failed, the first: UserCode: no luck: 2 of 9, 2 failed",
        ),
        (
            build_table(BEST, best=BEST, reason=GOAL),
            "a trial reached the goal: 1 of 9, best loss 0.123457 (minimized, trial 6)",
        ),
        (
            build_table(STOPPED, best=STOPPED, reason=TIMEOUT),
            (
                "its time was over: 1 of 9, 1 stopped early, best loss 0.5 (minimized, trial 4); "
                "no trial was trained fully"
            ),
        ),
    ],
)
def test_the_outcome_says_why_the_search_ended(table: SearchTable, message: str) -> None:
    outcome = tables.build_outcome(connect(), "tune", DEFINITION, table)
    assert (outcome.message, outcome.succeeded) == (message, tables.get_status(table) == "Complete")


def test_the_outcome_has_what_the_best_trial_left_and_the_hours_of_all_trials() -> None:
    client = connect()
    trainer = CustomTrainer(train, {"x": 2.0, "y": 1})
    job = client.train(trainer=trainer, runtime="python", options=[Name("tune-6")])
    backend(client).complete("tune-6", loss=9.0, accuracy=0.75)
    best = settle(6, "Stopped early", 0.25, job, gpu_hours=1.5, metrics={"loss": 0.25})
    table = build_table(STOPPED, settle(5, "Failed"), best, best=best, reason=COMPLETED)
    outcome = tables.build_outcome(client, "tune", DEFINITION, table)
    assert (outcome.gpu_hours, outcome.stopped_gpu_hours) == (3.5, 3.5)
    assert outcome.best is not None
    assert outcome.best.ref == client.get_job_ref("tune-6").to_dict()
    assert outcome.best.result == {"loss": 9.0, "accuracy": 0.75}
    assert outcome.best.metrics == {"loss": 0.25, "accuracy": 0.75}
    assert outcome.best.stopped_early
    assert SearchOutcome.from_dict(outcome.to_dict()) == outcome
    client.delete_job("tune-6")
    gone = tables.build_outcome(client, "tune", DEFINITION, table).best
    assert gone is not None
    assert (gone.ref, gone.result, gone.metrics) == (None, None, {"loss": 0.25})
    result = tables.build_result(DEFINITION, table)
    assert result is not None
    assert (result.job, result.trial, result.value, result.stopped_early) == ("tune-6", 6, 0.25, True)


def test_an_outcome_without_the_fields_that_have_defaults_can_be_read() -> None:
    trial = {"name": "tune-0", "parameters": {}, "trainjob": None, "metrics": []}
    best = {"trial": 0, "parameters": {}, "value": 0.5}
    stored = {"name": "tune", "status": "Complete", "reason": "goal", "message": "", "best": best, "trials": [trial]}
    outcome = SearchOutcome.from_dict(stored)
    assert outcome.best == BestTrial(0, {}, 0.5, None, None, None, {}, {}, False)
    assert outcome.trials == (Trial("tune-0", {}, None, [], 0, "Created", {}, None, None, None, None, None),)
    assert (outcome.gpu_hours, outcome.stopped_gpu_hours) == (0, 0)
