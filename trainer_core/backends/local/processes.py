"""Every process of a job, found by the mark in its environment, and ended.

The mark is inherited by whatever a process starts, so a child that left its session or lost its parent is found too.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

__all__ = ["MARK", "end_all", "kill", "signal_group"]

#: Environment variable that every process of a job carries; its value is the job's uid.
MARK = "TRAINJOB_UID"
_TERMINATE_SECONDS = 3.0
_ROUNDS = 10
_LOOK_SECONDS = 0.01


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
        _wait(found)


def _wait(processes: Sequence[psutil.Process]) -> None:
    """Wait until the processes have ended; not until somebody has taken notice, which in a container may be nobody."""
    end = time.monotonic() + _TERMINATE_SECONDS
    while not all(_has_ended(process) for process in processes) and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)


def _has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


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
