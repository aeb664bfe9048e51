"""The state of a wait: one observation or error and the time in, the next state out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trainer_core import Category, Diagnosis, Outcome, TrainJobRef
from trainer_core.base.errors import (
    BackendUnavailableError,
    InvalidRequestError,
    JobElsewhereError,
    JobNotFoundError,
    WaitTimeoutError,
)
from trainer_core.lifecycle import wait_state
from trainer_core.model.jobs import JobFailedError, Observation, PendingFailure, Restarts

REF = TrainJobRef("local", "/home", "job", "uid")
UNSCHEDULABLE = PendingFailure(
    Diagnosis(category=Category.SCHEDULING, reason="no node has room", retryable=True), grace=300
)
DONE = Outcome(ref=REF.to_dict(), status="Complete", result=1)
FAILED = Outcome(
    ref=REF.to_dict(),
    status="Failed",
    diagnosis=Diagnosis(category=Category.PREEMPTED, reason="evicted", retryable=True),
)
PENDING = Observation("Created", pending_failure=UNSCHEDULABLE)
ENDED = Observation("Complete", outcome=DONE)


def test_an_ended_job_finishes_the_wait_with_the_first_observation():
    assert wait_state.start(REF, now=0).on_observation(ENDED, now=5).outcome is DONE


def test_an_ended_job_finishes_the_wait_even_after_the_deadline():
    assert wait_state.start(REF, now=0, timeout=1).on_observation(ENDED, now=50).outcome is DONE


def test_attempts_after_errors_become_less_frequent_up_to_a_limit():
    state = wait_state.start(REF, now=0)
    delays = []
    for _ in range(2000):
        state = state.on_error(BackendUnavailableError("away"), now=1)
        delays.append(state.timeout(now=1))

    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (0.1, 2.0)


def test_the_last_observation_is_at_the_deadline():
    state = wait_state.start(REF, now=0, timeout=10).on_observation(Observation("Running"), now=9.99)

    assert state.timeout(now=9.99) == pytest.approx(0.01)


def test_a_wait_leaves_it_to_the_follower_to_report_changes():
    state = wait_state.start(REF, now=0).on_observation(Observation("Running"), now=1)

    assert state.timeout(now=1) > 10


def test_a_deadline_ends_the_wait_and_not_the_job():
    with pytest.raises(WaitTimeoutError, match=r"still Running.*was not stopped.*trainjob cancel job"):
        wait_state.start(REF, now=0, timeout=10).on_observation(Observation("Running"), now=10)


def test_an_unreachable_backend_is_tolerated_for_half_an_hour():
    state = wait_state.start(REF, now=0)
    for now in range(0, 1800, 60):
        state = state.on_error(BackendUnavailableError("away"), now=now)

    with pytest.raises(BackendUnavailableError, match="away"):
        state.on_error(BackendUnavailableError("away"), now=1800)


def test_an_unreachable_backend_is_tolerated_for_half_an_hour_since_it_was_last_reached():
    away = BackendUnavailableError("away")
    state = wait_state.start(REF, now=0).on_error(away, now=0)
    state = state.on_observation(Observation("Running"), now=1700).on_error(away, now=1790)

    assert state.on_error(away, now=1790 + 1799).outcome is None


def test_a_backend_that_refuses_for_good_is_tolerated_a_few_times_only():
    refused = BackendUnavailableError("certificate has expired", transient=False)
    state = wait_state.start(REF, now=0)
    for _ in range(wait_state.MAX_CONSECUTIVE_ERRORS - 1):
        state = state.on_error(refused, now=1)

    with pytest.raises(BackendUnavailableError, match="expired"):
        state.on_error(refused, now=1)


def test_a_job_of_another_host_ends_the_wait_at_once():
    with pytest.raises(JobElsewhereError, match="lives on host-2"):
        wait_state.start(REF, now=0).on_error(JobElsewhereError("job lives on host-2"), now=1)


def test_an_error_after_the_deadline_ends_the_wait_and_not_the_job():
    with pytest.raises(WaitTimeoutError, match=r"could not be reached \(away\).*was not stopped"):
        wait_state.start(REF, now=0, timeout=10).on_error(BackendUnavailableError("away"), now=10)


def test_the_next_attempt_after_an_error_is_not_after_the_deadline():
    state = wait_state.start(REF, now=0, timeout=10)
    for _ in range(5):
        state = state.on_error(BackendUnavailableError("away"), now=9.9)

    assert state.timeout(now=9.9) == pytest.approx(0.1)
    assert state.timeout(now=10.5) == 0


def test_other_errors_are_tolerated_a_few_times_in_a_row():
    state = wait_state.start(REF, now=0)
    for _ in range(wait_state.MAX_CONSECUTIVE_ERRORS - 1):
        state = state.on_error(InvalidRequestError("damaged"), now=1)

    with pytest.raises(InvalidRequestError, match="damaged"):
        state.on_error(InvalidRequestError("damaged"), now=1)


def test_an_observation_resets_the_count_of_errors():
    state = wait_state.start(REF, now=0)
    for _ in range(3 * wait_state.MAX_CONSECUTIVE_ERRORS):
        state = state.on_error(InvalidRequestError("damaged"), now=1).on_observation(Observation("Running"), now=1)

    assert state.errors == 0


def test_a_job_with_a_pending_failure_is_cancelled_after_the_grace():
    state = wait_state.start(REF, now=0).on_observation(PENDING, now=1)
    assert state.outcome is None
    assert state.timeout(now=290) == pytest.approx(11)

    state = state.on_observation(PENDING, now=301)

    assert state.outcome.diagnosis is UNSCHEDULABLE.diagnosis
    assert state.should_cancel


def test_a_job_with_a_final_failure_is_cancelled_at_once():
    final = PendingFailure(Diagnosis(category=Category.IMAGE, reason="no such image"), grace=0)
    state = wait_state.start(REF, now=0).on_observation(Observation("Created", pending_failure=final), now=1)

    assert state.should_cancel


def test_without_fail_fast_no_job_is_cancelled():
    state = wait_state.start(REF, now=0, fail_fast=False)

    assert state.on_observation(PENDING, now=1).outcome is None
    assert state.on_observation(PENDING, now=9999).outcome is None


def waits(start_within):
    """An observation of a job that waits for nodes: the backend reports the time that remains."""
    return Observation("Created", pending_failure=replace(UNSCHEDULABLE, start_within=start_within))


def test_a_job_that_does_not_start_in_time_is_cancelled_even_without_fail_fast():
    state = (
        wait_state.start(REF, now=0, fail_fast=False).on_observation(waits(30), now=1).on_observation(waits(20), now=11)
    )

    assert state.timeout(now=11) == 20
    assert state.on_observation(waits(0.1), now=30.9).outcome is None
    assert state.on_observation(waits(0), now=31).should_cancel


def test_the_time_in_which_a_job_must_start_does_not_prolong_the_grace():
    state = wait_state.start(REF, now=0)
    for now in (1, 100, 200, 300):
        state = state.on_observation(waits(9999 - now), now)
        assert state.outcome is None

    assert state.on_observation(waits(9000), now=301).should_cancel


def test_the_grace_starts_again_after_a_pending_failure_has_gone():
    state = wait_state.start(REF, now=0).on_observation(PENDING, now=1)
    state = state.on_observation(Observation("Running"), now=200)
    state = state.on_observation(PENDING, now=400)

    assert state.outcome is None
    assert state.timeout(now=690) == pytest.approx(10)


def test_an_earlier_pending_failure_explains_a_failure_without_evidence():
    crash = Diagnosis(category=Category.USER_CODE, reason="KeyError: 'x'", step="node-0")
    vague = Diagnosis(category=Category.INFRASTRUCTURE, reason="failed without a reported reason", retryable=True)
    crashing = Observation("Running", pending_failure=PendingFailure(crash))
    state = wait_state.start(REF, now=0).on_observation(crashing, now=1)
    state = state.on_observation(Observation("Running"), now=2)

    ended = state.on_observation(Observation("Failed", outcome=replace(FAILED, diagnosis=vague)), now=3)

    assert ended.outcome.diagnosis is crash
    assert not ended.should_cancel


def test_an_earlier_pending_failure_does_not_replace_a_diagnosis_with_evidence():
    crash = PendingFailure(Diagnosis(category=Category.USER_CODE, reason="KeyError: 'x'", step="node-0"))
    state = wait_state.start(REF, now=0).on_observation(Observation("Running", pending_failure=crash), now=1)
    lost = Diagnosis(category=Category.INFRASTRUCTURE, reason="the engine stopped", step="node-1")

    decided = Diagnosis(category=Category.INFRASTRUCTURE, reason="it is lost; restart 1 of 3 follows", retryable=True)
    by_policy = replace(FAILED, diagnosis=decided, restarts=Restarts())

    for evident in (FAILED, replace(FAILED, diagnosis=lost), by_policy):
        ended = state.on_observation(Observation("Failed", outcome=evident, outcome_is_stored=True), now=2)
        assert (ended.outcome, ended.outcome_is_stored) == (evident, True)


def test_an_outcome_is_stored_if_the_backend_has_it_as_it_is():
    vague = replace(FAILED, diagnosis=Diagnosis(category=Category.INFRASTRUCTURE, reason="no reported reason"))
    state = wait_state.start(REF, now=0)
    explained = state.on_observation(PENDING, now=1)
    stored = Observation("Failed", outcome=vague, outcome_is_stored=True)

    assert state.on_observation(stored, now=2).outcome_is_stored
    assert not state.on_observation(replace(stored, outcome_is_stored=False), now=2).outcome_is_stored
    assert not explained.on_observation(stored, now=2).outcome_is_stored


def test_a_job_that_does_not_exist_any_more_counts_as_deleted():
    outcome = wait_state.start(REF, now=0).on_error(JobNotFoundError("gone"), now=1).outcome

    assert outcome.status == "Failed"
    assert outcome.diagnosis.category is Category.DELETED
    assert not outcome.diagnosis.retryable


def test_a_failed_outcome_raises_with_its_diagnosis_and_whether_a_retry_helps():
    with pytest.raises(JobFailedError, match=r"Preempted: evicted .a retry can help") as raised:
        wait_state.raise_if_failed(FAILED)

    assert raised.value.outcome is FAILED


def test_a_complete_outcome_is_returned():
    assert wait_state.raise_if_failed(DONE) is DONE


def test_another_process_counts_the_grace_from_the_first_observation():
    first = wait_state.start(REF, now=1000).on_observation(PENDING, now=1000)
    second = wait_state.restore(wait_state.start(REF, now=1250), json.loads(json.dumps(first.to_dict())))

    assert second.on_observation(PENDING, now=1299).outcome is None
    assert second.on_observation(PENDING, now=1300).should_cancel


def test_another_process_counts_errors_in_a_row_from_the_first_one():
    state = wait_state.start(REF, now=0)
    for number in range(wait_state.MAX_CONSECUTIVE_ERRORS - 1):
        state = state.on_error(InvalidRequestError("damaged"), now=number)
        state = wait_state.restore(wait_state.start(REF, now=number), json.loads(json.dumps(state.to_dict())))

    with pytest.raises(InvalidRequestError, match="damaged"):
        state.on_error(InvalidRequestError("damaged"), now=10)
    assert state.on_observation(Observation("Running"), now=10).to_dict() == {}


def test_another_process_counts_the_time_of_an_unavailable_backend_from_the_first_error():
    away = BackendUnavailableError("away")
    first = wait_state.start(REF, now=1000).on_error(away, now=1000)
    second = wait_state.restore(wait_state.start(REF, now=1500), json.loads(json.dumps(first.to_dict())))

    second.on_error(away, now=1000 + wait_state.MAX_UNAVAILABLE_SECONDS - 1)
    with pytest.raises(BackendUnavailableError, match="away"):
        second.on_error(away, now=1000 + wait_state.MAX_UNAVAILABLE_SECONDS)


def test_a_wait_without_a_pending_failure_has_nothing_to_restore():
    state = wait_state.start(REF, now=0).on_observation(Observation("Running"), now=1)

    assert state.to_dict() == {}
    assert wait_state.restore(state, {}) is state
