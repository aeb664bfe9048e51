"""SearchTrigger: drive a search in the triggerer as far as no code is needed.

It observes the trials and makes the same decisions as a worker: it stops losers, and what runs at the end of the
search. When trials are to be created, which needs the training function, it wakes a worker once for all of them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

from airflow_provider.trigger_event import JobEvent
from airflow_provider.triggers.trainjob import TrainJobTrigger
from trainer_core.model.request import Owner
from trainer_core.search.driver import SearchDriver

if TYPE_CHECKING:
    from airflow_provider.triggers.deferred_log import LogReporter
    from trainer_core.client import TrainerClient
    from trainer_core.model.jobs import TrainJobRef
    from trainer_core.search.driver import SearchState

__all__ = ["SearchTrigger"]


class SearchTrigger(TrainJobTrigger):
    """Wait until a worker has something to do for a search, and fire one event.

    `ref` is that of the search's first TrainJob, with ``search``: key, slug and generation.
    """

    async def _follow(self, client: TrainerClient, ref: TrainJobRef, reporter: LogReporter) -> JobEvent:
        owner = Owner(**self.ref["search"])
        driver = await asyncio.to_thread(SearchDriver.open, client, owner)
        lock = threading.Lock()

        def step() -> SearchState:
            with lock:
                return driver.try_step(create=False)

        def close() -> None:
            with lock:
                driver.close()

        try:
            while self.deadline is None or time.time() < self.deadline:
                left = None if self.deadline is None else self.deadline - time.time()
                state = await asyncio.to_thread(step)
                if state.must_create or state.outcome is not None:
                    search = "ended" if state.outcome is not None else "must_create"
                    return JobEvent(ref=self.ref, search=search)
                await driver.wait_async(state, left)
        finally:
            # A step may still run, and a loser may save its checkpoint: the event does not wait for them.
            threading.Thread(target=close, name="close-search", daemon=True).start()
        return await self._handle_timeout("the search had not ended at the deadline")
