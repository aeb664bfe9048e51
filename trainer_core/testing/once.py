"""Exactly once: however often and by whomever a request is submitted, one job comes of it."""

# ruff: noqa: S101, D102 -- assert is what a test does, and its name says what it shows

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainer_core import naming
from trainer_core.client import TrainerClient
from trainer_core.errors import ConflictError
from trainer_core.outcome import Category
from trainer_core.request import Owner, TrainJobRequest
from trainer_core.testing.case import Contract, where
from trainer_core.testing.functions import fails, goes_on, returns

__all__ = ["ExactlyOnce"]

Ask = Callable[..., TrainJobRequest]

_TASK = Owner(key="dag/run/task", slug="train", generation="1")
#: As above, after a person has cleared the task.
_CLEARED = Owner(key="dag/run/task", slug="train", generation="2")
_STRANGER = Owner(key="another/run/task", slug="train", generation="1")
#: So long that the suffix of a later attempt shortens what comes before it.
_LONG = Owner(key="dag/run/task", slug="a-task-id-longer-than-any-label-can-be", generation="1")


def _names(client: TrainerClient) -> list[str]:
    return sorted(job.name for job in client.list_jobs())


class ExactlyOnce(Contract):
    """`submit` gets or creates."""

    def test_the_same_request_again_gives_the_same_job(self, client: TrainerClient, ask: Ask) -> None:
        first = client.submit(ask())
        assert client.submit(ask()) == first
        client.wait(first)
        assert client.submit(ask()) == first
        assert _names(client) == ["job"]

    def test_a_name_taken_by_another_request_is_refused(self, client: TrainerClient, ask: Ask) -> None:
        first = client.submit(ask(returns, {"value": 1}))
        with pytest.raises(ConflictError, match="'job' exists with another request"):
            client.submit(ask(returns, {"value": 2}))
        assert client.ref("job") == first
        assert client.wait(first).result == 1

    def test_a_name_that_has_an_owner_is_refused_to_others(self, client: TrainerClient, ask: Ask) -> None:
        name = client.submit(ask(owner=_TASK)).name
        with pytest.raises(ConflictError, match="'dag/run/task'"):
            client.submit(ask(name=name))
        with pytest.raises(ConflictError, match="'dag/run/task'"):
            client.submit(ask(owner=_STRANGER).named(name))

    def test_submitters_at_the_same_time_get_the_same_job(self, client: TrainerClient, ask: Ask) -> None:
        with ThreadPoolExecutor(4) as threads:
            refs = list(threads.map(client.submit, [ask()] * 4))
        assert set(refs) == {client.ref("job")}
        assert _names(client) == ["job"]

    @where(runs_beside_its_client=True)
    def test_a_retry_attaches_to_a_live_job(self, client: TrainerClient, ask: Ask) -> None:
        first = client.submit(ask(goes_on, owner=_TASK))
        assert client.submit(ask(goes_on, owner=_TASK)) == first
        assert client.observe(first).outcome is None

    def test_a_retry_gets_the_outcome_of_a_complete_job(self, client: TrainerClient, ask: Ask) -> None:
        outcome = client.wait(client.submit(ask(owner=_TASK)))
        assert client.wait(client.submit(ask(owner=_TASK))) == outcome
        assert len(client.list_jobs()) == 1

    def test_a_retry_of_a_failed_job_is_the_next_attempt(self, client: TrainerClient, ask: Ask) -> None:
        request = ask(fails, {"reason": "no luck"}, owner=_LONG)
        names = []
        for _ in range(3):
            ref = client.submit(request)
            client.wait(ref)
            names.append(ref.name)
        assert names == [request.attempt_name(0), request.attempt_name(1), request.attempt_name(2)]
        assert sorted(found.attempt for found in client.find(request)) == [0, 1, 2]

    def test_a_later_attempt_is_handed_over_too(self, client: TrainerClient, ask: Ask) -> None:
        client.wait(client.submit(ask(fails, {"reason": "no luck"}, owner=_LONG)))
        second = client.submit(ask(owner=_LONG))
        client.wait(second)
        assert client.submit(ask(owner=_LONG)) == second

    def test_attempts_at_a_given_name_have_that_name_and_a_number(self, client: TrainerClient, ask: Ask) -> None:
        request = ask(fails, {"reason": "no luck"}, owner=_TASK).named("digits")
        refs = [client.submit(request)]
        client.wait(refs[0])
        refs.append(client.submit(request))
        assert [ref.name for ref in refs] == ["digits", "digits-1"]

    def test_the_longest_name_leaves_room_for_the_number_of_an_attempt(self, client: TrainerClient, ask: Ask) -> None:
        request = ask(fails, {"reason": "no luck"}, owner=_TASK).named("n" * naming.MAX_NAME_LENGTH)
        client.wait(client.submit(request))
        second = client.submit(request)
        client.wait(second)
        assert second.name == "n" * (naming.MAX_NAME_LENGTH - 2) + "-1"
        assert client.submit(request).name.endswith("-2")

    def test_a_task_that_was_cleared_makes_a_new_job(self, client: TrainerClient, ask: Ask) -> None:
        first = client.submit(ask(owner=_TASK))
        client.wait(first)
        second = client.submit(ask(owner=_CLEARED))
        assert second.name == ask(owner=_TASK).attempt_name(1)
        assert client.submit(ask(owner=_CLEARED)) == second
        assert client.wait(second).succeeded
        assert client.outcome(first).succeeded

    @where(runs_beside_its_client=True)
    def test_a_task_that_was_cleared_ends_its_live_job_first(self, client: TrainerClient, ask: Ask) -> None:
        first = client.submit(ask(goes_on, owner=_TASK))
        second = client.submit(ask(goes_on, owner=_CLEARED))
        ended = client.outcome(first)
        assert ended.diagnosis is not None
        assert (ended.status, ended.diagnosis.category) == ("Failed", Category.DELETED)
        assert client.observe(second).outcome is None

    def test_a_retry_that_asks_for_something_else_takes_what_there_is_and_says_what_differs(
        self, client: TrainerClient, ask: Ask, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = client.submit(ask(returns, {"value": 1}, owner=_TASK, env={"TRY": "1"}))
        second = client.submit(ask(returns, {"value": 2}, owner=_TASK, env={"TRY": "2"}))
        assert second == first
        warnings = [record for record in caplog.records if record.levelname == "WARNING"]
        (warning,) = [record.getMessage() for record in warnings if record.name.startswith("trainer_core.")]
        assert "asks for something else in: trainer.code.args.value, trainer.env.TRY. " in warning

    def test_a_job_that_was_deleted_is_made_anew(self, client: TrainerClient, ask: Ask) -> None:
        first = client.submit(ask(owner=_TASK))
        client.delete_job(first.name)
        second = client.submit(ask(owner=_TASK))
        assert second.name == first.name
        assert second != first
