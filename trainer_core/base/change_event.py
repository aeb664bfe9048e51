"""ChangeEvent: wakes what waits for a change, be it a thread or an event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class ChangeEvent:
    """Flag that one thread or one event loop at a time can wait for. Any thread may set it, and never blocks."""

    __slots__ = ("_is_set", "_wake")

    def __init__(self) -> None:
        self._is_set = False
        self._wake: Callable[[], object] | None = None

    @property
    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag and wake what waits for it."""
        # In this order: what begins to wait writes the second and then reads the first.
        self._is_set = True
        wake = self._wake
        if wake is not None:
            wake()

    def clear(self) -> None:
        """Reset the flag, before the changed state is read."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the flag is set."""
        return wait_any([self], timeout)

    async def wait_async(self, timeout: float | None = None) -> bool:
        """Do the same without blocking the running event loop."""
        return await wait_any_async([self], timeout)


def wait_any(events: Sequence[ChangeEvent], timeout: float | None = None) -> bool:
    """Block until one of the flags is set."""
    event = threading.Event()
    for each in events:
        each._wake = event.set
    try:
        if not any(each.is_set for each in events):
            event.wait(timeout)
    finally:
        for each in events:
            each._wake = None
    return any(each.is_set for each in events)


async def wait_any_async(events: Sequence[ChangeEvent], timeout: float | None = None) -> bool:
    """Do the same without blocking the running event loop."""
    import asyncio  # Takes 40 ms, and most programs that import the core do not wait asynchronously.

    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    for each in events:
        each._wake = partial(_wake_loop, loop, future)
    timer = None
    try:
        if not any(each.is_set for each in events):
            timer = None if timeout is None else loop.call_later(timeout, _finish_future, future)
            await future
    finally:
        for each in events:
            each._wake = None
        if timer is not None:
            timer.cancel()
    return any(each.is_set for each in events)


def _wake_loop(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    with suppress(RuntimeError):  # The loop is closed: nothing waits in it.
        loop.call_soon_threadsafe(_finish_future, future)


def _finish_future(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
