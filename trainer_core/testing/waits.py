"""Waiting: for a status or for the end, with an honest timeout."""

# ruff: noqa: S101, D102 -- assert is what a test does, and its name says what it shows

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trainer_core.client import TrainerClient
from trainer_core.errors import JobEndedError, JobFailedError, JobNotFoundError, WaitTimeoutError
from trainer_core.jobs import TrainJob
from trainer_core.request import TrainJobRequest
from trainer_core.testing.case import Contract, reached, where
from trainer_core.testing.functions import fails, goes_on

__all__ = ["Waits"]

Ask = Callable[..., TrainJobRequest]


class Waits(Contract):
    """Waiting ends with what was waited for, with why it cannot come, or with the time."""

    def test_waiting_for_success_returns_the_complete_job(self, client: TrainerClient, ask: Ask) -> None:
        client.submit(ask())
        job = client.wait_for_job_status("job", polling_interval=1)
        assert (job.name, job.status) == ("job", "Complete")

    def test_waiting_for_failure_returns_the_failed_job(self, client: TrainerClient, ask: Ask) -> None:
        client.wait(client.submit(ask(fails, {"reason": "no luck"})))
        assert client.wait_for_job_status("job", {"Failed", "Complete"}, polling_interval=1).status == "Failed"

    def test_callbacks_see_the_job_at_each_look(self, client: TrainerClient, ask: Ask) -> None:
        seen: list[TrainJob] = []
        client.wait(client.submit(ask()))
        last = client.wait_for_job_status("job", polling_interval=1, callbacks=[seen.append, seen.append])
        assert seen[-2:] == [last, last]
        assert {job.name for job in seen} == {"job"}

    def test_a_status_that_cannot_come_any_more_ends_the_waiting(self, client: TrainerClient, ask: Ask) -> None:
        client.wait(client.submit(ask()))
        with pytest.raises(JobEndedError, match="Complete and will not be Failed or Suspended"):
            client.wait_for_job_status("job", {"Suspended", "Failed"})

    def test_a_failed_job_ends_the_waiting_for_anything_else(self, client: TrainerClient, ask: Ask) -> None:
        client.wait(client.submit(ask(fails, {"reason": "no luck"})))
        with pytest.raises(JobFailedError, match="no luck"):
            client.wait_for_job_status("job", {"Running"})

    @where(runs_beside_its_client=True)
    def test_a_job_can_be_seen_running_and_goes_on_when_the_time_is_over(self, client: TrainerClient, ask: Ask) -> None:
        ref = client.submit(ask(goes_on))
        reached(client, "job", "Running")
        with pytest.raises(WaitTimeoutError, match="it goes on"):
            client.wait_for_job_status("job", timeout=2, polling_interval=1)
        with pytest.raises(WaitTimeoutError, match="was not stopped"):
            client.wait(ref, timeout=0)
        assert client.observe(ref).status == "Running"

    @where(runs_beside_its_client=False)
    def test_a_job_has_ended_when_submit_returns(self, client: TrainerClient, ask: Ask) -> None:
        ref = client.submit(ask())
        assert client.wait(ref, timeout=0) == client.outcome("job")

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            ({"status": {"Done"}}, "unknown status Done; known are Complete, Created, Failed, Running, Suspended"),
            ({"status": set()}, "unknown status"),
            ({"timeout": 0}, "Timeout must be a positive number"),
            ({"polling_interval": 0}, "Polling interval must be a positive number"),
            ({"timeout": 2, "polling_interval": 2}, "strictly less than timeout"),
        ],
    )
    def test_arguments_that_cannot_be_right_are_refused(
        self, client: TrainerClient, arguments: dict[str, Any], complaint: str
    ) -> None:
        with pytest.raises(ValueError, match=complaint):
            client.wait_for_job_status("job", **arguments)

    def test_waiting_for_what_is_not_there_fails_at_once(self, client: TrainerClient) -> None:
        with pytest.raises(JobNotFoundError, match="'job'"):
            client.wait_for_job_status("job")
        with pytest.raises(JobNotFoundError, match="'job'"):
            client.wait("job")
