"""Cancellation of a TrainJob when its task is killed or times out."""

from __future__ import annotations

import threading
from typing import Any

from airflow_provider.compat import AirflowNotFoundException
from airflow_provider.hooks.trainjob import TrainJobHook
from trainer_core.errors import TrainerError
from trainer_core.jobs import TrainJobRef
from trainer_core.secrets import redact

__all__ = ["POLICIES", "cancel_job", "cancel_job_from_signal_handler", "check_on_kill"]

POLICIES = ("cancel", "keep")
#: Airflow sends SIGKILL five seconds after SIGTERM.
_SIGNAL_HANDLER_SECONDS = 4.0


def check_on_kill(policy: str) -> str:
    """Return the `on_kill` policy.

    Raises:
        ValueError: The policy is neither ``cancel`` nor ``keep``.
    """
    if policy not in POLICIES:
        raise ValueError(f"on_kill must be 'cancel' or 'keep', got {redact(policy)}")
    return policy


def cancel_job(hook: TrainJobHook, ref: TrainJobRef, log: Any) -> bool:
    """Cancel a TrainJob; return whether it is cancelled. An error is logged, not raised, so that the task can end."""
    try:
        hook.client.cancel(ref)
    except (TrainerError, ValueError, AirflowNotFoundException) as error:
        log.warning("TrainJob %s: cancellation failed, it may still run: %s", ref.name, error)
        return False
    return True


def cancel_job_from_signal_handler(hook: TrainJobHook, ref: TrainJobRef, log: Any) -> bool:
    """Cancel a TrainJob from a task's `on_kill`, a signal handler of Airflow; return whether it is cancelled.

    The interrupted code may hold locks. A thread therefore does the work; the signal handler waits for it a few seconds
    only and then releases the interrupted code. The hook's client must exist already: creating it may call Airflow.
    """
    cancelled: list[bool] = []
    thread = threading.Thread(
        target=lambda: cancelled.append(cancel_job(hook, ref, log)), name="cancel-trainjob", daemon=True
    )
    thread.start()
    thread.join(_SIGNAL_HANDLER_SECONDS)
    return any(cancelled)
