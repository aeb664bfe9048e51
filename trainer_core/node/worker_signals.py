"""SIGTERM in the workers that multiprocessing starts, such as those of torch's DataLoader: only their parent ends them.

torchrun, a supervisor or the machine may send SIGTERM to all processes of a training. A rank saves then, and cannot
without its workers. Some set a handler of their own: therefore SIGTERM is blocked, and a thread waits for it.

A spawned worker imports this file alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from functools import partial
from multiprocessing import process, util
from typing import Any

block, unblock = (
    partial(signal.pthread_sigmask, how, [signal.SIGTERM]) for how in (signal.SIG_BLOCK, signal.SIG_UNBLOCK)
)


def protect_workers() -> None:
    """Protect the workers that this process starts from now on, and theirs."""
    start = util.spawnv_passfds
    if start.__module__ == __name__ or not hasattr(signal, "sigwaitinfo"):  # macOS has it not.
        return
    folder = os.path.dirname(os.path.abspath(__file__))
    load = f"import sys; sys.path.insert(0, {folder!r}); import {os.path.basename(__file__)[:-3]} as signals; "
    load += "del sys.path[0]; signals.protect_workers(); "
    wait = f"signals.wait_for_parent(signals, {os.getpid()}); "

    def spawnv_passfds(path: Any, args: Any, passfds: Any) -> int:
        command = list(args)
        if "-c" in command:
            program = command[command.index("-c") + 1]
            # A fork server and a resource tracker wait for the ends of pipes.
            command[command.index("-c") + 1] = load + wait * ("spawn_main" in program) + program
        before = block()
        try:
            return start(path, command, passfds)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    util.spawnv_passfds = spawnv_passfds
    util.register_after_fork(protect_workers, wait_for_parent)


def wait_for_parent(_: object, starter: int = 0) -> None:
    """End this worker on SIGTERM if its parent has sent it or has ended. A fork server starts it for its parent."""
    starter = starter or os.getppid()
    block()
    main = threading.current_thread()
    if signal.getsignal(signal.SIGURG) == signal.SIG_DFL:
        signal.signal(signal.SIGURG, lambda *_: None)

    def wait() -> None:
        while True:
            sender, parent = signal.sigwaitinfo([signal.SIGTERM]).si_pid, process.parent_process()
            is_alive = os.getppid() == starter and (parent is None or parent.is_alive())
            if not is_alive or sender == (parent.pid if parent else starter):
                unblock()
                os.kill(os.getpid(), signal.SIGTERM)
                block()
                # A handler in Python runs in the main thread, which may wait in a system call.
                if main.ident and callable(signal.getsignal(signal.SIGTERM)):
                    signal.pthread_kill(main.ident, signal.SIGURG)

    threading.Thread(target=wait, name="trainjob-sigterm", daemon=True).start()
    # What a worker forks by itself may become another program.
    os.register_at_fork(after_in_child=unblock)
    execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def execute_child(*args: Any, **kwargs: Any) -> Any:
        """Start a program without the blocked signal, which it would inherit."""
        before = unblock()
        try:
            return execute(*args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
