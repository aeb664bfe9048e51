"""Restarts: a training is started again after a failure, within a budget by cause."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainer_core.client import TrainerClient
from trainer_core.definition.options import Checkpoints, RestartPolicy
from trainer_core.model.jobs import Category, Outcome
from trainer_core.model.request import Owner, TrainJobRequest
from trainer_core.model.restart_rules import RestartRules
from trainer_core.testing.case import BackendCase, BuildRequest, Contract, Run, Submit, applies_to
from trainer_core.testing.training_functions import exit_in_turn, exit_with

_TASK = Owner(key="dag/run/task", slug="train", generation="1")
#: The same task after a user has cleared it.
_CLEARED = Owner(key="dag/run/task", slug="train", generation="2")


def _summarize(outcome: Outcome) -> tuple[str, int, int, list[tuple[str, bool]]]:
    restarts = outcome.restarts
    assert restarts is not None
    causes = [(cause.category, cause.counted) for cause in restarts.causes]
    return outcome.status, restarts.total, restarts.counted, causes


class Restarting(Contract):
    """With the option `RestartPolicy` a training is started again after a failure, within a budget by cause."""

    @applies_to(restarts_trainings=True)
    def test_a_training_is_started_again_from_its_checkpoint_until_it_is_complete(
        self, case: BackendCase, run: Run
    ) -> None:
        policy = RestartPolicy(max_restarts=1, exit_codes={3: "free"}, delay=0, no_progress=1)
        options, runtime = [Checkpoints(every_steps=1), policy], case.runtime_without_restarts
        outcome = run(exit_in_turn, {"codes": [3, 3]}, options=options, runtime=runtime)
        assert _summarize(outcome) == ("Complete", 2, 0, [("UserCode", False)] * 2)
        assert [cause.step for cause in outcome.restarts.causes] == [1, 2]  # type: ignore[union-attr]
        assert (outcome.result, outcome.resumed_from) == (3, 2)

    @applies_to(restarts_trainings=True)
    def test_the_same_failures_lead_to_the_same_restarts_on_every_backend(self, case: BackendCase, run: Run) -> None:
        policy = RestartPolicy(max_restarts=2, free=["OutOfMemory"], exit_codes={3: "count", 4: "free"}, delay=0)
        options, runtime = [Checkpoints(every_steps=1), policy], case.runtime_without_restarts
        outcome = run(exit_in_turn, {"codes": [4, 3, 1, 2, 3]}, options=options, runtime=runtime)
        causes = [("UserCode", False), ("UserCode", True), ("OutOfMemory", False), ("Infrastructure", True)]
        assert _summarize(outcome) == ("Failed", 4, 2, causes)
        assert [cause.step for cause in outcome.restarts.causes] == [1, 2, 3, 4]  # type: ignore[union-attr]
        assert (outcome.checkpoint, outcome.restarts.step, outcome.restarts.following) == (5, 4, None)  # type: ignore[union-attr]

    @applies_to(restarts_in_place=True)
    def test_a_training_is_started_again_in_the_same_job_without_a_process_that_waits(
        self, client: TrainerClient, submit: Submit
    ) -> None:
        policy = RestartPolicy(max_restarts=1, exit_codes={3: "count"}, delay=0)
        ref = submit(exit_in_turn, {"codes": [3, 3]}, options=[Checkpoints(), policy])
        outcome = client.wait(ref, restarts=False)
        assert _summarize(outcome) == ("Failed", 1, 1, [("UserCode", True)])
        assert (outcome.job, outcome.checkpoint, outcome.resumed_from) == (ref, 2, 1)
        assert [job.name for job in client.list_jobs()] == [ref.name]

    @applies_to(restarts_in_place=True)
    def test_a_training_that_waits_for_its_restart_can_be_cancelled(
        self, client: TrainerClient, submit: Submit
    ) -> None:
        policy = RestartPolicy(exit_codes={3: "free"}, delay="1h")
        ref = submit(exit_with, {"code": 3}, options=[policy])
        with client.follow(ref) as follower:
            while not (follower.next_observation(30).queued or "").startswith("started again in 300 s: UserCode"):
                pass
        client.cancel(ref)
        outcome = client.wait(ref)
        assert outcome.diagnosis is not None
        assert (outcome.diagnosis.category, _summarize(outcome)) == (Category.DELETED, ("Failed", 0, 0, []))

    @applies_to(restarts_trainings=True, restarts_in_place=False)
    def test_a_training_is_not_started_again_until_a_process_waits(self, client: TrainerClient, submit: Submit) -> None:
        policy = RestartPolicy(exit_codes={3: "free"}, delay=0)
        outcome = client.wait(submit(exit_with, {"code": 3}, options=[policy]), restarts=False)
        assert _summarize(outcome) == ("Failed", 0, 0, [])
        assert outcome.restarts is not None
        assert outcome.restarts.following is not None
        assert len(client.list_jobs()) == 1

    @applies_to(restarts_trainings=True, is_visible_to_other_clients=True)
    def test_two_processes_that_wait_share_one_budget(
        self, case: BackendCase, client: TrainerClient, tmp_path: Path, submit: Submit
    ) -> None:
        policy = RestartPolicy(max_restarts=1, exit_codes={3: "count"}, delay=0)
        ref = submit(exit_with, {"code": 3}, owner=_TASK, options=[policy])
        with ThreadPoolExecutor(2) as pool:
            outcomes = list(pool.map(lambda each: each.wait(ref), (client, case.connect(tmp_path / "state"))))
        for outcome in outcomes:
            assert _summarize(outcome) == ("Failed", 1, 1, [("UserCode", True)])
        assert outcomes[0].job == outcomes[1].job
        diagnosis = outcomes[0].diagnosis
        assert diagnosis is not None
        assert (diagnosis.retryable, diagnosis.exit_code) == (False, 3)
        assert "the budget of RestartPolicy is used up (max_restarts=1)" in diagnosis.reason

    @applies_to(restarts_trainings=True)
    def test_a_used_up_budget_is_that_of_all_retries_and_a_person_gets_a_new_one(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        def ask(owner: Owner) -> TrainJobRequest:
            policy = RestartPolicy(max_restarts=0, exit_codes={3: "count"})
            return build_request(exit_with, {"code": 3}, owner=owner, options=[policy])

        first = client.submit(ask(_TASK))
        client.wait(first)
        assert client.submit(ask(_TASK)) == first
        retried = client.retry(first)
        assert _summarize(client.wait(retried)) == ("Failed", 0, 0, [])
        cleared = client.submit(ask(_CLEARED))
        assert _summarize(client.wait(cleared)) == ("Failed", 0, 0, [])
        assert len({first.uid, retried.uid, cleared.uid}) == len(client.list_jobs()) == 3

    @applies_to(restarts_trainings=True)
    def test_a_failure_that_a_retry_cannot_fix_does_not_restart_unless_the_policy_says_so(self, run: Run) -> None:
        policy = RestartPolicy(exit_codes={4: "free"}, delay=0)
        outcome = run(exit_with, {"code": 3}, options=[policy])
        assert _summarize(outcome) == ("Failed", 0, 0, [])
        assert outcome.diagnosis is not None
        assert (outcome.diagnosis.category, outcome.diagnosis.retryable) == (Category.USER_CODE, False)

    @applies_to(restarts_trainings=True)
    def test_without_the_option_an_outcome_has_no_restarts(self, run: Run) -> None:
        outcome = run(exit_with, {"code": 3})
        assert outcome.restarts is None
        assert "restarts" not in outcome.to_dict()

    @applies_to(restarts_trainings=False)
    def test_a_restart_policy_is_refused_by_a_backend_that_runs_a_training_once(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        with pytest.raises(ValueError, match="RestartPolicy option is not compatible"):
            build_request(options=[RestartPolicy()])
        with pytest.raises(ValueError, match="restart_policy"):
            client.submit(build_request().with_fields(restart_policy=RestartRules()))
        assert client.list_jobs() == []
