"""What a submit does, given the TrainJobs that exist."""

from __future__ import annotations

import pytest

from trainer_core.base.errors import ConflictError, InvalidRequestError
from trainer_core.base.naming import build_job_name
from trainer_core.lifecycle.adoption import Action, Decision, ExistingJob, decide, describe_existing, list_other_names
from trainer_core.model.request import Owner, SearchEntry, TrainJobRequest

KEY = "dag/run/task"


def a_request(name=None, owner=True, generation="1", env=None) -> TrainJobRequest:
    trainer = {"kind": "container", "image": "train:1", "env": env or {}}
    owned = {"owner": Owner(key=KEY, slug="task", generation=generation)} if owner else {}
    return TrainJobRequest.parse({"name": name, "trainer": trainer, **owned})


def a_job(status, request=None, attempt=0, generation="1", owner_key=KEY, name=None) -> ExistingJob:
    request = request or a_request()
    return ExistingJob(
        name=name or build_job_name("task", KEY, attempt),
        status=status,
        fingerprint=request.fingerprint(),
        owner_key=owner_key,
        generation=generation,
        attempt=attempt,
    )


def test_the_first_submit_creates():
    decision = decide(a_request(), [])

    assert (decision.action, decision.name, decision.attempt) == (Action.CREATE, build_job_name("task", KEY), 0)


@pytest.mark.parametrize("status", ["Created", "Suspended", "Running"])
def test_a_retry_attaches_to_a_job_that_has_not_ended(status):
    decision = decide(a_request(), [a_job(status)])

    assert decision == Decision(Action.ATTACH, build_job_name("task", KEY), attempt=0, differs=False)


def test_a_retry_reuses_the_result_of_a_complete_job():
    assert decide(a_request(), [a_job("Complete")]).action is Action.REUSE_RESULT


def test_a_retry_after_a_failure_creates_the_next_attempt():
    decision = decide(a_request(), [a_job("Failed", attempt=0), a_job("Failed", attempt=1)])

    assert (decision.action, decision.name, decision.attempt) == (Action.CREATE, build_job_name("task", KEY, 2), 2)


def test_another_owner_may_have_the_name_of_the_first_attempt_or_of_the_next_one():
    first, second, third = (build_job_name("task", KEY, attempt) for attempt in range(3))

    assert list_other_names(a_request(), []) == {first}
    assert list_other_names(a_request(), [a_job("Failed", attempt=0)]) == {second}
    assert list_other_names(a_request(), [a_job("Failed", attempt=1)]) == {first, third}


def test_only_a_failed_attempt_of_the_same_generation_is_retried():
    failed = a_job("Failed")

    assert decide(a_request(), [failed]).retried == failed.name
    assert decide(a_request(generation="2"), [failed]).retried is None


@pytest.mark.parametrize(
    ("status", "action"),
    [("Running", Action.ATTACH), ("Complete", Action.REUSE_RESULT), ("Failed", Action.REUSE_RESULT)],
)
def test_an_entry_of_a_search_is_created_once_however_it_ends(status, action):
    request = a_request().with_fields(search=SearchEntry(key=KEY, entry=0, definition={}))

    assert decide(request, [a_job(status, attempt=1)]) == Decision(action, build_job_name("task", KEY, 1), 1)
    assert decide(request, [a_job(status, generation="0")]).action is Action.CREATE


def test_the_latest_attempt_counts_in_any_order():
    jobs = [a_job("Running", attempt=2), a_job("Failed", attempt=0), a_job("Failed", attempt=1)]

    assert decide(a_request(), jobs).name == build_job_name("task", KEY, 2)


def test_attempts_are_ordered_as_numbers_and_a_deleted_one_leaves_a_gap():
    jobs = [a_job("Failed", attempt=attempt) for attempt in (9, 2, 10, 0, 5)]
    decision = decide(a_request(), jobs)

    assert (decision.action, decision.name, decision.attempt) == (Action.CREATE, build_job_name("task", KEY, 11), 11)
    assert decision.ended_attempts == tuple(build_job_name("task", KEY, attempt) for attempt in (0, 2, 5, 9, 10))


def test_a_cleared_task_cancels_the_old_job_and_creates_the_next_attempt():
    decision = decide(a_request(generation="2"), [a_job("Running")])

    assert (decision.action, decision.attempt) == (Action.CREATE, 1)
    assert decision.cancel_first == (build_job_name("task", KEY),)


def test_a_cleared_task_does_not_reuse_the_old_result():
    decision = decide(a_request(generation="2"), [a_job("Complete")])

    assert (decision.action, decision.attempt, decision.cancel_first) == (Action.CREATE, 1, ())


@pytest.mark.parametrize("status", ["Created", "Suspended", "Running", "Complete", "Failed"])
def test_an_older_generation_is_refused(status):
    jobs = [a_job("Failed", generation="1"), a_job(status, attempt=1, generation="2")]

    with pytest.raises(ConflictError, match=r"-1' belongs to generation 2 of owner .*to generation 1, which is older"):
        decide(a_request(generation="1"), jobs)


def test_an_older_generation_is_refused_although_the_latest_attempt_is_older():
    jobs = [a_job("Failed", generation="10"), a_job("Running", attempt=1, generation="9")]

    with pytest.raises(ConflictError, match="belongs to generation 10"):
        decide(a_request(generation="9"), jobs)


def test_generations_are_compared_as_numbers():
    assert decide(a_request(generation="10"), [a_job("Running", generation="9")]).action is Action.CREATE


@pytest.mark.parametrize(
    ("generation", "other"), [("a", "b"), ("b", "a"), ("1", "abc"), ("abc", "1"), (None, "1"), ("1", None)]
)
def test_generations_without_an_order_that_differ_are_new_runs(generation, other):
    decision = decide(a_request(generation=generation), [a_job("Running", generation=other)])

    assert (decision.action, len(decision.cancel_first)) == (Action.CREATE, 1)


def test_the_next_attempt_names_the_attempts_that_have_ended():
    jobs = [a_job("Failed"), a_job("Running", attempt=1)]
    decision = decide(a_request(generation="2"), jobs)

    assert decision.ended_attempts == (build_job_name("task", KEY),)
    assert decision.cancel_first == (build_job_name("task", KEY, 1),)


def test_a_cleared_task_cancels_every_job_that_has_not_ended():
    jobs = [a_job("Running"), a_job("Complete", attempt=1), a_job("Created", attempt=2)]
    decision = decide(a_request(generation="2"), jobs)

    assert decision.cancel_first == (build_job_name("task", KEY), build_job_name("task", KEY, 2))
    assert (decision.attempt, decision.ended_attempts) == (3, (build_job_name("task", KEY, 1),))


def test_a_definition_that_differs_per_try_attaches_and_is_reported():
    decision = decide(a_request(env={"TRY": "2"}), [a_job("Running", a_request(env={"TRY": "1"}))])

    assert (decision.action, decision.differs) == (Action.ATTACH, True)


def test_a_name_of_another_owner_is_refused():
    with pytest.raises(ConflictError, match="belongs to owner 'other'"):
        decide(a_request(name="mine"), [a_job("Running", name="mine", owner_key="other")])


def test_a_name_of_a_job_without_an_owner_is_refused():
    with pytest.raises(ConflictError, match=r"'mine' exists and has no owner"):
        decide(a_request(name="mine"), [a_job("Running", name="mine", owner_key=None)])


def test_attempts_of_a_given_name_are_numbered():
    assert decide(a_request(name="mine"), [a_job("Failed", name="mine")]).name == "mine-1"


def test_without_an_owner_a_name_that_is_free_is_created():
    request = a_request(name="mine", owner=False)

    decision = decide(request, [a_job("Running", request, name="yours", owner_key=None)])
    assert (decision.action, decision.name, decision.attempt, decision.differs) == (Action.CREATE, "mine", 0, False)


def test_without_an_owner_the_same_request_attaches():
    request = a_request(name="mine", owner=False)

    assert decide(request, [a_job("Running", request, name="mine", owner_key=None)]).action is Action.ATTACH
    assert decide(request, [a_job("Failed", request, name="mine", owner_key=None)]).action is Action.REUSE_RESULT


def test_without_an_owner_another_request_is_refused():
    job = a_job("Complete", a_request(name="mine", owner=False, env={"A": "1"}), name="mine", owner_key=None)

    with pytest.raises(ConflictError, match=r"exists with another request.*trainjob delete mine"):
        decide(a_request(name="mine", owner=False), [job])


def test_without_an_owner_a_job_that_has_an_owner_is_refused():
    with pytest.raises(ConflictError, match="belongs to"):
        decide(a_request(name="mine", owner=False), [a_job("Running", name="mine")])


def test_a_person_reads_that_nothing_new_was_started_and_how_to_continue_a_failed_job():
    started = "TrainJob 'mine' exists and is {}: nothing new was started"

    assert describe_existing("mine", "Running") == started.format("Running")
    assert describe_existing("mine", "Failed") == f"{started.format('Failed')}; continue it with `trainjob retry mine`"


def test_a_request_with_neither_name_nor_owner_is_refused():
    with pytest.raises(InvalidRequestError, match="neither a name nor an owner"):
        decide(a_request(owner=False), [])
