"""SIGTERM of a training that saves before it ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from .checkpoint_folder import say

#: Seconds before SIGKILL at which a process that was told to stop ends without a checkpoint.
_RESERVE = 2.0


class StopSignal:
    """Sets a flag on SIGTERM, and ends the process shortly before the grace is over."""

    def __init__(self, grace: float, announce: Callable[[], None]) -> None:
        self.received = False
        #: Set once `announce` has returned.
        self.announced = threading.Event()
        #: Set when the training is over: the grace does not end a process that continues.
        self.ended = threading.Event()
        self._announce, self._grace = announce, grace
        self._previous: Any = None
        # A handler may interrupt any lock; writing to a pipe is safe.
        self._pipe, self._told = -1, -1
        #: The handler of which `check` has said that it is another one.
        self._seen: Any = self
        self.check()

    def check(self) -> None:
        """Install the handler, and say where SIGTERM does not reach it: the job would stop without a checkpoint."""
        handler = signal.getsignal(signal.SIGTERM)
        # Lightning has a list of handlers, to which it adds the one before.
        if self._handle in (handler, *getattr(handler, "signal_handlers", ())) or not self._grace or self.received:
            return
        if self._pipe < 0 and threading.current_thread() is threading.main_thread():
            self._install()
        elif handler != self._seen:
            self._seen = handler
            why = f"its handler is now {handler!r}; set it before checkpoints() is called, which then calls it, too"
            if self._pipe < 0:
                why = "checkpoints() was first called in a thread; call it in the main thread before"
            say(f"SIGTERM, which stops this job, leads to no checkpoint: {why}")

    def _install(self) -> None:
        self._previous = signal.getsignal(signal.SIGTERM)
        from . import worker_signals  # Takes milliseconds.

        self._pipe, self._told = os.pipe()
        threading.Thread(target=self._end_late, name="trainjob-grace", daemon=True).start()
        signal.signal(signal.SIGTERM, self._handle)
        worker_signals.unblock()
        pid = os.getpid()

        def restore() -> None:
            """Let SIGTERM end a process that the training has forked: it does not stop the training."""
            if signal.getsignal(signal.SIGTERM) == self._handle:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            worker_signals.unblock()

        # Python forgets a signal for its handlers that reaches a child before the fork has returned in it.
        os.register_at_fork(
            before=worker_signals.block,
            after_in_parent=lambda: os.getpid() == pid and worker_signals.unblock(),
            after_in_child=restore,
        )
        worker_signals.protect_workers()

    def _handle(self, number: int, frame: Any) -> None:
        if not self.received:
            self.received = True
            os.write(self._told, b"1")
        if callable(self._previous):
            self._previous(number, frame)

    def _end_late(self) -> None:
        os.read(self._pipe, 1)
        threading.Thread(target=self._run_announcement, daemon=True).start()
        if self.ended.wait(max(1.0, self._grace - _RESERVE)):
            return
        say("no checkpoint within the grace period after SIGTERM")
        os._exit(128 + signal.SIGTERM)

    def _run_announcement(self) -> None:
        self._announce()
        self.announced.set()
