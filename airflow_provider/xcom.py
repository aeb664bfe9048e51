"""XComs and final log lines of a TrainJob's task."""

from __future__ import annotations

from typing import Any

from trainer_core.jobs import Outcome, TrainJobRef

__all__ = ["log_outcome", "push_outcome", "push_ref"]


def push_ref(ti: Any, ref: TrainJobRef) -> None:
    """Push the job's ref. Call it right after submission: if the worker is killed, the next process reads it."""
    ti.xcom_push(key="ref", value=ref.to_dict())


def push_outcome(ti: Any, outcome: Outcome) -> None:
    """Push status, metrics, artifacts, steps of checkpoints, use of resources and, of a failed job, the diagnosis."""
    data = outcome.to_dict()
    for key in ("status", "metrics", "artifacts"):
        ti.xcom_push(key=key, value=data[key])
    for key in ("checkpoint", "resumed_from"):
        if data[key] is not None:
            ti.xcom_push(key=key, value=int(data[key]))
    if outcome.resource_use is not None:
        ti.xcom_push(key="resource_use", value=data["resource_use"])
    if outcome.diagnosis is not None:
        # Log lines and traceback belong in the task's log, not in the database.
        diagnosis = outcome.diagnosis.model_dump(mode="json", exclude={"log_tail", "traceback"}, exclude_none=True)
        ti.xcom_push(key="diagnosis", value={**diagnosis, "reason": _mask(diagnosis["reason"])})


def log_outcome(log: Any, outcome: Outcome, log_is_written: bool) -> None:
    """Log how the job ended: its status, or the traceback or last log lines of a failed job.

    Args:
        log: Logger of the task.
        outcome: Outcome of the job.
        log_is_written: Whether the task's log has the whole log of the job, with the traceback in it.
    """
    diagnosis = outcome.diagnosis
    if diagnosis is None:
        log.info("TrainJob %s is %s", outcome.job.name, outcome.status)
        if outcome.missing_result:
            log.warning("TrainJob %s: %s", outcome.job.name, outcome.missing_result)
        return
    if log_is_written:
        return
    if diagnosis.traceback:
        log.error("The training function failed:\n%s", diagnosis.traceback)
    elif diagnosis.log_tail:
        log.error("The last lines of %s:\n%s", diagnosis.step or "its log", "\n".join(diagnosis.log_tail))


def _mask(text: str) -> str:
    """Mask secrets: the message of an exception in the training function may contain one."""
    from airflow.sdk._shared.secrets_masker import redact  # only workers need it, and they have imported it already

    return str(redact(text))
