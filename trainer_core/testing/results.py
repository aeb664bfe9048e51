"""Results and progress: what the training function returns and reports, and how the client receives it."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer_core.client import TrainerClient
from trainer_core.model.jobs import Observation, Outcome
from trainer_core.testing.case import Contract, Run, Submit, applies_to
from trainer_core.testing.training_functions import (
    clear_environment,
    diverge,
    report_progress,
    report_status,
    return_env,
    return_object,
    return_rank,
    return_value,
)


class Results(Contract):
    """The return value of the function on rank 0 is the result of the job."""

    def test_the_result_is_the_return_value_of_the_function(self, run: Run) -> None:
        value = {"text": "ü '\"$HOME`\n\t", "number": 1, "list": [2.5, None, True, {}], "": []}
        outcome = run(return_value, {"value": value})
        assert (outcome.status, outcome.result) == ("Complete", value)
        assert (outcome.diagnosis, outcome.result_truncated, outcome.result_note) == (None, False, None)

    def test_a_function_that_returns_none_completes_the_job(self, run: Run) -> None:
        outcome = run(return_value, {"value": None})
        assert (outcome.status, outcome.result, outcome.result_note) == ("Complete", None, None)

    def test_a_function_that_clears_its_environment_keeps_its_result(self, run: Run) -> None:
        outcome = run(clear_environment)
        assert (outcome.status, outcome.result, outcome.result_note) == ("Complete", {"loss": 0.5}, None)

    def test_a_result_over_the_size_limit_is_dropped_and_marked_as_truncated(self, run: Run) -> None:
        outcome = run(return_value, {"value": "x" * 5000})
        assert (outcome.status, outcome.result, outcome.result_truncated) == ("Complete", None, True)
        assert outcome.result_note == "the result has 5002 bytes as JSON, more than 4096"

    def test_numbers_and_artifacts_of_a_result_over_the_size_limit_are_kept(self, run: Run) -> None:
        value = {"accuracy": 0.9, "predictions": [0.5] * 3000, "artifacts": {"model": "s3://bucket/model"}}
        outcome = run(return_value, {"value": value})
        assert (outcome.result, outcome.result_truncated) == (None, True)
        assert (outcome.metrics, outcome.artifacts) == ({"accuracy": 0.9}, {"model": "s3://bucket/model"})

    @applies_to(reads_local_files=True)
    def test_a_large_result_is_written_to_the_result_uri(self, tmp_path: Path, run: Run) -> None:
        place = tmp_path / "results" / "large.json"
        outcome = run(return_value, {"value": "x" * 5000}, result_uri=place.as_uri())
        assert outcome.result_truncated
        assert json.loads(place.read_text(encoding="utf-8")) == "x" * 5000

    @applies_to(reads_local_files=False)
    def test_a_large_result_is_written_to_the_result_uri_on_the_training_node(self, tmp_path: Path, run: Run) -> None:
        place = tmp_path / "results" / "large.json"
        outcome = run(return_value, {"value": "x" * 5000}, result_uri=place.as_uri())
        assert (outcome.status, outcome.result_truncated) == ("Complete", True)

    def test_a_result_that_is_not_json_is_dropped_with_a_note(self, run: Run) -> None:
        outcome = run(return_object)
        assert (outcome.status, outcome.result, outcome.result_truncated) == ("Complete", None, False)
        assert "object" in (outcome.result_note or "")

    @applies_to(runs_multiple_nodes=True)
    def test_the_result_is_that_of_rank_0(self, client: TrainerClient, submit: Submit) -> None:
        ref = submit(return_rank, num_nodes=2)
        assert client.wait(ref).result == {"rank": 0}
        assert [step.name for step in client.get_job("job").steps] == ["node-0", "node-1"]
        assert list(client.get_job_logs("job", step="node-1")) == ["rank 1 of 2"]

    @applies_to(runs_multiple_nodes=False)
    def test_one_process_runs_for_all_nodes(self, client: TrainerClient, submit: Submit) -> None:
        ref = submit(return_rank, num_nodes=2)
        assert client.wait(ref).result == {"rank": 0}
        assert [step.name for step in client.get_job("job").steps] == ["node-0"]
        assert list(client.get_job_logs("job")) == ["rank 0 of 1"]

    def test_metrics_and_artifacts_are_read_from_the_result(self, run: Run) -> None:
        value = {"accuracy": 0.9, "epochs": 3, "best": True, "artifacts": {"model": "file:///m"}}
        outcome = run(return_value, {"value": value})
        assert outcome.metrics == {"accuracy": 0.9, "epochs": 3.0}
        assert outcome.artifacts == {"model": "file:///m"}

    def test_progress_is_reported_to_a_waiting_client(self, client: TrainerClient, submit: Submit) -> None:
        seen: list[Observation] = []
        client.wait(submit(report_progress, {"steps": 4}), on_observation=seen.append)
        last = seen[-1].progress
        assert last is not None
        assert (last.step, last.total, last.percentage, last.metrics) == (4, 4, 100, {"loss": 0.25})
        assert client.observe("job").progress == last

    def test_a_library_that_knows_the_status_protocol_of_kubeflow_trainer_reports_progress(
        self, client: TrainerClient, run: Run
    ) -> None:
        outcome = run(report_status)
        last = client.observe("job").progress
        assert outcome.result == {"codes": [200, 200, 403]}
        assert last is not None
        assert (last.step, last.total, last.metrics) == (3, 4, {"loss": 0.25})

    def test_the_outcome_contains_the_last_reported_metrics(self, run: Run) -> None:
        outcome = run(report_progress, {"steps": 2})
        assert outcome.metrics == {"accuracy": 0.75, "loss": 0.5}
        assert outcome.artifacts == {"model": "file:///models/digits"}

    def test_the_last_value_of_each_metric_counts_and_what_is_returned_without_a_finite_number_is_absent(
        self, run: Run
    ) -> None:
        outcome = run(diverge)
        assert outcome.metrics == {"loss": 0.125, "val_loss": 0.25, "half ?": 2.0, "recall": 0.5}
        assert "because the function returned no finite number: accuracy, f1" in (outcome.result_note or "")

    def test_a_value_that_is_not_json_is_null_by_name_and_the_rest_of_the_result_is_kept(self, run: Run) -> None:
        outcome = run(diverge)
        assert (outcome.result["day"], outcome.result["raw"]) == ("2026-01-02", None)
        assert (outcome.artifacts, outcome.result_truncated) == ({"model": "file:///m"}, False)
        assert "result.raw (bytes)" in (outcome.result_note or "")

    def test_progress_is_found_in_a_long_log(self, client: TrainerClient, run: Run) -> None:
        outcome = run(report_progress, {"steps": 2, "lines": 5000})
        last = client.observe("job").progress
        assert last is not None
        assert (last.step, outcome.metrics["loss"]) == (2, 0.5)

    def test_an_outcome_is_unchanged_by_a_json_round_trip(self, run: Run) -> None:
        outcome = run(report_progress, {"steps": 2})
        assert Outcome.from_json(outcome.to_json()) == outcome

    def test_environment_variables_reach_the_training_unchanged(self, run: Run) -> None:
        value = "a b=\"c\" '$HOME' `x` ü\n"
        assert run(return_env, {"name": "GREETING"}, env={"GREETING": value}).result == value

    def test_the_job_name_is_an_environment_variable_of_the_training(self, run: Run) -> None:
        assert run(return_env, {"name": "TRAINJOB_NAME"}, name="digits").result == "digits"

    @applies_to(installs_packages=False)
    def test_packages_are_refused_by_a_backend_that_cannot_install_them(
        self, client: TrainerClient, submit: Submit
    ) -> None:
        with pytest.raises(ValueError, match="install tiny into it"):
            submit(packages_to_install=["tiny"])
        assert client.list_jobs() == []

    @applies_to(installs_packages=True)
    def test_a_failed_package_installation_fails_the_job(self, run: Run) -> None:
        outcome = run(packages_to_install=["trainjob-no-such-package"], pip_index_urls=["file:///nowhere"])
        assert outcome.diagnosis is not None
        assert "trainjob-no-such-package" in outcome.diagnosis.reason
