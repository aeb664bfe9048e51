"""Kills a process at its n-th change to the world: a file opened for writing, a rename, a lock, a new process."""

from __future__ import annotations

import os
import signal
import sys

CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.symlink", "os.fork", "fcntl.flock", "subprocess.Popen"}


def die_at(number: int, count_into: str | None = None) -> None:
    """Kill this process when it is about to make its n-th change from now.

    Args:
        number: Which change; 0 for none.
        count_into: A file that gets a line for each change, to learn how many there are.
    """
    seen = 0
    forks = []
    counter = os.open(count_into, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if count_into else None

    def hook(event: str, arguments: tuple) -> None:
        nonlocal seen
        changes = event in CHANGES or (event == "open" and _writes(arguments))
        # After its second fork a supervisor has a guard, which is there for when the supervisor dies.
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
