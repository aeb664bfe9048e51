"""SIGTERM of a training that saves before it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from .checkpoint_folder import say

#: Runs a command in a separate process group.
_IN_OWN_GROUP = "import os, sys; os.setpgid(0, 0); os.execv(sys.argv[1], sys.argv[2:])"
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
        self._announce, self._wait = announce, max(1.0, grace - _RESERVE)
        self._previous = signal.getsignal(signal.SIGTERM)
        # A handler may interrupt any lock; writing to a pipe is safe.
        self._pipe, self._told = -1, -1
        if grace and threading.current_thread() is threading.main_thread():
            self._install()

    def _install(self) -> None:
        self._pipe, self._told = os.pipe()
        threading.Thread(target=self._end_late, name="trainjob-grace", daemon=True).start()
        signal.signal(signal.SIGTERM, self._handle)
        block, unblock = (
            partial(signal.pthread_sigmask, how, [signal.SIGTERM]) for how in (signal.SIG_BLOCK, signal.SIG_UNBLOCK)
        )

        def restore() -> None:
            """Let SIGTERM end a worker that the training has forked: it does not stop the training."""
            if signal.getsignal(signal.SIGTERM) == self._handle:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                with contextlib.suppress(OSError):
                    if _is_in_group_of_rank():
                        os.setpgid(0, 0)
            unblock()

        _start_workers_outside_group()
        # Python forgets a signal for its handlers that reaches a child before the fork has returned in it.
        os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=restore)

    def _handle(self, number: int, frame: Any) -> None:
        if not self.received:
            self.received = True
            os.write(self._told, b"1")
        if callable(self._previous):
            self._previous(number, frame)

    def _end_late(self) -> None:
        os.read(self._pipe, 1)
        threading.Thread(target=self._run_announcement, daemon=True).start()
        if self.ended.wait(self._wait):
            return
        say("no checkpoint within the grace period after SIGTERM")
        os._exit(128 + signal.SIGTERM)

    def _run_announcement(self) -> None:
        self._announce()
        self.announced.set()


def _is_in_group_of_rank() -> bool:
    """Return whether this process is in the group of the leader of the session, as a rank and its children are.

    torchrun sends SIGTERM to the whole group of a rank. The rank saves then, and cannot without its data workers.
    """
    return os.getpgrp() == os.getsid(0)


def _start_workers_outside_group() -> None:
    """Let what multiprocessing starts without a fork leave the group: workers, and the fork server they end with."""
    from multiprocessing import util  # Takes milliseconds.

    start = util.spawnv_passfds

    def spawnv_passfds(path: Any, args: Any, passfds: Any) -> int:
        command = [path, "-ISc", _IN_OWN_GROUP, path, *args] if _is_in_group_of_rank() else args
        return start(path, command, passfds)

    if start.__module__ != __name__:
        util.spawnv_passfds = spawnv_passfds
