"""Every process of a job, found by the mark in its environment, and ended.

The mark is inherited by whatever a process starts, so a child that left its session or lost its parent is found too.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil

__all__ = ["MARK", "end_all", "kill", "signal_group"]

#: Environment variable that every process of a job carries; its value is the job's uid.
MARK = "TRAINJOB_UID"
_TERMINATE_SECONDS = 3.0
_ROUNDS = 10


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a step's process group; gone already is fine."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end_all(uid: str) -> None:
    """Kill every process of a job and wait until none is left.

    Repeated, because a process may start another while it is looked for.
    """
    for _ in range(_ROUNDS):
        found = _of_job(uid)
        if not found:
            return
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=_TERMINATE_SECONDS)


def _of_job(uid: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _mark(process) == uid]


def _mark(process: psutil.Process) -> str | None:
    if process.pid == os.getpid():
        return None
    try:
        return process.environ().get(MARK) if process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, OSError):
        return None


def kill(pid: int) -> None:
    """Kill one process; gone already is fine."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
