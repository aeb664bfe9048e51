"""Stalls: a training that makes no progress is ended, and the next attempt continues."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

import pytest

from trainer_core.client import TrainerClient
from trainer_core.definition.options import Checkpoints, Stalled
from trainer_core.model.jobs import Category
from trainer_core.model.request import Owner, Stalled as Policy
from trainer_core.testing.case import BuildRequest, Contract, Run, applies_to
from trainer_core.testing.training_functions import hang_once

_TASK = Owner(key="dag/run/task", slug="train", generation="1")
_OPTIONS = [Checkpoints(grace=3), Stalled(after="3s", save="5m")]


class Stalls(Contract):
    """With the option `Stalled` a node without a sign of progress is ended, with the stacks of its ranks in the log."""

    @applies_to(notices_stalls=True, restarts_processes=False)
    def test_a_training_that_hangs_is_ended_with_its_stacks_and_the_next_attempt_resumes(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        request = build_request(hang_once, owner=_TASK, options=_OPTIONS)
        ref = client.submit(request)
        diagnosis = client.wait(ref).diagnosis
        assert diagnosis is not None
        assert (diagnosis.category, diagnosis.retryable, diagnosis.exit_code) == (Category.STALLED, True, 124)
        assert diagnosis.reason.startswith("no progress for ")
        assert "after step 1; rank 0 is in " in diagnosis.reason
        assert "in hang_once" in (diagnosis.traceback or "")
        lines = list(client.get_job_logs(ref.name))
        assert any("[trainjob:stack] rank 0 MainThread" in line for line in lines)
        assert any(line.startswith("progress 1 silent for ") and line.endswith(" of 3 s") for line in lines)
        second = client.wait(client.submit(request))
        assert (second.status, second.resumed_from, second.result) == ("Complete", 1, 1)

    @applies_to(notices_stalls=True, restarts_processes=True)
    def test_a_training_that_hangs_on_one_node_continues_in_the_same_attempt(self, run: Run) -> None:
        outcome = run(hang_once, owner=_TASK, options=_OPTIONS)
        assert (outcome.status, outcome.resumed_from, outcome.result) == ("Complete", 1, 1)

    @applies_to(notices_stalls=False)
    def test_stalled_is_refused_by_a_backend_that_does_not_notice_it(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        with pytest.raises(ValueError, match="Stalled option is not compatible"):
            build_request(options=[Stalled("20m")])
        with pytest.raises(ValueError, match="stalled"):
            client.submit(build_request().with_fields(stalled=Policy(after=60)))
        assert client.list_jobs() == []
