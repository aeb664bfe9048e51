"""Writes the log of a job to its task's log while the task is deferred, and its progress as an XCom.

Thousands of triggers share one event loop, one backend and one database. All reporters of a process together therefore
read about `_READS_PER_SECOND` logs and write about `_WRITES_PER_SECOND` XComs a second, and reporting never delays the
trigger's wait for its job.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from airflow_provider.client_cache import run_in_thread
from airflow_provider.task_log import LOG_KEY, POLL_SECONDS, LogPosition

if TYPE_CHECKING:
    from trainer_core.client import Follower
    from trainer_core.model.jobs import TrainJobRef
    from trainer_core.model.logs import LogChunk

#: XCom of the deferred task: the job's progress. The log position has the key `LOG_KEY`.
PROGRESS_KEY = "progress"
#: Limits for all triggers of a process together.
_READS_PER_SECOND = 20.0
_WRITES_PER_SECOND = 2.0
_THREADS = 4
#: Seconds to wait for a log read before the trigger checks its job again; and after the job has ended.
_READ_TIMEOUT = 0.2
_FINAL_READ_TIMEOUT = 0.5
#: Lines to write before the event loop can run other tasks.
_LINES_BEFORE_YIELD = 100


class _Counters:
    """Reporters of this process: active ones, and those that write their last lines."""

    active = 0
    finishing = 0


class LogReporter:
    """Reports one job. `send_progress` gets, in a thread, the cursor of each read of the log and the chunk after it."""

    __slots__ = (
        "_due",
        "_next_write",
        "_position",
        "_reading",
        "_ref",
        "_saved_xcoms",
        "_send_progress",
        "_ti",
        "_write_line",
        "_writing",
    )

    def __init__(
        self,
        ref: TrainJobRef,
        ti: Any,
        write_line: Callable[[str], object],
        send_progress: Callable[[Mapping[str, Any], LogChunk], None] | None = None,
    ) -> None:
        self._ref = ref
        self._ti = ti
        self._write_line = write_line
        self._send_progress = send_progress
        self._position: LogPosition | None = None
        self._due: float | None = None
        self._reading: asyncio.Task[LogChunk] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._next_write = 0.0
        self._saved_xcoms: dict[str, Any] = {}

    def __enter__(self) -> LogReporter:
        _Counters.active += 1
        return self

    def __exit__(self, *_: object) -> None:
        _Counters.active -= 1
        for task in (self._reading, self._writing):
            if task is not None:
                task.cancel()

    def seconds_until_due(self, now: float) -> float:
        """Return the seconds until `report` has something to do."""
        if self._reading is not None:
            return _READ_TIMEOUT
        return float("inf") if self._due is None else max(0.0, self._due - now)

    async def report(self, follower: Follower, running: bool) -> None:
        """Read the log and write progress, if they are due."""
        now = time.monotonic()
        if self._due is None and running:
            # A random delay, because many triggers start at the same time.
            interval = _compute_interval(POLL_SECONDS, _READS_PER_SECOND)
            self._due = now + (random.uniform(0, interval) if interval > POLL_SECONDS else 0)  # noqa: S311 -- not a secret
        if self._reading is None and running and self._due is not None and now >= self._due:
            self._reading = asyncio.create_task(self._read(follower, job_ended=False))
        await self._write_read_lines(_READ_TIMEOUT, job_ended=False)

    async def finish(self, follower: Follower, job_ended: bool) -> dict[str, Any]:
        """Write the remaining lines, unless too many reporters do so now, and return the log position."""
        self._due = None
        await self._write_read_lines(_FINAL_READ_TIMEOUT, job_ended=False)
        if self._reading is None and _Counters.finishing < _THREADS:
            _Counters.finishing += 1
            try:
                await self._write_remaining_lines(follower, job_ended)
            finally:
                _Counters.finishing -= 1
        return (self._position or LogPosition(self._ref)).to_dict()

    async def _write_remaining_lines(self, follower: Follower, job_ended: bool) -> None:
        end, more = time.monotonic() + _FINAL_READ_TIMEOUT, True
        while more and time.monotonic() < end:
            self._reading = asyncio.create_task(self._read(follower, job_ended))
            more = await self._write_read_lines(_FINAL_READ_TIMEOUT, job_ended)

    async def _read(self, follower: Follower, job_ended: bool) -> LogChunk:
        position = await self._load_position()
        return await asyncio.get_running_loop().run_in_executor(
            _get_thread_pool(), self._read_chunk, follower, position.cursor, job_ended
        )

    def _read_chunk(self, follower: Follower, cursor: dict[str, Any], job_ended: bool) -> LogChunk:
        chunk = follower.tail(cursor, job_ended)
        # At the end of the job the worker sends all progress.
        if self._send_progress is not None and not job_ended:
            self._send_progress(cursor, chunk)
        return chunk

    async def _write_read_lines(self, seconds: float, job_ended: bool) -> bool:
        """Write the lines of the pending read if it is done in time; return whether there may be more.

        If it is not done in time, the position does not change, and the next process reads these lines again.
        """
        reading = self._reading
        if reading is None or not (await asyncio.wait([reading], timeout=seconds))[0]:
            return False
        self._reading = None
        if self._due is not None:
            interval = _compute_interval(POLL_SECONDS, _READS_PER_SECOND)
            self._due = time.monotonic() + interval * random.uniform(0.9, 1.1)  # noqa: S311 -- not a secret
        try:
            chunk = reading.result()
        except Exception:  # noqa: BLE001 -- the log must not fail the task
            return False
        lines = (await self._load_position()).format_lines(chunk, job_ended, time.monotonic())
        for number, line in enumerate(lines, 1):
            self._write_line(line)
            if number % _LINES_BEFORE_YIELD == 0:
                await asyncio.sleep(0)
        if chunk.lines:
            self._save_position()
        return bool(chunk.lines) and not chunk.complete

    async def _load_position(self) -> LogPosition:
        """Return the log position; initially the one that a trigger in another triggerer saved."""
        if self._position is None:
            self._position = LogPosition(self._ref, await self.pull_xcom(LOG_KEY))
        return self._position

    async def pull_xcom(self, key: str) -> Any:
        """Return an XCom of the task; None if there is none, or Airflow is unavailable."""
        if self._ti is not None:
            with suppress(Exception):
                return await run_in_thread(partial(_pull_xcom, self._ti, key))
        return None

    def _save_position(self) -> None:
        now = time.monotonic()
        if self._ti is None or self._position is None or now < self._next_write:
            return
        if self._writing is not None and not self._writing.done():
            return
        self._next_write = now + _compute_interval(POLL_SECONDS, _WRITES_PER_SECOND)
        progress = self._position.progress
        progress_xcom = (
            {} if progress is None else {PROGRESS_KEY: {**vars(progress), "percentage": progress.percentage}}
        )
        self._writing = asyncio.create_task(self._push_xcoms({**progress_xcom, LOG_KEY: self._position.to_dict()}))

    async def _push_xcoms(self, xcoms: dict[str, Any]) -> None:
        new = {key: value for key, value in xcoms.items() if self._saved_xcoms.get(key) != value}
        try:
            await run_in_thread(partial(_set_xcoms, self._ti, new))
        except Exception:  # noqa: BLE001, S110 -- XComs are best effort: the next write contains newer values
            pass
        else:
            self._saved_xcoms = xcoms


def _compute_interval(minimum: float, rate: float) -> float:
    """Return the seconds between two actions of one reporter, so that all reporters together do `rate` a second."""
    return max(minimum, _Counters.active / rate)


@cache
def _get_thread_pool() -> ThreadPoolExecutor:
    """Return a separate thread pool: a log read that hangs must not block other work."""
    return ThreadPoolExecutor(_THREADS, "trainjob-log")


def _pull_xcom(ti: Any, key: str) -> Any:
    from airflow.sdk.execution_time.xcom import XCom

    return XCom.get_one(key=key, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=_map_index(ti))


def _set_xcoms(ti: Any, xcoms: dict[str, Any]) -> None:
    from airflow.sdk.execution_time.xcom import XCom

    for key, value in xcoms.items():
        XCom.set(key=key, value=value, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=_map_index(ti))


def _map_index(ti: Any) -> int:
    return -1 if ti.map_index is None else int(ti.map_index)
