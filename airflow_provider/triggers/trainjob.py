"""TrainJobTrigger: wait for a TrainJob in the triggerer, and hand on its Outcome as JSON.

It decides nothing: what it sees and when goes into `trainer_core.waiting`, as in every other place that waits.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from airflow_provider import clients, secrets
from airflow_provider.compat import AirflowNotFoundException
from airflow_provider.triggers.telling import Teller
from trainer_core import waiting
from trainer_core.errors import BackendUnavailableError, TrainerError, WaitTimeoutError
from trainer_core.observation import RUNNING
from trainer_core.ref import TrainJobRef

if TYPE_CHECKING:
    from trainer_core.backends.following import Follower
    from trainer_core.client import TrainerClient

__all__ = ["TrainJobTrigger"]

#: How long to go on asking a server that does not answer, in seconds.
_PATIENCE = 30.0
#: Seconds after which to look at a job of which nothing was heard. Thousands of triggers begin together, and one event
#: loop is held up for seconds if they look together ever after.
_QUIET = (15.0, 30.0)
#: What ends jobs now. The event loop itself holds no reference that keeps a task alive.
_endings: set[asyncio.Task[None]] = set()


class TrainJobTrigger(BaseTrigger):
    """Wait until a TrainJob has ended, and fire one event.

    The event is ``{"ref": …}`` with one more entry: ``outcome`` (what the job left, failed or not), ``timeout`` (the
    deadline has passed; a sentence) or ``error`` (the job could not be followed; a sentence); and ``log``, how far the
    job's log was shown in the task's, see `airflow_provider.logs`.

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
        masked: Which fields of which connections are to be hidden in the log: ``[["hf_default", "password"]]``.
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
        masked: Sequence[Sequence[str]] = (),
    ) -> None:
        super().__init__()
        self.ref = ref
        self.backend = backend
        self.backend_config = backend_config
        self.trainjob_conn_id = trainjob_conn_id
        self.deadline = deadline
        self.on_kill_policy = on_kill
        self.fail_fast = fail_fast
        self.masked = [list(each) for each in masked]
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
            "masked": self.masked,
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
        """The entries of the event that say how waiting ended, and how far the log was shown."""
        try:
            ref = TrainJobRef.from_dict(self.ref)
            if self.masked:
                await clients.in_thread(lambda: secrets.mask(self.masked))
            with Teller(ref, self.task_instance, lambda line: self.log.info("%s", line)) as teller:
                return await self._followed(await self._client(), ref, teller)
        except (TrainerError, ValueError, AirflowNotFoundException) as error:
            return {"error": str(error)}

    async def _client(self) -> TrainerClient:
        return await clients.shared(self.trainjob_conn_id, self.backend, self.backend_config)

    async def _followed(self, client: TrainerClient, ref: TrainJobRef, teller: Teller) -> dict[str, Any]:
        timeout = None if self.deadline is None else self.deadline - time.time()
        state = waiting.start(ref, time.monotonic(), timeout, self.fail_fast)
        follower = client.follow(ref)
        try:
            while state.outcome is None:
                try:
                    seen = await follower.look_async(_patience(state, follower, teller))
                except TrainerError as error:
                    state = state.failed(error, time.monotonic())
                    client, follower = await self._with_todays_client(client, follower)
                else:
                    state = state.seen(seen, time.monotonic())
                    if state.outcome is None:
                        await teller.tell(follower, seen.status == RUNNING)
            if state.gave_up:
                # What is left of the log goes with the job that is ended now.
                log = await teller.end(follower, whole=True)
                outcome = await asyncio.to_thread(client.conclude, state)
            else:
                conclusion = asyncio.to_thread(client.conclude, state)
                log, outcome = await asyncio.gather(teller.end(follower, whole=True), conclusion)
            return {"outcome": outcome.to_dict(), "log": log}
        except WaitTimeoutError as error:
            log = await teller.end(follower, whole=False)
            return {"timeout": await self._give_up(str(error)), "log": log}
        finally:
            follower.close()

    async def _with_todays_client(self, client: TrainerClient, follower: Follower) -> tuple[TrainerClient, Follower]:
        """What fails may have been mended in the connection since."""
        try:
            newest = await self._client()
        except Exception:  # noqa: BLE001 -- whatever keeps Airflow from answering: the client there is may get well
            return client, follower
        if newest is client:
            return client, follower
        follower.close()
        return newest, newest.follow(TrainJobRef.from_dict(self.ref))

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
            state: str | None = await _patiently(Exception)(clients.in_thread, lambda: _state(ti))
        except Exception as error:  # noqa: BLE001 - whatever keeps Airflow from answering, the answer is not known
            self.log.warning("The state of the task is not known, so its TrainJob goes on: %s", error)
            return True
        return state == "deferred"


def _patience(state: waiting.Waiting, follower: Follower, teller: Teller) -> float:
    now = time.monotonic()
    quiet = random.uniform(*_QUIET)  # noqa: S311 -- not a secret
    return min(quiet, state.patience(now, follower.pushed), teller.patience(now))


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
