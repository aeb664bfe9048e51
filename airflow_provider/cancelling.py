"""Cancelling a TrainJob on behalf of a task that ends."""

from __future__ import annotations

import threading
from typing import Any

from airflow_provider.compat import AirflowNotFoundException
from airflow_provider.hooks.trainjob import TrainJobHook
from trainer_core.errors import TrainerError
from trainer_core.ref import TrainJobRef

__all__ = ["POLICIES", "cancel", "cancel_in_signal_handler", "check_policy"]

POLICIES = ("cancel", "keep")
#: Airflow kills a task five seconds after it asked it to end.
_SECONDS = 4.0


def check_policy(policy: str) -> str:
    """Return what shall become of a TrainJob when its task is killed.

    Raises:
        ValueError: Neither ``cancel`` nor ``keep``.
    """
    if policy not in POLICIES:
        raise ValueError(f"on_kill must be 'cancel' or 'keep', got {policy!r}")
    return policy


def cancel(hook: TrainJobHook, ref: TrainJobRef, log: Any) -> None:
    """Cancel a TrainJob. Where that is not possible the log says so: a task that ends must be able to end."""
    try:
        hook.client.cancel(ref)
    except (TrainerError, ValueError, AirflowNotFoundException) as error:
        log.warning("TrainJob %s could not be cancelled: %s", ref.name, error)


def cancel_in_signal_handler(hook: TrainJobHook, ref: TrainJobRef, log: Any) -> None:
    """Cancel a TrainJob from a task's `on_kill`.

    Airflow calls that in a signal handler, between any two steps of what the task is doing, with locks held. So the
    work is done in a thread and waited for only as long as Airflow waits: what blocks it, the main program lets go of
    afterwards. The hook's client must exist already, because making it may mean to speak with Airflow.
    """
    thread = threading.Thread(target=cancel, args=(hook, ref, log), name="cancel-trainjob", daemon=True)
    thread.start()
    thread.join(_SECONDS)
