"""TrainJobTrigger: wait for a TrainJob in the triggerer, and hand on its Outcome as JSON.

It decides nothing: what it sees and when goes into `trainer_core.waiting`, as in every other place that waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from airflow_provider.compat import AirflowNotFoundException
from airflow_provider.hooks.trainjob import TrainJobHook
from airflow_provider.logs import LogTail
from trainer_core import waiting
from trainer_core.errors import BackendUnavailableError, TrainerError, WaitTimeoutError
from trainer_core.ref import TrainJobRef

if TYPE_CHECKING:
    from trainer_core.client import TrainerClient
    from trainer_core.outcome import Outcome

__all__ = ["TrainJobTrigger"]

_T = TypeVar("_T")
#: How long to go on asking a server that does not answer, in seconds.
_PATIENCE = 30.0
#: What ends jobs now. The event loop itself holds no reference that keeps a task alive.
_endings: set[asyncio.Task[None]] = set()


class TrainJobTrigger(BaseTrigger):
    """Wait until a TrainJob has ended, and fire one event.

    The event is ``{"ref": …}`` with one more entry: ``outcome`` (what the job left, failed or not), ``timeout`` (the
    deadline has passed; a sentence) or ``error`` (the job could not be followed; a sentence).

    All arguments are plain JSON data without secrets, because Airflow stores them.

    Args:
        ref: The TrainJob, as `TrainJobRef.to_dict` wrote it.
        backend: As for `TrainJobHook`.
        backend_config: As for `TrainJobHook`, as a dict.
        trainjob_conn_id: As for `TrainJobHook`; looked up in the triggerer.
        deadline: When to give up, in seconds since the epoch: a point in time that stays when the trigger moves to
            another triggerer. None for never.
        on_kill: What becomes of the TrainJob when a person ends the task, or the deadline passes: ``cancel`` or
            ``keep``.
        fail_fast: End a job that cannot get well, instead of waiting until its backend gives it up.
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
        fail_fast: bool = True,
    ) -> None:
        super().__init__()
        self.ref = ref
        self.backend = backend
        self.backend_config = backend_config
        self.trainjob_conn_id = trainjob_conn_id
        self.deadline = deadline
        self.on_kill_policy = on_kill
        self.fail_fast = fail_fast
        self._fired = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return where this class lies and what it was made with."""
        return "airflow_provider.triggers.trainjob.TrainJobTrigger", {
            "ref": self.ref,
            "backend": self.backend,
            "backend_config": self.backend_config,
            "trainjob_conn_id": self.trainjob_conn_id,
            "deadline": self.deadline,
            "on_kill": self.on_kill_policy,
            "fail_fast": self.fail_fast,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire the one event."""
        found = await self._found()
        self._fired = True
        yield TriggerEvent({"ref": self.ref, **found})

    async def on_kill(self) -> None:
        """End the TrainJob, if a person has ended the task.

        Airflow also calls this when the trigger moves to another triggerer, with nothing to tell the two apart but
        the task's state. A task that is still deferred was moved; or it was cleared and its new try, to which the
        job belongs now, waits already. Where the state cannot be had, the job goes on: ending training that
        nobody wanted to end is the worse mistake, and a cleared task's next try ends what it finds.

        A triggerer repeats with every round, about a second, that a trigger is to end, and each time cancels what
        runs here. Asking a fresh triggerer for a state alone takes longer. So the work is done in a task of its own.
        """
        if self._fired or self.on_kill_policy != "cancel":
            return
        ending = asyncio.create_task(self._end_unless_wanted())
        _endings.add(ending)
        ending.add_done_callback(_endings.discard)
        await asyncio.shield(ending)

    async def _end_unless_wanted(self) -> None:
        if await self._is_still_wanted():
            return
        self.log.info("The task was ended; cancelling TrainJob %s", self.ref.get("name"))
        await self._cancel()

    async def _found(self) -> dict[str, Any]:
        """The entry of the event that says how waiting ended."""
        try:
            client = await self._client()
            ref = TrainJobRef.from_dict(self.ref)
            return {"outcome": (await self._outcome(client, ref)).to_dict()}
        except WaitTimeoutError as error:
            return {"timeout": await self._give_up(str(error))}
        except (TrainerError, ValueError, AirflowNotFoundException) as error:
            return {"error": str(error)}

    async def _client(self) -> TrainerClient:
        # Looking a connection up speaks with the supervisor, which must not happen on the event loop; asgiref's
        # threads know the loop to speak through, those of asyncio.to_thread do not on every Airflow.
        return await _in_thread(lambda: self._hook().client)

    def _hook(self) -> TrainJobHook:
        return TrainJobHook(self.trainjob_conn_id, self.backend, self.backend_config)

    async def _outcome(self, client: TrainerClient, ref: TrainJobRef) -> Outcome:
        timeout = None if self.deadline is None else self.deadline - time.time()
        state = waiting.start(ref, time.monotonic(), timeout, self.fail_fast)
        tail = LogTail(client, ref, lambda line: self.log.info("%s", line))
        while True:
            try:
                observation = await asyncio.to_thread(client.observe, ref)
            except TrainerError as error:
                state = state.failed(error, time.monotonic())
            else:
                # The lines first: a timeout must not swallow the last ones.
                await asyncio.to_thread(tail.look, ended=observation.outcome is not None)
                state = state.seen(observation, time.monotonic())
            if state.outcome is not None:
                return await asyncio.to_thread(client.conclude, state)
            await asyncio.sleep(state.delay)

    async def _give_up(self, reason: str) -> str:
        if self.on_kill_policy != "cancel":
            return f"{reason} (on_kill='keep')"
        await self._cancel()
        return f"the time of the task is over; TrainJob {self.ref.get('name')!r} was cancelled"

    async def _cancel(self) -> None:
        try:
            client = await self._client()
            await _patiently(BackendUnavailableError)(asyncio.to_thread, client.cancel, TrainJobRef.from_dict(self.ref))
        except (TrainerError, ValueError, AirflowNotFoundException) as error:
            self.log.warning("TrainJob %s could not be cancelled: %s", self.ref.get("name"), error)

    async def _is_still_wanted(self) -> bool:
        ti = self.task_instance
        if ti is None:
            return False
        try:
            state: str | None = await _patiently(Exception)(_in_thread, lambda: _state(ti))
        except Exception as error:  # noqa: BLE001 - whatever keeps Airflow from answering, the answer is not known
            self.log.warning("The state of the task is not known, so its TrainJob goes on: %s", error)
            return True
        return state == "deferred"


async def _in_thread(function: Callable[[], _T]) -> _T:
    """Run what speaks with the supervisor; its threads know the event loop to speak through.

    asgiref forgets why it was cancelled, and without the reason a triggerer does not call `on_kill`: hence the shield.
    """
    return await asyncio.shield(asyncio.ensure_future(sync_to_async(function, thread_sensitive=False)()))


def _patiently(error: type[Exception]) -> AsyncRetrying:
    """Ask again while there is this error."""
    return AsyncRetrying(
        retry=retry_if_exception_type(error),
        stop=stop_after_delay(_PATIENCE),
        wait=wait_exponential(0.1, max=5),
        reraise=True,
    )


def _state(ti: Any) -> str | None:
    """The state of a task instance now, None if it has none."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    mapped = ti.map_index is not None and ti.map_index >= 0
    states = RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id,
        task_ids=[ti.task_id],
        run_ids=[ti.run_id],
        map_index=ti.map_index if mapped else None,
    )
    key = f"{ti.task_id}_{ti.map_index}" if mapped else ti.task_id
    return (states.get(ti.run_id) or {}).get(key)
