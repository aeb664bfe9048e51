"""Waiting: one observation or error and the time in, a decision out."""

from __future__ import annotations

import json

import pytest

from trainer_core import Category, Diagnosis, Outcome, TrainJobRef, waiting
from trainer_core.errors import (
    BackendUnavailableError,
    InvalidRequestError,
    JobFailedError,
    JobNotFoundError,
    WaitTimeoutError,
)
from trainer_core.observation import Observation, Trouble

REF = TrainJobRef("local", "/home", "job", "uid")
UNSCHEDULABLE = Trouble(Diagnosis(category=Category.SCHEDULING, reason="no node has room", retryable=True), grace=300)
DONE = Outcome(ref=REF.to_dict(), status="Complete", result=1)
FAILED = Outcome(
    ref=REF.to_dict(),
    status="Failed",
    diagnosis=Diagnosis(category=Category.PREEMPTED, reason="evicted", retryable=True),
)


def test_a_job_that_has_ended_is_done_at_the_first_look():
    assert waiting.start(REF, now=0).seen(Observation("Complete", outcome=DONE), now=5).outcome is DONE


def test_a_job_that_had_ended_is_done_even_after_the_deadline():
    assert waiting.start(REF, now=0, timeout=1).seen(Observation("Complete", outcome=DONE), now=50).outcome is DONE


def test_looks_come_less_often_up_to_a_limit():
    state = waiting.start(REF, now=0)
    delays = []
    for _ in range(40):
        state = state.seen(Observation("Running"), now=1)
        delays.append(state.delay)

    assert delays == sorted(delays)
    assert delays[-1] == 2.0


def test_the_last_look_is_at_the_deadline():
    state = waiting.start(REF, now=0, timeout=10).seen(Observation("Running"), now=9.99)

    assert state.patience(now=9.99) == pytest.approx(0.01)
    assert state.patience(now=9.99, pushed=True) == pytest.approx(0.01)


def test_who_is_told_of_changes_looks_only_now_and_then():
    state = waiting.start(REF, now=0).seen(Observation("Running"), now=1)

    assert state.patience(now=1, pushed=True) > 10 > state.patience(now=1)


def test_a_deadline_that_has_passed_ends_the_waiting_not_the_job():
    with pytest.raises(WaitTimeoutError, match=r"still Running.*was not stopped.*trainjob cancel job"):
        waiting.start(REF, now=0, timeout=10).seen(Observation("Running"), now=10)


def test_a_backend_that_is_away_is_borne_for_half_an_hour():
    state = waiting.start(REF, now=0)
    for now in range(0, 1800, 60):
        state = state.failed(BackendUnavailableError("away"), now=now)

    with pytest.raises(BackendUnavailableError, match="away"):
        state.failed(BackendUnavailableError("away"), now=1800)


def test_other_errors_are_borne_a_few_times():
    state = waiting.start(REF, now=0)
    for _ in range(waiting.MAX_ERRORS_IN_A_ROW - 1):
        state = state.failed(InvalidRequestError("damaged"), now=1)

    with pytest.raises(InvalidRequestError, match="damaged"):
        state.failed(InvalidRequestError("damaged"), now=1)


def test_an_answer_makes_errors_forgotten():
    state = waiting.start(REF, now=0)
    for _ in range(3 * waiting.MAX_ERRORS_IN_A_ROW):
        state = state.failed(InvalidRequestError("damaged"), now=1).seen(Observation("Running"), now=1)

    assert state.errors == 0


def test_a_job_in_trouble_for_longer_than_its_grace_is_given_up():
    state = waiting.start(REF, now=0).seen(Observation("Created", trouble=UNSCHEDULABLE), now=1)
    assert state.outcome is None
    assert state.patience(now=290, pushed=True) == pytest.approx(11)

    state = state.seen(Observation("Created", trouble=UNSCHEDULABLE), now=301)

    assert state.outcome.diagnosis is UNSCHEDULABLE.diagnosis
    assert state.gave_up


def test_a_job_that_cannot_get_well_is_given_up_at_once():
    trouble = Trouble(Diagnosis(category=Category.IMAGE, reason="no such image"), grace=0)

    assert waiting.start(REF, now=0).seen(Observation("Created", trouble=trouble), now=1).gave_up


def test_nothing_is_given_up_by_who_does_not_fail_fast():
    state = waiting.start(REF, now=0, fail_fast=False)

    assert state.seen(Observation("Created", trouble=UNSCHEDULABLE), now=1).outcome is None
    assert state.seen(Observation("Created", trouble=UNSCHEDULABLE), now=9999).outcome is None


def test_trouble_that_went_by_counts_from_anew_when_it_comes_back():
    state = waiting.start(REF, now=0).seen(Observation("Created", trouble=UNSCHEDULABLE), now=1)
    state = state.seen(Observation("Running"), now=200)
    state = state.seen(Observation("Created", trouble=UNSCHEDULABLE), now=400)

    assert state.outcome is None
    assert state.patience(now=690, pushed=True) == pytest.approx(10)


def test_trouble_seen_on_the_way_explains_a_failure_that_nothing_else_does():
    crash = Diagnosis(category=Category.USER_CODE, reason="KeyError: 'x'", step="node-0")
    vague = Diagnosis(category=Category.INFRASTRUCTURE, reason="it failed and nothing says why", retryable=True)
    state = waiting.start(REF, now=0).seen(Observation("Running", trouble=Trouble(crash)), now=1)
    state = state.seen(Observation("Running"), now=2)

    ended = state.seen(Observation("Failed", outcome=FAILED.model_copy(update={"diagnosis": vague})), now=3)

    assert ended.outcome.diagnosis is crash
    assert not ended.gave_up


def test_a_job_that_is_gone_was_deleted():
    outcome = waiting.start(REF, now=0).failed(JobNotFoundError("gone"), now=1).outcome

    assert outcome.status == "Failed"
    assert outcome.diagnosis.category is Category.DELETED
    assert not outcome.diagnosis.retryable


def test_a_failed_outcome_raises_with_its_diagnosis_and_what_a_retry_does():
    with pytest.raises(JobFailedError, match=r"Preempted: evicted .a retry can help") as raised:
        waiting.outcome_or_raise(FAILED)

    assert raised.value.outcome is FAILED


def test_a_complete_outcome_is_returned():
    assert waiting.outcome_or_raise(DONE) is DONE


def test_another_process_counts_what_was_wrong_from_its_beginning():
    first = waiting.start(REF, now=1000).seen(Observation("Created", trouble=UNSCHEDULABLE), now=1000)
    second = waiting.resume(waiting.start(REF, now=1250), json.loads(json.dumps(first.carried())))

    assert second.seen(Observation("Created", trouble=UNSCHEDULABLE), now=1299).outcome is None
    assert second.seen(Observation("Created", trouble=UNSCHEDULABLE), now=1300).gave_up


def test_where_nothing_was_wrong_there_is_nothing_to_carry():
    state = waiting.start(REF, now=0).seen(Observation("Running"), now=1)

    assert state.carried() == {}
    assert waiting.resume(state, {}) is state
