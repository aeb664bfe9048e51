"""Exactly once: repeated, concurrent and retried submissions of a request lead to one job."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from trainer_core.base import naming
from trainer_core.base.errors import ConflictError
from trainer_core.client import TrainerClient
from trainer_core.model.jobs import Category
from trainer_core.model.request import Owner
from trainer_core.testing.case import BuildRequest, Contract, Run, Submit, applies_to
from trainer_core.testing.training_functions import end_slowly, raise_error, return_value, run_forever

_TASK = Owner(key="dag/run/task", slug="train", generation="1")
#: The same task after a user has cleared it.
_CLEARED = Owner(key="dag/run/task", slug="train", generation="2")
_OTHER_TASK = Owner(key="another/run/task", slug="train", generation="1")
#: Long enough that the attempt suffix shortens the slug.
_LONG_SLUG = Owner(key="dag/run/task", slug="a-task-id-longer-than-any-label-can-be", generation="1")


def _names(client: TrainerClient) -> list[str]:
    return sorted(job.name for job in client.list_jobs())


class ExactlyOnce(Contract):
    """Submitting a request twice creates one job."""

    def test_submitting_the_same_request_twice_returns_the_same_job(
        self, client: TrainerClient, submit: Submit
    ) -> None:
        first = submit()
        assert submit() == first
        client.wait(first)
        assert submit() == first
        assert _names(client) == ["job"]

    def test_a_name_taken_by_another_request_is_refused(self, client: TrainerClient, submit: Submit) -> None:
        first = submit(return_value, {"value": 1})
        with pytest.raises(ConflictError, match="'job' exists with another request"):
            submit(return_value, {"value": 2})
        assert client.get_job_ref("job") == first
        assert client.wait(first).result == 1

    def test_a_name_used_by_another_owner_is_refused(
        self, client: TrainerClient, build_request: BuildRequest, submit: Submit
    ) -> None:
        name = submit(owner=_TASK).name
        with pytest.raises(ConflictError, match="'dag/run/task'"):
            submit(name=name)
        with pytest.raises(ConflictError, match="'dag/run/task'"):
            client.submit(build_request(owner=_OTHER_TASK).with_name(name))

    def test_concurrent_submits_create_one_job(self, client: TrainerClient, build_request: BuildRequest) -> None:
        with ThreadPoolExecutor(4) as threads:
            refs = list(threads.map(client.submit, [build_request()] * 4))
        assert set(refs) == {client.get_job_ref("job")}
        assert _names(client) == ["job"]

    @applies_to(runs_in_background=True)
    def test_a_retry_attaches_to_a_running_job(self, client: TrainerClient, submit: Submit) -> None:
        first = submit(run_forever, owner=_TASK)
        assert submit(run_forever, owner=_TASK) == first
        assert client.observe(first).outcome is None

    def test_a_retry_under_another_name_returns_the_same_job(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        request = build_request(owner=_TASK)
        first = client.submit(request.with_name("first"))
        assert client.submit(request.with_name("second")) == first
        client.wait(first)
        assert client.submit(request.with_name("third")) == first
        assert _names(client) == ["first"]

    def test_a_retry_returns_the_outcome_of_a_complete_job(self, client: TrainerClient, run: Run) -> None:
        outcome = run(owner=_TASK)
        assert run(owner=_TASK) == outcome
        assert len(client.list_jobs()) == 1

    def test_a_retry_of_a_failed_job_creates_the_next_attempt(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        request = build_request(raise_error, {"reason": "no luck"}, owner=_LONG_SLUG)
        names = []
        for _ in range(3):
            ref = client.submit(request)
            client.wait(ref)
            names.append(ref.name)
        assert names == [request.get_attempt_name(0), request.get_attempt_name(1), request.get_attempt_name(2)]
        assert sorted(job.attempt for job in client.find_jobs(request)) == [0, 1, 2]

    def test_a_retry_returns_the_job_of_a_complete_later_attempt(
        self, client: TrainerClient, run: Run, submit: Submit
    ) -> None:
        run(raise_error, {"reason": "no luck"}, owner=_LONG_SLUG)
        second = submit(owner=_LONG_SLUG)
        client.wait(second)
        assert submit(owner=_LONG_SLUG) == second

    @applies_to(runs_in_background=True)
    def test_an_older_generation_neither_ends_nor_adopts_the_job_of_a_newer_one(
        self, client: TrainerClient, submit: Submit
    ) -> None:
        submit(run_forever, owner=_TASK)
        cleared = submit(run_forever, owner=_CLEARED)
        with pytest.raises(ConflictError, match="generation 1, which is older"):
            submit(run_forever, owner=_TASK)
        assert client.observe(cleared).outcome is None
        assert len(client.list_jobs()) == 2

    def test_later_attempts_of_a_given_name_have_a_numeric_suffix(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        request = build_request(raise_error, {"reason": "no luck"}, owner=_TASK).with_name("digits")
        refs = [client.submit(request)]
        client.wait(refs[0])
        refs.append(client.submit(request))
        assert [ref.name for ref in refs] == ["digits", "digits-1"]

    def test_a_name_of_maximum_length_is_shortened_for_the_attempt_suffix(
        self, client: TrainerClient, build_request: BuildRequest
    ) -> None:
        request = build_request(raise_error, {"reason": "no luck"}, owner=_TASK).with_name("n" * naming.MAX_NAME_LENGTH)
        client.wait(client.submit(request))
        second = client.submit(request)
        client.wait(second)
        assert second.name == "n" * (naming.MAX_NAME_LENGTH - 2) + "-1"
        assert client.submit(request).name.endswith("-2")

    def test_a_cleared_task_creates_a_new_job(
        self, client: TrainerClient, build_request: BuildRequest, submit: Submit
    ) -> None:
        first = submit(owner=_TASK)
        client.wait(first)
        second = submit(owner=_CLEARED)
        assert second.name == build_request(owner=_TASK).get_attempt_name(1)
        assert submit(owner=_CLEARED) == second
        assert client.wait(second).succeeded
        assert client.get_job_outcome(first).succeeded

    @applies_to(runs_in_background=True)
    def test_a_cleared_task_cancels_its_running_job_first(self, client: TrainerClient, submit: Submit) -> None:
        first = submit(run_forever, owner=_TASK)
        second = submit(run_forever, owner=_CLEARED)
        ended = client.get_job_outcome(first)
        assert ended.diagnosis is not None
        assert (ended.status, ended.diagnosis.category) == ("Failed", Category.DELETED)
        assert client.observe(second).outcome is None

    @applies_to(runs_in_background=True)
    def test_the_job_of_a_cleared_task_starts_when_no_process_of_the_cancelled_job_is_left(
        self, client: TrainerClient, submit: Submit
    ) -> None:
        first = submit(end_slowly, owner=_TASK)
        assert next(client.get_job_logs(first.name, follow=True)) == "it runs"
        assert len(client.backend.list_processes(first)) == 1
        submit(owner=_CLEARED)
        assert client.backend.list_processes(first) == []

    def test_a_retry_with_a_different_request_attaches_and_logs_the_differing_fields(
        self, caplog: pytest.LogCaptureFixture, submit: Submit
    ) -> None:
        first = submit(return_value, {"value": 1}, owner=_TASK, env={"TRY": "1"})
        second = submit(return_value, {"value": 2}, owner=_TASK, env={"TRY": "2"})
        assert second == first
        warnings = [record for record in caplog.records if record.levelname == "WARNING"]
        (warning,) = [record.getMessage() for record in warnings if record.name.startswith("trainer_core.")]
        assert "differs in: trainer.code.args.value, trainer.env.TRY. " in warning

    def test_a_deleted_job_is_created_again(self, client: TrainerClient, submit: Submit) -> None:
        first = submit(owner=_TASK)
        client.delete_job(first.name)
        second = submit(owner=_TASK)
        assert second.name == first.name
        assert second != first
