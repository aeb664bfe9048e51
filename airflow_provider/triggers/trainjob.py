"""TrainJobTrigger: wait for a TrainJob in the triggerer, and fire one event with its outcome.

The trigger makes no decision: it passes observations and times to `trainer_core.lifecycle.wait_state`, as every other
waiting component does.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider import cancellation, client_cache, connection_secrets, job_location
from airflow_provider.compat import REPORT_SECONDS, AirflowException
from airflow_provider.exceptions import TrainJobConnectionUnreadableError
from airflow_provider.person_actions import ACTION_KEY, SuspensionWatch
from airflow_provider.trigger_event import JobEvent
from airflow_provider.triggers.deferred_log import LogReporter
from trainer_core.base.errors import BackendUnavailableError, JobElsewhereError, TrainerError, WaitTimeoutError
from trainer_core.base.retries import repeat_while_failing_async
from trainer_core.client.waiting import compute_restart_delay, finish_wait
from trainer_core.frontend import pending_cancellations
from trainer_core.lifecycle import wait_state
from trainer_core.lifecycle.wait_state import PendingFailureLog
from trainer_core.model.jobs import RUNNING, Outcome, TrainJobRef

if TYPE_CHECKING:
    from trainer_core.client import Follower, TrainerClient

__all__ = ["TrainJobTrigger"]

#: Seconds for which to retry requests to a server that is unavailable.
_RETRY_SECONDS = 30.0
#: The first and the longest pause between two tries, for `_RETRY_SECONDS` and for `_CANCEL_SECONDS`.
_PAUSES, _LONG_PAUSES = (0.1, 5.0), (0.1, 30.0)
#: Seconds for which to repeat the cancellation of a job whose task a person has ended, also after `on_kill` returned.
_CANCEL_SECONDS = 1800.0
#: Range of seconds after which a job without events is checked. The delay is random, because thousands of triggers can
#: start at the same time and would block the event loop with simultaneous checks.
_RECHECK_SECONDS = (15.0, 30.0)
#: Seconds from the start of a trigger to its event.
_MIN_DEFERRAL_SECONDS = 3 * REPORT_SECONDS
#: Cancellations in progress. The event loop itself keeps only weak references to its tasks.
_cancellations: set[asyncio.Task[None]] = set()


class TrainJobTrigger(BaseTrigger):
    """Wait until a TrainJob has ended, and fire one event.

    The event is an `airflow_provider.trigger_event.JobEvent` as JSON data.

    Airflow stores the arguments in its database, so they are plain JSON data without secrets.

    Args:
        ref: Ref of the TrainJob as JSON data, see `airflow_provider.job_location`.
        backend: Name of the backend. Default: None, the backend of the connection.
        backend_config: Settings of the backend that override those of the connection. Default: None.
        trainjob_conn_id: Id of an Airflow connection of type ``trainjob``, read in the triggerer. Default: None, no
            connection.
        deadline: Time in seconds since the epoch at which to fire a ``timeout`` event; does not change when the trigger
            moves to another triggerer. Default: None, never.
        on_kill: What happens to the job when a user ends the task, or the deadline passes: ``cancel`` (default) or
            ``keep``.
        on_clear: What happens to the job when a user clears the task: ``new`` (default): it is cancelled, unless the
            new try is deferred already; ``ask``: it is kept, because the new try may continue with it.
        fail_fast: True (default): fail and cancel a job that cannot start or recover. False: wait until the backend
            itself reports the job as failed.
        masked: Fields of connections to mask in the log, as pairs of connection id and field:
            ``[["hf_default", "password"]]``.
        tracked_by: ``{"mlflow_conn_id": …}`` with the id of an Airflow connection of type ``mlflow``, or None, for a
            tracked job, whose progress the triggerer sends to its run. Default: None, the job is not tracked.
    """

    def __init__(
        self,
        ref: dict[str, Any],
        *,
        backend: str | None = None,
        backend_config: dict[str, Any] | None = None,
        trainjob_conn_id: str | None = None,
        deadline: float | None = None,
        on_kill: str = "cancel",
        on_clear: str = "new",
        fail_fast: bool = True,
        masked: Sequence[Sequence[str]] = (),
        tracked_by: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.ref = ref
        self.backend = backend
        self.backend_config = backend_config
        self.trainjob_conn_id = trainjob_conn_id
        self.deadline = deadline
        self.on_kill_policy = on_kill
        self.on_clear = on_clear
        self.fail_fast = fail_fast
        self.masked = [list(each) for each in masked]
        self.tracked_by = tracked_by
        self._fired = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments of the trigger."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "ref": self.ref,
            "backend": self.backend,
            "backend_config": self.backend_config,
            "trainjob_conn_id": self.trainjob_conn_id,
            "deadline": self.deadline,
            "on_kill": self.on_kill_policy,
            "on_clear": self.on_clear,
            "fail_fast": self.fail_fast,
            "masked": self.masked,
            "tracked_by": self.tracked_by,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the job and yield one event."""
        began = time.monotonic()
        event = await self._wait_and_report()
        if self.trigger_id is not None:  # In a triggerer; `dag.test()` has no executor.
            await asyncio.sleep(max(0.0, began + _MIN_DEFERRAL_SECONDS - time.monotonic()))
        self._fired = True
        yield TriggerEvent(event.to_dict())

    async def on_kill(self) -> None:
        """Cancel the TrainJob if a user has ended the task.

        Airflow also calls this method when the trigger moves to another triggerer; only the task's state distinguishes
        the cases. A task in state ``deferred`` was moved, or was cleared and its new try already waits for the job. If
        the state cannot be read, the job is kept: cancelling a wanted job is the worse error, and the next try of a
        cleared task decides about the job anyway. With ``on_clear="ask"`` it may continue with the job, and may do so
        already, so then only a task that has ended or was deleted has its job cancelled.

        While a trigger is being cancelled, the triggerer cancels its task again about every second, and reading a state
        can take longer: at the first request in a triggerer's life its supervisor creates Airflow's execution API, with
        3 s of processor time, and a busy machine needs more than the 30 s that Airflow waits for this. The work is
        therefore done in a separate asyncio task, which continues after that.
        """
        if self._fired or self.on_kill_policy != "cancel":
            return
        cancelling = asyncio.create_task(self._cancel_unless_wanted())
        _cancellations.add(cancelling)
        cancelling.add_done_callback(_cancellations.discard)
        await asyncio.shield(cancelling)

    async def _cancel_unless_wanted(self) -> None:
        if await self._is_wanted():
            return
        self.log.info("Task is no longer deferred; cancelling TrainJob %s", self.ref.get("name"))
        if await self._cancel(_CANCEL_SECONDS):
            self.log.info("TrainJob %s was cancelled", self.ref.get("name"))

    async def _wait_and_report(self) -> JobEvent:
        try:
            ref = TrainJobRef.from_dict(self.ref)
            if self.masked:
                await client_cache.run_in_thread(lambda: connection_secrets.mask_connection_fields(self.masked))
            client = await self._connect()
            send = None if self.tracked_by is None else await asyncio.to_thread(client.runs.get_progress_sender, ref)
            with LogReporter(ref, self.task_instance, lambda line: self.log.info("%s", line), send) as reporter:
                return await self._follow(client, ref, reporter)
        except JobElsewhereError as error:
            # The task may return to a worker on the host of the job.
            return JobEvent(ref=self.ref, error=str(error), elsewhere=True)
        except (TrainerError, ValueError, AirflowException) as error:
            return JobEvent(ref=self.ref, error=str(error))

    async def _get_client(self) -> TrainerClient:
        return await client_cache.get_client(self.trainjob_conn_id, self.backend, self.backend_config, self.tracked_by)

    async def _connect(self) -> TrainerClient:
        client = await repeat_while_failing_async(
            self._get_client,
            lambda error: isinstance(error, TrainJobConnectionUnreadableError),
            _RETRY_SECONDS,
            pauses=_PAUSES,
        )
        await asyncio.to_thread(job_location.check_place, self.ref, client)
        return client

    async def _follow(self, client: TrainerClient, ref: TrainJobRef, reporter: LogReporter) -> JobEvent:
        timeout = None if self.deadline is None else self.deadline - time.time()
        state = wait_state.start(ref, time.monotonic(), timeout, self.fail_fast)
        follower = client.follow(ref)
        pending = PendingFailureLog(ref.name, lambda line: self.log.warning("%s", line))
        suspension = SuspensionWatch(ref.name)
        try:
            while state.outcome is None:
                try:
                    observation = await follower.next_observation_async(_compute_wait(state, reporter))
                except TrainerError as error:
                    state = state.on_error(error, time.monotonic())
                    client, follower = await self._refresh_client(client, follower)
                else:
                    pending.report(observation)
                    if suspension.has_changed(observation.status):
                        self.log.info("%s", suspension.describe(await reporter.pull_xcom(ACTION_KEY)))
                    state = state.on_observation(observation, time.monotonic())
                    if state.outcome is None:
                        await reporter.report(follower, observation.status == RUNNING)
            if state.should_cancel:
                # The log must be read first: cancelling the job, as `finish_wait` does, can remove it.
                log = await reporter.finish(follower, job_ended=True)
                outcome = await asyncio.to_thread(finish_wait, client.backend, state)
            else:
                conclusion = asyncio.to_thread(finish_wait, client.backend, state)
                log, outcome = await asyncio.gather(reporter.finish(follower, job_ended=True), conclusion)
            await asyncio.sleep(self._compute_restart_delay(outcome))
            return JobEvent(ref=self.ref, outcome=outcome.to_dict(), log=log)
        except WaitTimeoutError as error:
            log = await reporter.finish(follower, job_ended=False)
            return replace(await self._handle_timeout(str(error)), log=log)
        finally:
            follower.close()

    def _compute_restart_delay(self, outcome: Outcome) -> float:
        """Return the seconds until a worker starts the job again, so that its slot is not taken by waiting."""
        delay = compute_restart_delay(outcome) or 0.0
        return delay if self.deadline is None else max(0.0, min(delay, self.deadline - time.time()))

    async def _refresh_client(self, client: TrainerClient, follower: Follower) -> tuple[TrainerClient, Follower]:
        """Return the current client and its follower: after an error, the connection may have been corrected."""
        try:
            current = await self._get_client()
        except Exception:  # noqa: BLE001 -- Airflow is unavailable; the previous client may recover
            return client, follower
        if current is client:
            return client, follower
        follower.close()
        return current, current.follow(TrainJobRef.from_dict(self.ref))

    async def _handle_timeout(self, reason: str) -> JobEvent:
        if self.on_kill_policy != "cancel":
            return JobEvent(ref=self.ref, timeout=f"{reason} (on_kill='keep')")
        cancelled = await self._cancel()
        result = "was cancelled" if cancelled else "could not be cancelled: it may still run"
        text = f"TrainJob {self.ref.get('name')!r} had not ended and {result}"
        return JobEvent(ref=self.ref, timeout=text, cancelled=cancelled)

    async def _cancel(self, seconds: float | None = None) -> bool:
        """Cancel the job; repeat it for some seconds, by default `_RETRY_SECONDS`, while the backend is away."""
        ref_name = self.ref.get("name")
        await asyncio.to_thread(pending_cancellations.add, self.ref)
        try:
            client = await self._connect()
            await repeat_while_failing_async(
                lambda: asyncio.to_thread(pending_cancellations.cancel, client, self.ref),
                lambda error: isinstance(error, BackendUnavailableError),
                seconds or _RETRY_SECONDS,
                lambda error, _: self.log.warning("TrainJob %s: its cancellation is repeated: %s", ref_name, error),
                _LONG_PAUSES if seconds else _PAUSES,
            )
        except (TrainerError, ValueError, AirflowException) as error:
            cancellation.log_failure(self.ref, error, self.log)
            return False
        await asyncio.to_thread(pending_cancellations.remove, self.ref)
        return True

    async def _is_wanted(self) -> bool:
        ti = self.task_instance
        if ti is None:
            return False
        try:
            state = await repeat_while_failing_async(
                lambda: client_cache.run_in_thread(lambda: cancellation.get_task_state(ti)),
                lambda _: True,
                _RETRY_SECONDS,
                pauses=_PAUSES,
            )
        except Exception as error:  # noqa: BLE001 -- any error of Airflow means that the state is unknown
            self.log.warning("TrainJob %s: kept, because the task's state cannot be read: %s", self.ref["name"], error)
            return True
        return state == "deferred" or (self.on_clear == "ask" and state not in cancellation.ENDED_STATES)


def _compute_wait(state: wait_state.WaitState, reporter: LogReporter) -> float:
    now = time.monotonic()
    recheck = random.uniform(*_RECHECK_SECONDS)  # noqa: S311 -- not a secret
    return min(recheck, state.timeout(now), reporter.seconds_until_due(now))
