"""Cache of TrainerClients: one per connection and event loop, shared by all triggers of the process."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async

from airflow_provider import cancellation, tracking
from airflow_provider.compat import AirflowException
from airflow_provider.hooks.trainjob import TrainJobHook

if TYPE_CHECKING:
    from trainer_core.client import TrainerClient

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
#: Seconds after which the connection is read again, so that changes to it take effect.
_KEEP_SECONDS = 300.0
#: Creation time and creating task by event loop and arguments: a task can be awaited in its own event loop only.
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, tuple[float, asyncio.Task[TrainerClient]]]]
_clients = WeakKeyDictionary()


async def get_client(
    trainjob_conn_id: str | None,
    backend: str | None,
    backend_config: Mapping[str, Any] | None,
    tracked_by: Mapping[str, Any] | None = None,
) -> TrainerClient:
    """Return the client for these arguments, shared within the event loop.

    Concurrent callers share one creation. The client is created again after `_KEEP_SECONDS`.
    """
    clients = _clients.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps([trainjob_conn_id, backend, backend_config, tracked_by], sort_keys=True, default=repr)
    now = time.monotonic()
    created_at, task = clients.get(key, (0.0, None))
    if task is None or now - created_at >= _KEEP_SECONDS or _has_failed(task):
        hook = TrainJobHook(trainjob_conn_id, backend, backend_config)
        task = asyncio.create_task(run_in_thread(lambda: _create_client(hook, tracked_by)))
        clients[key] = (now, task)
    # Cancelling one caller must not cancel the creation that the other callers wait for.
    return await asyncio.shield(task)


async def run_in_thread(function: Callable[[], _T]) -> _T:
    """Run a function that may call Airflow's supervisor in a thread of asgiref, which knows the event loop.

    The shield keeps the message of a cancellation, which asgiref drops; the triggerer calls `on_kill` depending on it.
    """
    return await asyncio.shield(asyncio.ensure_future(sync_to_async(function, thread_sensitive=False)()))


def _create_client(hook: TrainJobHook, tracked_by: Mapping[str, Any] | None) -> TrainerClient:
    if tracked_by is not None:
        try:
            tracking.configure(hook, tracked_by["mlflow_conn_id"], asked=True)
        except (ValueError, AirflowException) as error:
            # The worker reports the end of the job.
            _log.warning("MLflow gets the curves of deferred tasks at their end only: %s", error)
    client = hook.client
    cancellation.cancel_pending(client, _log)
    return client


def _has_failed(task: asyncio.Task[TrainerClient]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
