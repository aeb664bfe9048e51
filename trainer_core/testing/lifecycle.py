"""Lifecycle: delete, cancel, suspend and resume. Each is idempotent and accepts finished jobs."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainer_core.base.errors import JobNotFoundError
from trainer_core.client import TrainerClient
from trainer_core.definition.options import Suspend
from trainer_core.model.jobs import Category
from trainer_core.testing.case import (
    BuildRequest,
    Contract,
    Run,
    Submit,
    applies_to,
    wait_for_status,
    wait_until_suspended,
)
from trainer_core.testing.training_functions import exit_on_stop, return_value, run_forever


class Lifecycle(Contract):
    """Deleting, cancelling, suspending and resuming a job is idempotent."""

    def test_deleting_an_absent_job_succeeds(self, client: TrainerClient, submit: Submit) -> None:
        ref = submit()
        client.delete_job("job")
        client.delete_job("job")
        client.delete_job(ref)
        client.delete_job("absent")
        assert client.list_jobs() == []

    def test_the_name_of_a_deleted_job_can_be_used_again(self, client: TrainerClient, submit: Submit) -> None:
        old = submit(return_value, {"value": 1})
        client.delete_job("job")
        with pytest.raises(JobNotFoundError):
            client.observe(old)
        new = submit(return_value, {"value": 2})
        assert client.wait(new).result == 2

    def test_a_ref_never_matches_a_later_job_of_the_same_name(self, client: TrainerClient, submit: Submit) -> None:
        old = submit()
        client.delete_job("job")
        new = submit()
        for read in (client.observe, client.backend.events, client.backend.get_request):
            with pytest.raises(JobNotFoundError):
                read(old)
        client.delete_job(old)
        client.backend.cancel(old)
        assert client.wait(new).succeeded

    def test_suspend_resume_and_cancel_do_not_change_a_finished_job(self, client: TrainerClient, run: Run) -> None:
        outcome = run(return_value, {"value": 1})
        for call in (client.suspend, client.resume, client.cancel):
            call("job")
        assert client.get_job_outcome("job") == outcome

    def test_cancelling_an_absent_job_succeeds(self, client: TrainerClient, submit: Submit) -> None:
        ref = submit()
        client.delete_job("job")
        client.cancel(ref)
        client.cancel("absent")
        assert client.list_jobs() == []

    @applies_to(runs_in_background=True)
    def test_a_suspended_job_restarts_when_it_is_resumed(self, client: TrainerClient, submit: Submit) -> None:
        submit(run_forever)
        wait_for_status(client, "job", "Running")
        for _ in range(2):
            client.suspend("job")
        suspended = wait_until_suspended(client, "job")
        assert [step.status for step in suspended.steps] == ["Pending"]
        for _ in range(2):
            client.resume("job")
        wait_for_status(client, "job", "Running")
        assert next(client.get_job_logs("job", follow=True)) == "it runs"

    @applies_to(runs_in_background=True)
    def test_a_function_that_exits_with_0_because_it_is_stopped_does_not_complete_the_job(
        self, client: TrainerClient, submit: Submit
    ) -> None:
        submit(exit_on_stop)
        assert next(client.get_job_logs("job", follow=True)) == "it runs"
        client.suspend("job")
        assert wait_until_suspended(client, "job").status == "Suspended"
        client.resume("job")
        wait_for_status(client, "job", "Running")
        client.cancel("job")
        assert client.get_job_outcome("job").status == "Failed"

    @applies_to(runs_in_background=True)
    def test_a_job_can_be_created_suspended(self, client: TrainerClient, submit: Submit) -> None:
        submit(return_value, {"value": 5}, options=[Suspend()])
        job = wait_for_status(client, "job", "Suspended")
        assert (job.started, [step.status for step in job.steps]) == (None, ["Pending"])
        client.resume("job")
        assert client.wait("job").result == 5

    @applies_to(runs_in_background=True)
    def test_a_suspended_job_can_be_cancelled(self, client: TrainerClient, submit: Submit) -> None:
        submit(options=[Suspend()])
        wait_for_status(client, "job", "Suspended")
        client.cancel("job")
        assert client.get_job_outcome("job").status == "Failed"

    @applies_to(runs_in_background=True)
    def test_a_cancellation_is_final_while_other_clients_suspend_and_resume(
        self, client: TrainerClient, submit: Submit
    ) -> None:
        ref = submit(run_forever)
        cancelled = threading.Event()

        def suspend_and_resume() -> None:
            while not cancelled.is_set():
                client.suspend(ref)
                client.resume(ref)

        with ThreadPoolExecutor(2) as threads:
            others = [threads.submit(suspend_and_resume) for _ in range(2)]
            client.cancel(ref)
            cancelled.set()
        client.resume(ref)
        diagnosis = client.wait(ref, timeout=300).diagnosis
        assert [each.exception() for each in others] == [None, None]
        assert diagnosis is not None
        assert diagnosis.category == Category.DELETED

    @applies_to(runs_in_background=False)
    def test_creating_a_suspended_job_is_refused_by_a_backend_that_runs_jobs_in_submit(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        with pytest.raises(ValueError, match="Suspend"):
            build_request(options=[Suspend()])
        with pytest.raises(ValueError, match="suspend"):
            client.submit(build_request().with_fields(suspend=True))
        assert client.list_jobs() == []
