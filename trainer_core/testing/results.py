"""Result and progress: what the training function returns and reports, and how it arrives."""

# ruff: noqa: S101, D102 -- assert is what a test does, and its name says what it shows

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer_core.client import TrainerClient
from trainer_core.observation import Observation
from trainer_core.outcome import Outcome
from trainer_core.request import TrainJobRequest
from trainer_core.testing.case import Contract, where
from trainer_core.testing.functions import (
    reports,
    returns,
    returns_an_object,
    returns_its_rank,
    returns_setting,
)

__all__ = ["Results"]

Ask = Callable[..., TrainJobRequest]


class Results(Contract):
    """What the function returns on rank 0 is the job's result."""

    def test_the_result_is_what_the_function_returns(self, client: TrainerClient, ask: Ask) -> None:
        value = {"text": "ü '\"$HOME`\n\t", "number": 1, "list": [2.5, None, True, {}], "": []}
        outcome = client.wait(client.submit(ask(returns, {"value": value})))
        assert (outcome.status, outcome.result) == ("Complete", value)
        assert (outcome.diagnosis, outcome.result_truncated, outcome.result_note) == (None, False, None)

    def test_returning_nothing_completes_the_job(self, client: TrainerClient, ask: Ask) -> None:
        outcome = client.wait(client.submit(ask(returns, {"value": None})))
        assert (outcome.status, outcome.result, outcome.result_note) == ("Complete", None, None)

    def test_a_result_that_is_too_large_is_left_out_and_the_outcome_says_so(
        self, client: TrainerClient, ask: Ask
    ) -> None:
        outcome = client.wait(client.submit(ask(returns, {"value": "x" * 5000})))
        assert (outcome.status, outcome.result, outcome.result_truncated) == ("Complete", None, True)

    @where(reads_this_machine=True)
    def test_a_large_result_lies_whole_where_the_user_asked_for_it(
        self, client: TrainerClient, ask: Ask, tmp_path: Path
    ) -> None:
        place = tmp_path / "results" / "large.json"
        outcome = client.wait(client.submit(ask(returns, {"value": "x" * 5000}, result_uri=place.as_uri())))
        assert outcome.result_truncated
        assert json.loads(place.read_text(encoding="utf-8")) == "x" * 5000

    @where(reads_this_machine=False)
    def test_a_large_result_is_written_where_the_user_asked_for_it_on_the_machine_that_trains(
        self, client: TrainerClient, ask: Ask, tmp_path: Path
    ) -> None:
        place = tmp_path / "results" / "large.json"
        outcome = client.wait(client.submit(ask(returns, {"value": "x" * 5000}, result_uri=place.as_uri())))
        assert (outcome.status, outcome.result_truncated, outcome.result_note) == ("Complete", True, None)

    def test_a_result_that_is_not_json_is_left_out_with_a_note(self, client: TrainerClient, ask: Ask) -> None:
        outcome = client.wait(client.submit(ask(returns_an_object)))
        assert (outcome.status, outcome.result, outcome.result_truncated) == ("Complete", None, False)
        assert "object" in (outcome.result_note or "")

    @where(runs_every_node=True)
    def test_only_rank_0_gives_the_result(self, client: TrainerClient, ask: Ask) -> None:
        ref = client.submit(ask(returns_its_rank, num_nodes=2))
        assert client.wait(ref).result == {"rank": 0}
        assert [step.name for step in client.get_job("job").steps] == ["node-0", "node-1"]
        assert list(client.get_job_logs("job", step="node-1")) == ["rank 1 of 2"]

    @where(runs_every_node=False)
    def test_one_process_stands_for_all_nodes(self, client: TrainerClient, ask: Ask) -> None:
        ref = client.submit(ask(returns_its_rank, num_nodes=2))
        assert client.wait(ref).result == {"rank": 0}
        assert [step.name for step in client.get_job("job").steps] == ["node-0"]
        assert list(client.get_job_logs("job")) == ["rank 0 of 1"]

    def test_metrics_and_artifacts_are_taken_from_the_result(self, client: TrainerClient, ask: Ask) -> None:
        value = {"accuracy": 0.9, "epochs": 3, "best": True, "artifacts": {"model": "file:///m"}}
        outcome = client.wait(client.submit(ask(returns, {"value": value})))
        assert outcome.metrics == {"accuracy": 0.9, "epochs": 3.0}
        assert outcome.artifacts == {"model": "file:///m"}

    def test_progress_reaches_whoever_follows_the_job(self, client: TrainerClient, ask: Ask) -> None:
        seen: list[Observation] = []
        client.wait(client.submit(ask(reports, {"steps": 4})), on_observation=seen.append)
        last = seen[-1].progress
        assert last is not None
        assert (last.step, last.total, last.percentage, last.metrics) == (4, 4, 100, {"loss": 0.25})
        assert client.observe("job").progress == last

    def test_the_last_metrics_reported_are_metrics_of_the_outcome(self, client: TrainerClient, ask: Ask) -> None:
        outcome = client.wait(client.submit(ask(reports, {"steps": 2})))
        assert outcome.metrics == {"accuracy": 0.75, "loss": 0.5}
        assert outcome.artifacts == {"model": "file:///models/digits"}

    def test_progress_is_not_lost_in_a_long_log(self, client: TrainerClient, ask: Ask) -> None:
        outcome = client.wait(client.submit(ask(reports, {"steps": 2, "lines": 5000})))
        last = client.observe("job").progress
        assert last is not None
        assert (last.step, outcome.metrics["loss"]) == (2, 0.5)

    def test_an_outcome_survives_a_journey_as_json(self, client: TrainerClient, ask: Ask) -> None:
        outcome = client.wait(client.submit(ask(reports, {"steps": 2})))
        assert Outcome.from_json(outcome.to_json()) == outcome

    def test_environment_variables_arrive_as_they_were_given(self, client: TrainerClient, ask: Ask) -> None:
        value = "a b=\"c\" '$HOME' `x` ü\n"
        request = ask(returns_setting, {"name": "GREETING"}, env={"GREETING": value})
        assert client.wait(client.submit(request)).result == value

    def test_a_job_knows_its_own_name(self, client: TrainerClient, ask: Ask) -> None:
        request = ask(returns_setting, {"name": "TRAINJOB_NAME"}, name="digits")
        assert client.wait(client.submit(request)).result == "digits"

    @where(installs_packages=False)
    def test_packages_are_refused_where_they_cannot_be_installed(self, client: TrainerClient, ask: Ask) -> None:
        with pytest.raises(ValueError, match="install tiny into it"):
            client.submit(ask(packages_to_install=["tiny"]))
        assert client.list_jobs() == []

    @where(installs_packages=True)
    def test_packages_that_cannot_be_installed_fail_the_job_and_not_the_submitter(
        self, client: TrainerClient, ask: Ask
    ) -> None:
        request = ask(packages_to_install=["trainjob-no-such-package"], pip_index_urls=["file:///nowhere"])
        outcome = client.wait(client.submit(request))
        assert outcome.diagnosis is not None
        assert "trainjob-no-such-package" in outcome.diagnosis.reason
