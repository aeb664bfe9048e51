"""What a task hands over to others: XComs while the TrainJob runs and when it has ended, its result, or its failure."""

from __future__ import annotations

from typing import Any

from airflow_provider import exceptions
from airflow_provider.exceptions import TrainJobFailedError
from trainer_core import waiting
from trainer_core.outcome import Outcome
from trainer_core.ref import TrainJobRef

__all__ = ["failure", "push_outcome", "push_ref", "report"]


def push_ref(ti: Any, ref: TrainJobRef) -> None:
    """Say where the TrainJob is. To be called right after submitting: who comes after a killed worker reads it."""
    ti.xcom_push(key="ref", value=ref.to_dict())


def push_outcome(ti: Any, outcome: Outcome) -> None:
    """Say what the TrainJob left, failed or not."""
    left = outcome.to_dict()
    for key in ("status", "metrics", "artifacts"):
        ti.xcom_push(key=key, value=left[key])
    if outcome.diagnosis is not None:
        # Without what training printed: that belongs into logs, not into the database.
        why = outcome.diagnosis.model_dump(mode="json", exclude={"log_tail", "traceback"}, exclude_none=True)
        ti.xcom_push(key="diagnosis", value={**why, "reason": _masked(why["reason"])})


def report(log: Any, outcome: Outcome) -> None:
    """Write into the task's log what a reader wants to see last."""
    diagnosis = outcome.diagnosis
    if diagnosis is None:
        log.info("TrainJob %s is %s", outcome.job.name, outcome.status)
        _report_missing_result(log, outcome)
        return
    if diagnosis.traceback:
        log.error("The training function failed:\n%s", diagnosis.traceback)
    elif diagnosis.log_tail:
        log.error("The last lines of %s:\n%s", diagnosis.step or "its log", "\n".join(diagnosis.log_tail))


def failure(outcome: Outcome, *, retry_can_help: bool = True) -> TrainJobFailedError:
    """Return the exception for a TrainJob that failed.

    Args:
        outcome: What it left.
        retry_can_help: False for a task that only reads: it would read the same again.
    """
    retryable = retry_can_help and outcome.diagnosis is not None and outcome.diagnosis.retryable
    return exceptions.failed(waiting.failure_message(outcome), outcome, for_good=not retryable)


def _masked(text: str) -> str:
    """What a training function raised may quote a secret that it was given."""
    from airflow.sdk._shared.secrets_masker import redact  # the worker has it loaded already, as `secrets` says

    return str(redact(text))


def _report_missing_result(log: Any, outcome: Outcome) -> None:
    if outcome.result_truncated:
        log.warning("Its result is larger than what travels, and left out; set result_uri to have it in a file")
    elif outcome.result_note:
        log.warning("It has no result: %s", outcome.result_note)
