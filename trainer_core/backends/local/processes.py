"""Finds and kills the processes of a job by an environment variable that each of them inherits.

A child that left the session of its parent, or lost its parent, still has the variable.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Sequence
from contextlib import suppress

import psutil

from trainer_core.node import env

__all__ = ["kill_job_processes", "kill_process", "signal_group"]

_KILL_SECONDS = 3.0
_MAX_ROUNDS = 10
_POLL_SECONDS = 0.01


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to the process group of a step. If the group does not exist, this succeeds."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def kill_process(pid: int) -> None:
    """Kill one process. If it does not exist, this succeeds."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_job_processes(uids: Collection[str]) -> None:
    """Kill every process of some jobs and wait until they have ended.

    The search is repeated, because a process may start another one during the search.

    Args:
        uids: Uids of the jobs.
    """
    for _ in range(_MAX_ROUNDS):
        processes = [process for process in psutil.process_iter() if _read_job_uid(process) in uids]
        if not processes:
            return
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
        _wait_for_end(processes)


def _wait_for_end(processes: Sequence[psutil.Process]) -> None:
    """Wait until the processes are dead. Zombies count as dead: in a container, there may be no parent to reap them."""
    deadline = time.monotonic() + _KILL_SECONDS
    while not all(_is_dead(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _is_dead(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def _read_job_uid(process: psutil.Process) -> str | None:
    if process.pid == os.getpid():
        return None
    try:
        return process.environ().get(env.UID) if process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, OSError):
        return None
