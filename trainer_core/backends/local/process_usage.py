"""Measures the use of processor and memory by a step."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from trainer_core.node import resource_monitor
from trainer_core.node.resource_monitor import Usage

__all__ = ["read_usage"]


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
