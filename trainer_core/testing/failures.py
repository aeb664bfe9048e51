"""Failures: the diagnosis of a failed job."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_core.client import TrainerClient
from trainer_core.definition.initializers import FileDatasetInitializer, Initializer
from trainer_core.definition.options import ActiveDeadlineSeconds
from trainer_core.model.jobs import Category, Diagnosis, JobFailedError, Outcome
from trainer_core.testing.case import BuildRequest, Contract, Run, Submit, applies_to
from trainer_core.testing.training_functions import (
    crash_at_exit,
    end_process,
    exit_with,
    raise_error,
    return_undone,
    run_forever,
)


def _get_diagnosis(outcome: Outcome) -> Diagnosis:
    assert outcome.status == "Failed"
    assert outcome.diagnosis is not None
    assert len(outcome.diagnosis.reason.splitlines()) == 1
    return outcome.diagnosis


class Failures(Contract):
    """A failed job has a diagnosis: category, reason, step, exit code, traceback and whether a retry can help."""

    def test_an_exception_is_reported_with_the_traceback_of_the_user_code(self, run: Run) -> None:
        diagnosis = _get_diagnosis(run(raise_error, {"reason": "no luck"}))
        assert (diagnosis.category, diagnosis.reason) == (Category.USER_CODE, "KeyError: 'no luck'")
        assert (diagnosis.step, diagnosis.exit_code, diagnosis.retryable) == ("node-0", 1, False)
        assert "raise KeyError(reason)" in (diagnosis.traceback or "")
        assert "before the failure" in diagnosis.log_tail
        frames = [line for line in (diagnosis.traceback or "").splitlines() if line.lstrip().startswith("File ")]
        assert len(frames) == 1

    def test_a_failed_job_has_no_result(self, client: TrainerClient, run: Run) -> None:
        outcome = run(raise_error, {"reason": "no luck"})
        assert (outcome.result, outcome.result_truncated, outcome.artifacts) == (None, False, {})
        assert client.get_job("job").steps[0].status == "Failed"
        assert "no luck" in (client.get_job("job").reason or "")

    def test_a_nonzero_exit_code_fails_the_job(self, run: Run) -> None:
        diagnosis = _get_diagnosis(run(exit_with, {"code": 3}))
        assert (diagnosis.category, diagnosis.exit_code, diagnosis.retryable) == (Category.USER_CODE, 3, False)

    def test_an_exit_code_of_which_the_system_keeps_0_fails_the_job(self, run: Run) -> None:
        diagnosis = _get_diagnosis(run(exit_with, {"code": 256}))
        assert (diagnosis.category, diagnosis.retryable) == (Category.USER_CODE, False)
        assert diagnosis.reason.startswith("SystemExit: 256")

    # The debug backend would end the process of its caller.
    @applies_to(runs_in_background=True)
    def test_a_process_that_ends_with_0_before_its_function_returns_fails_the_job(
        self, client: TrainerClient, run: Run
    ) -> None:
        diagnosis = _get_diagnosis(run(end_process))
        assert (diagnosis.category, diagnosis.retryable) == (Category.USER_CODE, False)
        assert "it ended with exit code 0 and without a record that its function returned" in diagnosis.reason
        assert client.get_job("job").status == "Failed"

    @applies_to(runs_in_background=True)
    def test_a_crash_after_the_function_has_returned_is_a_note(self, run: Run) -> None:
        outcome = run(crash_at_exit)
        assert (outcome.status, outcome.result, outcome.metrics) == ("Complete", {"loss": 0.5}, {"loss": 0.5})
        assert outcome.result_note == "the process ended with SIGSEGV after the function had returned"

    def test_a_function_that_returns_work_that_was_not_done_fails_the_job(self, run: Run) -> None:
        diagnosis = _get_diagnosis(run(return_undone))
        assert "return_undone returned dict of map, whose work was not done" in diagnosis.reason

    def test_exit_code_0_completes_the_job(self, run: Run) -> None:
        assert run(exit_with, {"code": 0}).status == "Complete"

    @applies_to(reads_local_files=True)
    def test_a_source_that_cannot_be_fetched_fails_the_initializer(self, tmp_path: Path, run: Run) -> None:
        (tmp_path / "source").mkdir()
        (tmp_path / "source" / "digits.csv").symlink_to(tmp_path / "gone")
        fetch = Initializer(dataset=FileDatasetInitializer((tmp_path / "source").as_uri()))
        diagnosis = _get_diagnosis(run(initializer=fetch))
        assert (diagnosis.category, diagnosis.step) == (Category.INITIALIZER, "dataset-initializer")
        assert "digits.csv" in diagnosis.reason

    def test_waiting_for_success_of_a_failed_job_raises_its_diagnosis(self, client: TrainerClient, run: Run) -> None:
        run(raise_error, {"reason": "no luck"})
        with pytest.raises(JobFailedError, match="UserCode in node-0: KeyError: 'no luck'") as failed:
            client.wait_for_job_status("job")
        assert failed.value.outcome == client.get_job_outcome("job")

    @applies_to(enforces_deadline=True)
    def test_a_job_is_stopped_at_its_deadline(self, run: Run) -> None:
        diagnosis = _get_diagnosis(run(run_forever, options=[ActiveDeadlineSeconds(1)]))
        assert (diagnosis.category, diagnosis.retryable) == (Category.DEADLINE, False)
        assert "1 s" in diagnosis.reason

    @applies_to(enforces_deadline=False)
    def test_a_deadline_is_refused_by_a_backend_that_cannot_enforce_it(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        with pytest.raises(ValueError, match="ActiveDeadlineSeconds"):
            build_request(options=[ActiveDeadlineSeconds(1)])
        with pytest.raises(ValueError, match="deadline"):
            client.submit(build_request().with_fields(active_deadline_seconds=1))
        assert client.list_jobs() == []

    @applies_to(runs_in_background=True)
    def test_a_job_cancelled_during_a_wait_has_failed(self, client: TrainerClient, submit: Submit) -> None:
        ref = submit(run_forever)
        outcome = client.wait(ref, on_observation=lambda _: client.cancel("job"))
        assert (_get_diagnosis(outcome).category, _get_diagnosis(outcome).retryable) == (Category.DELETED, False)
        assert client.get_job_outcome("job") == outcome

    @applies_to(runs_in_background=True)
    def test_a_job_cancelled_with_a_diagnosis_keeps_the_diagnosis(self, client: TrainerClient, submit: Submit) -> None:
        ref = submit(run_forever)
        diagnosis = Diagnosis(category=Category.SCHEDULING, reason="no node has room for it", retryable=True)
        client.backend.cancel(ref, diagnosis=diagnosis)
        assert _get_diagnosis(client.get_job_outcome("job")) == diagnosis
        client.cancel("job")
        assert _get_diagnosis(client.get_job_outcome("job")) == diagnosis

    @applies_to(runs_in_background=True)
    def test_a_job_deleted_during_a_wait_has_failed(self, client: TrainerClient, submit: Submit) -> None:
        ref = submit(run_forever)
        outcome = client.wait(ref, on_observation=lambda _: client.delete_job("job"))
        assert (_get_diagnosis(outcome).category, outcome.job) == (Category.DELETED, ref)
