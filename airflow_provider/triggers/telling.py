"""What a trigger tells while it waits: the log of the job in the log of the task, and its progress as an XCom.

Ten thousand triggers share one event loop, one cluster and one database. So all of them together read about `_READS`
logs and write about `_WRITES` XComs a second, evenly; and nothing here ever keeps a trigger from hearing of its job.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from airflow_provider.clients import in_thread
from airflow_provider.logs import PACE, Shown

if TYPE_CHECKING:
    from trainer_core.backends.following import Follower
    from trainer_core.observation import Tail
    from trainer_core.ref import TrainJobRef

__all__ = ["LOG", "PROGRESS", "Teller"]

#: XComs of the task whose trigger it is: progress while it waits, and how far the log was shown.
PROGRESS = "progress"
LOG = "trainjob_log"
#: Of all triggers of a process together, a second.
_READS = 20.0
_WRITES = 2.0
_THREADS = 4
#: Seconds for which a trigger waits for a log to be read before it looks at its job again; and at its very end.
_MOMENT = 0.2
_LAST_MOMENT = 0.5
#: Lines to write into the log before others may do something.
_AT_ONCE = 100


class _Crowd:
    """How many tell in this process, and how many of them are about to end."""

    telling = 0
    ending = 0


class Teller:
    """Tells of one job.

    Args:
        ref: The job.
        ti: The task instance that waits, None where there is none.
        show: Called with each line of the log.
    """

    __slots__ = ("_due", "_next_write", "_reading", "_ref", "_show", "_shown", "_ti", "_writing", "_written")

    def __init__(self, ref: TrainJobRef, ti: Any, show: Callable[[str], object]) -> None:
        self._ref = ref
        self._ti = ti
        self._show = show
        self._shown: Shown | None = None
        self._due: float | None = None
        self._reading: asyncio.Task[Tail] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._next_write = 0.0
        self._written: dict[str, Any] = {}

    def __enter__(self) -> Teller:
        _Crowd.telling += 1
        return self

    def __exit__(self, *_: object) -> None:
        _Crowd.telling -= 1
        for task in (self._reading, self._writing):
            if task is not None:
                task.cancel()

    def patience(self, now: float) -> float:
        """Return the seconds until there is something to do."""
        if self._reading is not None:
            return _MOMENT
        return float("inf") if self._due is None else max(0.0, self._due - now)

    async def tell(self, follower: Follower, running: bool) -> None:
        """Do what is due.

        Args:
            follower: Looks at the job.
            running: It runs, so that there may be something to read.
        """
        now = time.monotonic()
        if self._due is None and running:
            # Not all at once: triggers start together, too.
            pause = _pause(PACE, _READS)
            self._due = now + (random.uniform(0, pause) if pause > PACE else 0)  # noqa: S311 -- not a secret
        if self._reading is None and running and self._due is not None and now >= self._due:
            self._reading = asyncio.create_task(self._read(follower, whole=False))
        await self._show_what_came(_MOMENT, whole=False)

    async def end(self, follower: Follower, whole: bool) -> dict[str, Any]:
        """Show what is left, unless many want to at the moment, and return how far that is.

        Args:
            follower: Looked at the job.
            whole: The job has ended.
        """
        self._due = None
        await self._show_what_came(_LAST_MOMENT, whole=False)
        if self._reading is None and _Crowd.ending < _THREADS:
            _Crowd.ending += 1
            try:
                await self._show_the_rest(follower, whole)
            finally:
                _Crowd.ending -= 1
        return (self._shown or Shown(self._ref)).to_dict()

    async def _show_the_rest(self, follower: Follower, whole: bool) -> None:
        end, more = time.monotonic() + _LAST_MOMENT, True
        while more and time.monotonic() < end:
            self._reading = asyncio.create_task(self._read(follower, whole))
            more = await self._show_what_came(_LAST_MOMENT, whole)

    async def _read(self, follower: Follower, whole: bool) -> Tail:
        shown = await self._recalled()
        return await asyncio.get_running_loop().run_in_executor(_threads(), partial(follower.tail, shown.place, whole))

    async def _show_what_came(self, seconds: float, whole: bool) -> bool:
        """Show what the reading has brought, if it is done in time; return whether there is more to read.

        What comes too late was never shown, and is read again by whoever reads on.
        """
        reading = self._reading
        if reading is None or not (await asyncio.wait([reading], timeout=seconds))[0]:
            return False
        self._reading = None
        if self._due is not None:
            self._due = time.monotonic() + _pause(PACE, _READS) * random.uniform(0.9, 1.1)  # noqa: S311 -- the same
        try:
            tail = reading.result()
        except Exception:  # noqa: BLE001 -- the log must never be what fails a task
            return False
        lines = (await self._recalled()).take(tail, whole, time.monotonic())
        for number, line in enumerate(lines, 1):
            self._show(line)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        if tail.lines:
            self._write_down()
        return bool(tail.lines) and not tail.complete

    async def _recalled(self) -> Shown:
        """Find out how far a trigger before this one has come: of a triggerer that is gone."""
        if self._shown is None:
            known = None
            if self._ti is not None:
                # Whatever keeps Airflow from answering: the log then begins anew.
                with suppress(Exception):
                    known = await in_thread(partial(_get, self._ti, LOG))
            self._shown = Shown(self._ref, known)
        return self._shown

    def _write_down(self) -> None:
        now = time.monotonic()
        if self._ti is None or self._shown is None or now < self._next_write:
            return
        if self._writing is not None and not self._writing.done():
            return
        self._next_write = now + _pause(PACE, _WRITES)
        progress = self._shown.progress
        said = {} if progress is None else {PROGRESS: {**vars(progress), "percentage": progress.percentage}}
        self._writing = asyncio.create_task(self._write({**said, LOG: self._shown.to_dict()}))

    async def _write(self, xcoms: dict[str, Any]) -> None:
        new = {key: value for key, value in xcoms.items() if self._written.get(key) != value}
        try:
            await in_thread(partial(_set, self._ti, new))
        except Exception:  # noqa: BLE001, S110 -- nobody waits for it, and the next one says it better
            pass
        else:
            self._written = xcoms


def _pause(least: float, rate: float) -> float:
    """Seconds between two actions of one, so that all together do so many a second."""
    return max(least, _Crowd.telling / rate)


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads of their own: a log that does not come must hold up no other work."""
    return ThreadPoolExecutor(_THREADS, "trainjob-log")


def _get(ti: Any, key: str) -> Any:
    from airflow.sdk.execution_time.xcom import XCom

    return XCom.get_one(key=key, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=_index(ti))


def _set(ti: Any, xcoms: dict[str, Any]) -> None:
    from airflow.sdk.execution_time.xcom import XCom

    for key, value in xcoms.items():
        XCom.set(key=key, value=value, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=_index(ti))


def _index(ti: Any) -> int:
    return -1 if ti.map_index is None else int(ti.map_index)
