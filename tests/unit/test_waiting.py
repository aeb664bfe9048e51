"""Waiting: one observation or error and the time in, a decision out."""

from __future__ import annotations

import pytest

from trainer_core import Category, Diagnosis, Outcome, TrainJobRef, waiting
from trainer_core.errors import BackendUnavailableError, JobFailedError, JobNotFoundError, WaitTimeoutError
from trainer_core.observation import Observation

REF = TrainJobRef("local", "/home", "job", "uid")
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
    assert waiting.start(REF, now=0, timeout=10).seen(Observation("Running"), now=9.99).delay == pytest.approx(0.01)


def test_a_deadline_that_has_passed_ends_the_waiting_not_the_job():
    with pytest.raises(WaitTimeoutError, match=r"still Running.*was not stopped.*trainjob cancel job"):
        waiting.start(REF, now=0, timeout=10).seen(Observation("Running"), now=10)


def test_errors_are_borne_for_a_while():
    state = waiting.start(REF, now=0)
    for _ in range(waiting.MAX_ERRORS_IN_A_ROW - 1):
        state = state.failed(BackendUnavailableError("away"), now=1)

    with pytest.raises(BackendUnavailableError, match="away"):
        state.failed(BackendUnavailableError("away"), now=1)


def test_an_answer_makes_errors_forgotten():
    state = waiting.start(REF, now=0)
    for _ in range(3 * waiting.MAX_ERRORS_IN_A_ROW):
        state = state.failed(BackendUnavailableError("away"), now=1).seen(Observation("Running"), now=1)

    assert state.errors == 0


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
