"""Trials of a search that end early: values at rungs, the pause at a rung, and the stop of a loser."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from trainer_core.client import TrainerClient
from trainer_core.jobs import Category, Diagnosis, ObjectiveReport
from trainer_core.node import env
from trainer_core.options import Checkpoints
from trainer_core.request import TrainJobRequest
from trainer_core.testing.case import Contract, applies_to
from trainer_core.testing.training_functions import report_loss

BuildRequest = Callable[..., TrainJobRequest]
#: Seconds to wait for a report; far more than needed.
_TIMEOUT = 300.0


def _build_settings(until: int | None = None) -> dict[str, str]:
    """Return the variable that tells nodes the objective, with rungs at steps 1, 3 and 9."""
    settings = {"metric": "val_loss", "best": "min", "value": "last", "at": [1, 3, 9], "until": until, "trial": 0}
    return {env.OBJECTIVE: json.dumps(settings)}


def _list_rungs(objective: ObjectiveReport | None) -> list[tuple[Any, ...]]:
    assert objective is not None
    return [rung[:3] for rung in objective.rungs]


class EarlyStops(Contract):
    """The values of a trial at rungs are known while it runs, and of each trial that has ended."""

    def test_rungs_between_two_lines_of_progress_are_in_the_outcome(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        outcome = client.wait(client.submit(build_request(report_loss, {"steps": 4}, env=_build_settings())))
        assert _list_rungs(outcome.objective) == [(0, 1, 1.0), (1, 3, 1 / 3)]
        assert outcome.objective is not None
        assert (outcome.objective.value, outcome.objective.step, outcome.objective.best) == (0.25, 4, 0.25)
        assert (outcome.status, outcome.paused_at) == ("Complete", None)

    @applies_to(runs_in_background=True)
    def test_a_trial_pauses_at_its_rung_with_a_checkpoint_and_is_complete(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        request = build_request(report_loss, {"steps": 30}, env=_build_settings(until=3), options=[Checkpoints()])
        outcome = client.wait(client.submit(request))
        assert (outcome.status, outcome.paused_at, outcome.checkpoint, outcome.result) == ("Complete", 3, 3, None)
        assert _list_rungs(outcome.objective) == [(0, 1, 1.0), (1, 3, 1 / 3)]

    @applies_to(runs_in_background=True)
    def test_a_trial_that_is_stopped_early_keeps_its_reason_and_its_values(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        # It reports one step, and waits for SIGTERM before the second one.
        request = build_request(report_loss, {"steps": 2, "wait_at": 2}, env=_build_settings(), options=[Checkpoints()])
        ref = client.submit(request)
        end = time.monotonic() + _TIMEOUT
        while (progress := client.observe(ref).progress) is None or progress.objective is None:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert _list_rungs(progress.objective) == [(0, 1, 1.0)]

        reason = "val_loss 1 at step 1 is not the best of 2: 0.5"
        diagnosis = Diagnosis(category=Category.STOPPED_EARLY, reason=reason, objective=progress.objective)
        client.backend.cancel(ref, diagnosis)
        outcome = client.wait(ref)
        assert (outcome.status, outcome.diagnosis) == ("Failed", diagnosis)
        assert client.get_job("job").reason == f"StoppedEarly: {reason}"
