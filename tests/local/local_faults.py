"""Kills a process at its n-th side effect: a file opened for writing, a rename, a lock, a new process."""

from __future__ import annotations

import os
import signal
import sys

CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.symlink", "os.fork", "fcntl.flock", "subprocess.Popen"}


def die_at(number: int, count_into: str | None = None) -> None:
    """Kill this process right before its n-th side effect from now.

    Args:
        number: Number of the side effect; 0 to never kill it.
        count_into: File that receives a line for each side effect, to count them.
    """
    seen = 0
    forks = []
    counter = os.open(count_into, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if count_into else None

    def hook(event: str, arguments: tuple) -> None:
        nonlocal seen
        changes = event in CHANGES or (event == "open" and _writes(arguments))
        # The second fork of a supervisor creates the guard, which must survive the supervisor.
        if not changes or (len(forks) == 2 and os.getpid() != forks[1]):
            return
        if event == "os.fork":
            forks.append(os.getpid())
        seen += 1
        if counter is not None:
            os.write(counter, f"{event}\n".encode())
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _writes(arguments: tuple) -> bool:
    flags = arguments[2] if len(arguments) > 2 and isinstance(arguments[2], int) else 0
    return bool(flags & (os.O_CREAT | os.O_WRONLY))
