"""Delete, cancel, suspend and resume: each may be said twice, and of a job that has ended."""

# ruff: noqa: S101, D102 -- assert is what a test does, and its name says what it shows

from __future__ import annotations

from collections.abc import Callable

import pytest

from trainer_core.client import TrainerClient
from trainer_core.errors import JobNotFoundError
from trainer_core.options import Suspend
from trainer_core.request import TrainJobRequest
from trainer_core.testing.case import Contract, halted, reached, where
from trainer_core.testing.functions import goes_on, returns

__all__ = ["Lifecycle"]

Ask = Callable[..., TrainJobRequest]


class Lifecycle(Contract):
    """What people do to a job."""

    def test_deleting_twice_or_what_never_was_succeeds(self, client: TrainerClient, ask: Ask) -> None:
        ref = client.submit(ask())
        client.delete_job("job")
        client.delete_job("job")
        client.backend.delete(ref)
        client.delete_job("never-there")
        assert client.list_jobs() == []

    def test_a_deleted_job_is_gone_and_its_name_is_free(self, client: TrainerClient, ask: Ask) -> None:
        old = client.submit(ask(returns, {"value": 1}))
        client.delete_job("job")
        with pytest.raises(JobNotFoundError):
            client.observe(old)
        new = client.submit(ask(returns, {"value": 2}))
        assert client.wait(new).result == 2

    def test_a_ref_does_not_lead_to_a_later_job_of_the_same_name(self, client: TrainerClient, ask: Ask) -> None:
        old = client.submit(ask())
        client.delete_job("job")
        new = client.submit(ask())
        for look in (client.observe, client.backend.events, client.backend.request):
            with pytest.raises(JobNotFoundError):
                look(old)
        client.backend.delete(old)
        client.backend.cancel(old)
        assert client.wait(new).succeeded

    def test_whatever_is_said_to_a_job_that_has_ended_succeeds_and_changes_nothing(
        self, client: TrainerClient, ask: Ask
    ) -> None:
        outcome = client.wait(client.submit(ask(returns, {"value": 1})))
        for say in (client.suspend, client.resume, client.cancel):
            say("job")
        assert client.outcome("job") == outcome

    def test_cancelling_what_is_not_there_succeeds(self, client: TrainerClient, ask: Ask) -> None:
        ref = client.submit(ask())
        client.delete_job("job")
        client.cancel(ref)
        client.cancel("never-there")

    @where(runs_beside_its_client=True)
    def test_a_suspended_job_starts_again_when_it_is_resumed(self, client: TrainerClient, ask: Ask) -> None:
        client.submit(ask(goes_on))
        reached(client, "job", "Running")
        for _ in range(2):
            client.suspend("job")
        suspended = halted(client, "job")
        assert [step.status for step in suspended.steps] == ["Pending"]
        for _ in range(2):
            client.resume("job")
        reached(client, "job", "Running")
        assert next(client.get_job_logs("job", follow=True)) == "it runs"

    @where(runs_beside_its_client=True)
    def test_a_job_can_be_created_suspended(self, client: TrainerClient, ask: Ask) -> None:
        client.submit(ask(returns, {"value": 5}, options=[Suspend()]))
        job = reached(client, "job", "Suspended")
        assert (job.started, [step.status for step in job.steps]) == (None, ["Pending"])
        client.resume("job")
        assert client.wait("job").result == 5

    @where(runs_beside_its_client=True)
    def test_a_suspended_job_can_be_cancelled(self, client: TrainerClient, ask: Ask) -> None:
        client.submit(ask(options=[Suspend()]))
        reached(client, "job", "Suspended")
        client.cancel("job")
        assert client.outcome("job").status == "Failed"

    @where(runs_beside_its_client=False)
    def test_a_job_cannot_be_created_suspended_where_submit_runs_it(self, client: TrainerClient, ask: Ask) -> None:
        with pytest.raises(ValueError, match="Suspend"):
            ask(options=[Suspend()])
        with pytest.raises(ValueError, match="suspend"):
            client.submit(ask().model_copy(update={"suspend": True}))
        assert client.list_jobs() == []
