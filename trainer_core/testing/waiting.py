"""Waiting: for a status or the outcome of a job, with a timeout."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

from typing import Any

import pytest

from trainer_core.base.errors import JobEndedError, JobNotFoundError, WaitTimeoutError
from trainer_core.client import TrainerClient
from trainer_core.model.jobs import JobFailedError, TrainJob
from trainer_core.testing.case import Contract, Run, Submit, applies_to, wait_for_status
from trainer_core.testing.training_functions import raise_error, run_forever


class Waiting(Contract):
    """A wait ends with the requested status, with an error if it has become unreachable, or at its timeout."""

    def test_waiting_for_success_returns_the_complete_job(self, client: TrainerClient, submit: Submit) -> None:
        submit()
        job = client.wait_for_job_status("job", polling_interval=1)
        assert (job.name, job.status) == ("job", "Complete")

    def test_waiting_for_failure_returns_the_failed_job(self, client: TrainerClient, run: Run) -> None:
        run(raise_error, {"reason": "no luck"})
        assert client.wait_for_job_status("job", {"Failed", "Complete"}, polling_interval=1).status == "Failed"

    def test_callbacks_receive_the_job_at_each_poll(self, client: TrainerClient, run: Run) -> None:
        seen: list[TrainJob] = []
        run()
        last = client.wait_for_job_status("job", polling_interval=1, callbacks=[seen.append, seen.append])
        assert seen[-2:] == [last, last]
        assert {job.name for job in seen} == {"job"}

    def test_waiting_for_an_unreachable_status_raises(self, client: TrainerClient, run: Run) -> None:
        run()
        with pytest.raises(JobEndedError, match="Complete and cannot become Failed or Suspended"):
            client.wait_for_job_status("job", {"Suspended", "Failed"})

    def test_waiting_for_another_status_of_a_failed_job_raises(self, client: TrainerClient, run: Run) -> None:
        run(raise_error, {"reason": "no luck"})
        with pytest.raises(JobFailedError, match="no luck"):
            client.wait_for_job_status("job", {"Running"})

    @applies_to(runs_in_background=True)
    def test_a_wait_that_times_out_does_not_stop_the_job(self, client: TrainerClient, submit: Submit) -> None:
        ref = submit(run_forever)
        wait_for_status(client, "job", "Running")
        with pytest.raises(WaitTimeoutError, match="has not been stopped"):
            client.wait_for_job_status("job", timeout=2, polling_interval=1)
        with pytest.raises(WaitTimeoutError, match="was not stopped"):
            client.wait(ref, timeout=0)
        assert client.observe(ref).status == "Running"

    @applies_to(runs_in_background=False)
    def test_a_job_is_finished_when_submit_returns(self, client: TrainerClient, submit: Submit) -> None:
        ref = submit()
        assert client.wait(ref, timeout=0) == client.get_job_outcome("job")

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            ({"status": {"Done"}}, "one or more of Complete, Created, Failed, Running, Suspended; got Done"),
            ({"status": set()}, "status must name one or more"),
            ({"timeout": 0}, "timeout must be a positive number"),
            ({"polling_interval": 0}, "polling_interval must be a positive number"),
            ({"timeout": 2, "polling_interval": 2}, "polling_interval must be less than timeout"),
        ],
    )
    def test_invalid_wait_arguments_are_refused(
        self, client: TrainerClient, arguments: dict[str, Any], complaint: str
    ) -> None:
        with pytest.raises(ValueError, match=complaint):
            client.wait_for_job_status("job", **arguments)

    def test_waiting_for_an_absent_job_raises_at_once(self, client: TrainerClient) -> None:
        with pytest.raises(JobNotFoundError, match="'job'"):
            client.wait_for_job_status("job")
        with pytest.raises(JobNotFoundError, match="'job'"):
            client.wait("job")
