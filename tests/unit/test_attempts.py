"""What a submit means, given what exists."""

from __future__ import annotations

import pytest

from trainer_core.attempts import Action, Found, decide
from trainer_core.errors import ConflictError, InvalidRequestError
from trainer_core.naming import job_name
from trainer_core.request import Owner, TrainJobRequest

KEY = "dag/run/task"


def a_request(name=None, owner=True, generation="1", env=None) -> TrainJobRequest:
    trainer = {"kind": "container", "image": "train:1", "env": env or {}}
    given = {"owner": Owner(key=KEY, slug="task", generation=generation)} if owner else {}
    return TrainJobRequest.parse({"name": name, "trainer": trainer, **given})


def a_job(status, request=None, attempt=0, generation="1", owner_key=KEY, name=None) -> Found:
    request = request or a_request()
    return Found(
        name=name or job_name("task", KEY, attempt),
        status=status,
        fingerprint=request.fingerprint(),
        owner_key=owner_key,
        generation=generation,
        attempt=attempt,
    )


def test_the_first_submit_creates():
    decision = decide(a_request(), [])

    assert (decision.action, decision.name, decision.attempt) == (Action.CREATE, job_name("task", KEY), 0)


@pytest.mark.parametrize("status", ["Created", "Suspended", "Running"])
def test_a_retry_attaches_to_the_live_job(status):
    decision = decide(a_request(), [a_job(status)])

    assert (decision.action, decision.name, decision.differs) == (Action.ATTACH, job_name("task", KEY), False)


def test_a_retry_takes_over_the_outcome_of_a_complete_job():
    assert decide(a_request(), [a_job("Complete")]).action is Action.HAND_OVER


def test_a_retry_after_a_failure_is_the_next_attempt():
    decision = decide(a_request(), [a_job("Failed", attempt=0), a_job("Failed", attempt=1)])

    assert (decision.action, decision.name, decision.attempt) == (Action.CREATE, job_name("task", KEY, 2), 2)


def test_the_latest_attempt_counts_whatever_the_order():
    jobs = [a_job("Running", attempt=2), a_job("Failed", attempt=0), a_job("Failed", attempt=1)]

    assert decide(a_request(), jobs).name == job_name("task", KEY, 2)


def test_a_cleared_task_ends_the_old_job_and_runs_anew():
    decision = decide(a_request(generation="2"), [a_job("Running")])

    assert (decision.action, decision.attempt) == (Action.CREATE, 1)
    assert decision.end_first == (job_name("task", KEY),)


def test_a_cleared_task_does_not_get_the_old_result():
    decision = decide(a_request(generation="2"), [a_job("Complete")])

    assert (decision.action, decision.attempt, decision.end_first) == (Action.CREATE, 1, ())


def test_a_definition_that_differs_per_try_attaches_and_says_so():
    decision = decide(a_request(env={"TRY": "2"}), [a_job("Running", a_request(env={"TRY": "1"}))])

    assert (decision.action, decision.differs) == (Action.ATTACH, True)


def test_a_name_of_another_owner_is_refused():
    with pytest.raises(ConflictError, match="belongs to 'somebody'"):
        decide(a_request(name="mine"), [a_job("Running", name="mine", owner_key="somebody")])


def test_attempts_of_a_given_name_are_numbered():
    assert decide(a_request(name="mine"), [a_job("Failed", name="mine")]).name == "mine-1"


def test_without_an_owner_the_same_request_attaches():
    request = a_request(name="mine", owner=False)

    assert decide(request, [a_job("Running", request, name="mine", owner_key=None)]).action is Action.ATTACH
    assert decide(request, [a_job("Failed", request, name="mine", owner_key=None)]).action is Action.HAND_OVER


def test_without_an_owner_another_request_is_refused():
    job = a_job("Complete", a_request(name="mine", owner=False, env={"A": "1"}), name="mine", owner_key=None)

    with pytest.raises(ConflictError, match=r"exists with another request.*trainjob delete mine"):
        decide(a_request(name="mine", owner=False), [job])


def test_without_an_owner_a_job_that_has_one_is_not_taken():
    with pytest.raises(ConflictError, match="belongs to"):
        decide(a_request(name="mine", owner=False), [a_job("Running", name="mine")])


def test_a_request_with_neither_name_nor_owner_is_refused():
    with pytest.raises(InvalidRequestError, match="neither a name nor an owner"):
        decide(a_request(owner=False), [])
