"""Cancellation of a TrainJob when its task is killed or times out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider import job_location
from airflow_provider.compat import AirflowException
from airflow_provider.hooks.trainjob import TrainJobHook
from trainer_core.base.errors import BackendUnavailableError, TrainerError

if TYPE_CHECKING:
    from trainer_core.client import TrainerClient

Result = Literal["cancelled", "kept", "unknown"]
#: States of a task that was neither ended nor cleared: its current or next try waits for the TrainJob.
_WANTED_STATES = frozenset(("running", "deferred", "up_for_retry", "up_for_reschedule", "scheduled", "queued"))
#: States of a task that has ended or was deleted.
ENDED_STATES = frozenset(("success", "failed", "skipped", "upstream_failed", "removed"))
#: Airflow sends SIGKILL five seconds after SIGTERM.
_SIGNAL_HANDLER_SECONDS = 4.0
#: How long the thread repeats a cancellation, while the process lives, and after how many seconds.
_CANCEL_SECONDS, _RETRY_SECONDS = 60.0, 0.2


def cancel_job(hook: TrainJobHook, ref_data: Mapping[str, Any], log: Any, seconds: float = 0.0) -> bool:
    """Cancel a TrainJob; return whether it is cancelled. An error is logged, not raised, so that the task can end."""
    # Parsing a DAG file does not need them.
    from trainer_core.base.retries import repeat_while_failing
    from trainer_core.frontend import pending_cancellations

    # Before the first request: Airflow may kill this process while the backend does not answer.
    pending_cancellations.add(ref_data)
    try:
        job_location.check_place(ref_data, hook.client)
        repeat_while_failing(
            lambda: pending_cancellations.cancel(hook.client, ref_data),
            lambda error: isinstance(error, BackendUnavailableError) and error.transient,
            seconds,
            pauses=(_RETRY_SECONDS, _RETRY_SECONDS),
        )
    except (TrainerError, ValueError, AirflowException) as error:
        log_failure(ref_data, error, log)
        return False
    pending_cancellations.remove(ref_data)
    return True


def log_failure(ref_data: Mapping[str, Any], error: Exception, log: Any) -> None:
    """Log that a TrainJob could not be cancelled, and what ends it."""
    name = ref_data.get("name")
    advice = (
        "the next TrainJob task, triggerer or `trainjob reap` with the state folder of this process cancels it, or you "
        f"by `trainjob cancel {name}`"
    )
    log.warning("TrainJob %s: cancellation failed, it may still run; %s: %s", name, advice, error)


def cancel_pending(client: TrainerClient, log: Any) -> None:
    """Cancel the TrainJobs that earlier processes with this state folder could not cancel."""
    from trainer_core.frontend import pending_cancellations  # Parsing a DAG file does not need it.

    for name, error in pending_cancellations.cancel_pending(client):
        if error is None:
            log.info("TrainJob %s is cancelled: its task was ended, and its cancellation was not confirmed yet", name)
        else:
            log.warning("TrainJob %s is still to be cancelled: %s", name, error)


def cancel_job_from_signal_handler(
    hook: TrainJobHook, ref_data: Mapping[str, Any], log: Any, is_wanted: Callable[[], bool] = lambda: False
) -> Result:
    """Cancel a TrainJob from a task's `on_kill`, a signal handler of Airflow, unless its task still wants it.

    The interrupted code may hold locks. A thread therefore does the work; the signal handler waits for it a few seconds
    only and then releases the interrupted code. The hook's client must exist already: creating it may call Airflow.
    The result is ``unknown`` if it failed or has not ended by then.
    """
    results: list[Result] = []

    def decide() -> None:
        if is_wanted():
            results.append("kept")
        elif cancel_job(hook, ref_data, log, _CANCEL_SECONDS):
            results.append("cancelled")

    thread = threading.Thread(target=decide, name="cancel-trainjob", daemon=True)
    thread.start()
    thread.join(_SIGNAL_HANDLER_SECONDS)
    return results[0] if results else "unknown"


def is_wanted_after_signal(ti: Any, log: Any) -> bool:
    """Return whether a task that got SIGTERM will be tried again: its worker is stopped, and no person has ended it.

    If the state cannot be read, the job is kept: cancelling a wanted job is the worse error.
    """
    if ti.try_number > ti.max_tries:
        return False
    try:
        state = get_task_state(ti, ti)
    except Exception as error:  # noqa: BLE001 -- any error of Airflow means that the state is unknown
        log.warning("SIGTERM: the TrainJob is kept, because the state of the task cannot be read: %s", error)
        return True
    if state in _WANTED_STATES:
        log.info("SIGTERM while the task is %s: its worker is stopped; the TrainJob is kept for the next try", state)
        return True
    log.info("SIGTERM after the task was set to %s: the TrainJob is cancelled", state)
    return False


def get_task_state(ti: Any, reader: Any = None) -> str | None:
    """Return the state of a task instance: None if it was cleared, ``removed`` if it is gone. Calls the supervisor."""
    if reader is None:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        reader = RuntimeTaskInstance
    mapped = ti.map_index is not None and ti.map_index >= 0
    states = reader.get_task_states(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index if mapped else None
    )
    key = f"{ti.task_id}_{ti.map_index}" if mapped else ti.task_id
    state = (states.get(ti.run_id) or {}).get(key, "removed")
    return None if state is None else str(getattr(state, "value", state))
