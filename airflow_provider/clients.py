"""One TrainerClient per connection and process, however many triggers wait there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async

from airflow_provider.hooks.trainjob import TrainJobHook

if TYPE_CHECKING:
    from trainer_core.client import TrainerClient

__all__ = ["in_thread", "shared"]

_T = TypeVar("_T")
#: Seconds after which a connection is looked up anew, so that what was changed in it is taken up.
_KEEP_SECONDS = 300.0
#: By event loop, because a task of one cannot be awaited in another; by what tells connections apart.
_made: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, tuple[float, asyncio.Task[TrainerClient]]]]
_made = WeakKeyDictionary()


async def shared(
    trainjob_conn_id: str | None, backend: str | None, backend_config: Mapping[str, Any] | None
) -> TrainerClient:
    """Return the client that all in this event loop use who mean the same backend.

    It is made once, also for a thousand who ask at the same time, and anew some minutes later.

    Args:
        trainjob_conn_id: As for `TrainJobHook`.
        backend: As for `TrainJobHook`.
        backend_config: As for `TrainJobHook`, as plain data.

    Raises:
        ValueError: As for `TrainJobHook.config`.
        AirflowNotFoundException: There is no such connection.
        BackendUnavailableError: The backend needs an extra that is not installed, or cannot be reached.
    """
    clients = _made.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps([trainjob_conn_id, backend, backend_config], sort_keys=True, default=repr)
    now = time.monotonic()
    made_at, making = clients.get(key, (0.0, None))
    if making is None or now - made_at >= _KEEP_SECONDS or _has_failed(making):
        hook = TrainJobHook(trainjob_conn_id, backend, backend_config)
        making = asyncio.create_task(in_thread(lambda: hook.client))
        clients[key] = (now, making)
    # Whoever is cancelled must not take the client of all others along.
    return await asyncio.shield(making)


async def in_thread(function: Callable[[], _T]) -> _T:
    """Run what may speak with Airflow's supervisor in a thread; asgiref's know the event loop to speak through.

    asgiref forgets why it was cancelled, and without the reason a triggerer does not call `on_kill`: hence the shield.
    """
    return await asyncio.shield(asyncio.ensure_future(sync_to_async(function, thread_sensitive=False)()))


def _has_failed(making: asyncio.Task[TrainerClient]) -> bool:
    return making.done() and (making.cancelled() or making.exception() is not None)
