"""Exceptions of failed tasks: their classes by diagnosis, and how Airflow handles them."""

from __future__ import annotations

import pytest
from airflow.exceptions import AirflowException

from airflow_provider import exceptions
from airflow_provider.compat import AirflowFailException
from trainer_core import TrainJobRef
from trainer_core.model.jobs import Category, Diagnosis, Outcome


def failure(category, retryable):
    diagnosis = Diagnosis(category=category, reason="it went wrong", step="node-0", retryable=retryable)
    ref = TrainJobRef("local", "/home", "a-job", "uid")
    return exceptions.build_failure(Outcome(ref=ref.to_dict(), status="Failed", diagnosis=diagnosis))


NAMES = {
    Category.USER_CODE: "TrainJobUserCodeError",
    Category.OUT_OF_MEMORY: "TrainJobOutOfMemoryError",
    Category.IMAGE: "TrainJobImageError",
    Category.SCHEDULING: "TrainJobUnschedulableError",
    Category.PREEMPTED: "TrainJobPreemptedError",
    Category.NODE_LOST: "TrainJobNodeLostError",
    Category.STALLED: "TrainJobStalledError",
    Category.DEADLINE: "TrainJobDeadlineError",
    Category.INITIALIZER: "TrainJobInitializerError",
    Category.REJECTED: "TrainJobRefusedError",
    Category.DELETED: "TrainJobDeletedError",
    Category.INFRASTRUCTURE: "TrainJobInfrastructureError",
    Category.STOPPED_EARLY: "TrainJobStoppedEarlyError",
}


@pytest.mark.parametrize("retryable", [True, False])
@pytest.mark.parametrize("category", Category)
def test_the_class_of_the_exception_follows_from_the_diagnosis(category, retryable):
    error = failure(category, retryable)
    assert type(error).__name__ == NAMES[category]
    assert isinstance(error, getattr(exceptions, NAMES[category]))
    assert isinstance(error, exceptions.TrainJobFailedError)
    assert isinstance(error, AirflowException)


@pytest.mark.parametrize("category", Category)
def test_only_failures_that_no_retry_can_fix_are_not_retried(category):
    assert isinstance(failure(category, retryable=False), AirflowFailException)
    assert not isinstance(failure(category, retryable=True), AirflowFailException)


def test_the_message_is_the_diagnosis():
    error = failure(Category.PREEMPTED, retryable=True)
    assert str(error) == "TrainJob 'a-job' is Failed: Preempted in node-0: it went wrong (a retry can help)"
    assert error.outcome.diagnosis.category is Category.PREEMPTED


@pytest.mark.parametrize("category", Category)
def test_an_airflow_retry_policy_matches_the_class_name(category):
    retry_policy = pytest.importorskip("airflow.sdk.definitions.retry_policy", reason="Airflow 3.3 has retry policies")
    rule = retry_policy.RetryRule(f"airflow_provider.exceptions.{NAMES[category]}", retry_policy.RetryAction.FAIL)
    policy = retry_policy.ExceptionRetryPolicy(rules=[rule])
    decision = policy.evaluate(failure(category, retryable=True), try_number=1, max_tries=3)
    assert decision.action is retry_policy.RetryAction.FAIL


def test_a_failure_without_a_diagnosis_is_not_retried():
    ref = TrainJobRef("local", "/home", "a-job", "uid")
    error = exceptions.build_failure(Outcome(ref=ref.to_dict(), status="Failed"))
    assert isinstance(error, exceptions.TrainJobFailedForGoodError)
