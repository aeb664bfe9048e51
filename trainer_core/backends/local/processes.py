"""Finds and kills the processes of a job by an environment variable that each of them inherits; measures a step.

A child that left the session of its parent, or lost its parent, still has the variable.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from trainer_core.node import env, resource_monitor
from trainer_core.node.resource_monitor import Usage

__all__ = ["kill_job_processes", "kill_process", "read_usage", "signal_group"]

_KILL_SECONDS = 3.0
_MAX_ROUNDS = 10
_POLL_SECONDS = 0.01


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to the process group of a step. If the group does not exist, this succeeds."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def read_usage(pid: int, proc: Path = Path("/proc")) -> Usage:
    """Return the use of processor and memory by a process and its descendants; the limits are those of this process.

    Memory is their resident memory without files and shared memory.

    Args:
        pid: The process.
        proc: Where procfs is mounted.

    Raises:
        OSError: The files of the machine cannot be read.
        ValueError: A file has another format.
    """
    limits = resource_monitor.read_usage(proc.parent)
    ticks = pages = 0
    pids = [pid]
    while pids:
        folder = proc / str(pids.pop())
        with suppress(OSError):  # It has ended meanwhile.
            # After the name, which can contain anything: its times and those of its children that have ended.
            ticks += sum(map(int, (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[11:15]))
            resident, shared = (folder / "statm").read_text("ascii").split()[1:3]
            pages += int(resident) - int(shared)
            for children in folder.glob("task/*/children"):
                pids += map(int, children.read_text("ascii").split())
    seconds = ticks / os.sysconf("SC_CLK_TCK")
    return Usage(seconds, limits.cpus, pages * os.sysconf("SC_PAGE_SIZE"), limits.memory_limit)


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
