"""Failure: a failed job says why, where, and whether a retry can help."""

# ruff: noqa: S101, D102 -- assert is what a test does, and its name says what it shows

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainer_core.client import TrainerClient
from trainer_core.errors import JobFailedError
from trainer_core.initializers import FileDatasetInitializer, Initializer
from trainer_core.options import ActiveDeadlineSeconds
from trainer_core.outcome import Category, Diagnosis, Outcome
from trainer_core.request import TrainJobRequest
from trainer_core.testing.case import Contract, where
from trainer_core.testing.functions import exits, fails, goes_on

__all__ = ["Failures"]

Ask = Callable[..., TrainJobRequest]


def _diagnosis(outcome: Outcome) -> Diagnosis:
    assert outcome.status == "Failed"
    assert outcome.diagnosis is not None
    assert len(outcome.diagnosis.reason.splitlines()) == 1
    return outcome.diagnosis


class Failures(Contract):
    """A failed job has a diagnosis."""

    def test_an_exception_is_told_with_the_users_part_of_its_traceback(self, client: TrainerClient, ask: Ask) -> None:
        found = _diagnosis(client.wait(client.submit(ask(fails, {"reason": "no luck"}))))
        assert (found.category, found.reason) == (Category.USER_CODE, "KeyError: 'no luck'")
        assert (found.step, found.exit_code, found.retryable) == ("node-0", 1, False)
        assert "raise KeyError(reason)" in (found.traceback or "")
        assert "before the failure" in found.log_tail
        frames = [line for line in (found.traceback or "").splitlines() if line.lstrip().startswith("File ")]
        assert len(frames) == 1

    def test_a_failed_job_has_no_result(self, client: TrainerClient, ask: Ask) -> None:
        outcome = client.wait(client.submit(ask(fails, {"reason": "no luck"})))
        assert (outcome.result, outcome.result_truncated, outcome.artifacts) == (None, False, {})
        assert client.get_job("job").steps[0].status == "Failed"
        assert "no luck" in (client.get_job("job").reason or "")

    def test_an_exit_code_of_the_function_fails_the_job(self, client: TrainerClient, ask: Ask) -> None:
        found = _diagnosis(client.wait(client.submit(ask(exits, {"code": 3}))))
        assert (found.category, found.exit_code, found.retryable) == (Category.USER_CODE, 3, False)

    def test_leaving_with_exit_code_0_is_no_failure(self, client: TrainerClient, ask: Ask) -> None:
        assert client.wait(client.submit(ask(exits, {"code": 0}))).status == "Complete"

    @where(reads_this_machine=True)
    def test_a_source_that_cannot_be_fetched_fails_the_initializer(
        self, client: TrainerClient, ask: Ask, tmp_path: Path
    ) -> None:
        (tmp_path / "source").mkdir()
        (tmp_path / "source" / "digits.csv").symlink_to(tmp_path / "gone")
        fetch = Initializer(dataset=FileDatasetInitializer((tmp_path / "source").as_uri()))
        found = _diagnosis(client.wait(client.submit(ask(initializer=fetch))))
        assert (found.category, found.step) == (Category.INITIALIZER, "dataset-initializer")
        assert "digits.csv" in found.reason

    def test_waiting_for_success_raises_the_diagnosis(self, client: TrainerClient, ask: Ask) -> None:
        client.wait(client.submit(ask(fails, {"reason": "no luck"})))
        with pytest.raises(JobFailedError, match="UserCode in node-0: KeyError: 'no luck'") as failed:
            client.wait_for_job_status("job")
        assert failed.value.outcome == client.outcome("job")

    @where(ends_at_deadline=True)
    def test_a_job_that_runs_too_long_is_ended_by_its_deadline(self, client: TrainerClient, ask: Ask) -> None:
        found = _diagnosis(client.wait(client.submit(ask(goes_on, options=[ActiveDeadlineSeconds(1)]))))
        assert (found.category, found.retryable) == (Category.DEADLINE, False)
        assert "1 s" in found.reason

    @where(ends_at_deadline=False)
    def test_a_deadline_is_refused_where_nothing_could_end_the_job(self, client: TrainerClient, ask: Ask) -> None:
        with pytest.raises(ValueError, match="ActiveDeadlineSeconds"):
            ask(options=[ActiveDeadlineSeconds(1)])
        with pytest.raises(ValueError, match="deadline"):
            client.submit(ask().model_copy(update={"active_deadline_seconds": 1}))
        assert client.list_jobs() == []

    @where(runs_beside_its_client=True)
    def test_a_job_cancelled_while_it_is_waited_for_has_failed(self, client: TrainerClient, ask: Ask) -> None:
        ref = client.submit(ask(goes_on))
        outcome = client.wait(ref, on_observation=lambda _: client.cancel("job"))
        assert (_diagnosis(outcome).category, _diagnosis(outcome).retryable) == (Category.DELETED, False)
        assert client.outcome("job") == outcome

    @where(runs_beside_its_client=True)
    def test_a_job_that_was_given_up_says_why(self, client: TrainerClient, ask: Ask) -> None:
        ref = client.submit(ask(goes_on))
        why = Diagnosis(category=Category.SCHEDULING, reason="no machine takes it", retryable=True)
        client.backend.cancel(ref, because=why)
        assert _diagnosis(client.outcome("job")) == why
        client.cancel("job")
        assert _diagnosis(client.outcome("job")) == why

    @where(runs_beside_its_client=True)
    def test_a_job_deleted_while_it_is_waited_for_has_failed(self, client: TrainerClient, ask: Ask) -> None:
        ref = client.submit(ask(goes_on))
        outcome = client.wait(ref, on_observation=lambda _: client.delete_job("job"))
        assert (_diagnosis(outcome).category, outcome.job) == (Category.DELETED, ref)
