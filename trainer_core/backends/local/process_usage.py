"""Measures the use of processor and memory by a step."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainer_core.node import resource_monitor
from trainer_core.node.resource_monitor import Usage

__all__ = ["UsageReader"]

#: The kernel walks all pages to tell what is shared, which takes seconds for 100 GB: at most 1 % of the time.
_PAUSE_FACTOR = 100


class UsageReader:
    """Measures a process and its descendants, again and again."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._pid = pid
        self._proc = proc
        #: Memory in use divided by the sum of the processes' memory, as measured last, and when to measure it again.
        self._share, self._next_measurement = 1.0, 0.0

    def read(self) -> Usage:
        """Return the use of processor and memory so far; the limits are those of this process.

        Memory is resident memory without files and shared memory. What a process shares with those that it forked, such
        as the workers of a DataLoader, counts once.
        """
        limits = resource_monitor.read_usage(self._proc.parent)
        ticks = pages = 0
        has_forked, running = False, []
        processes = [(self._pid, b"")]
        while processes:
            pid, parent_command = processes.pop()
            folder = self._proc / str(pid)
            with suppress(OSError):  # It has ended meanwhile.
                # After the name, which can contain anything: its times and those of its children that have ended.
                times = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[11:15]
                ticks += sum(map(int, times))
                resident, shared = (folder / "statm").read_text("ascii").split()[1:3]
                command = (folder / "cmdline").read_bytes()
                if int(resident):
                    pages += int(resident) - int(shared)
                    running.append(folder)
                    has_forked = has_forked or command == parent_command
                for children in folder.glob("task/*/children"):
                    processes += [(int(child), command) for child in children.read_text("ascii").split()]
        memory = pages * os.sysconf("SC_PAGE_SIZE")
        if has_forked and memory and time.monotonic() >= self._next_measurement:
            self._measure_share(running, memory)
        used = int(memory * self._share) if has_forked else memory
        return Usage(ticks / os.sysconf("SC_CLK_TCK"), limits.cpus, used, limits.memory_limit)

    def _measure_share(self, running: Sequence[Path], memory: int) -> None:
        began = time.monotonic()
        with suppress(OSError, ValueError):  # A process has ended meanwhile, or Linux is older than 5.4.
            self._share = sum(map(_read_proportional_memory, running)) / memory
        ended = time.monotonic()
        self._next_measurement = ended + _PAUSE_FACTOR * (ended - began)


def _read_proportional_memory(process: Path) -> int:
    """Return the anonymous memory of a process in bytes; a page counts by the number of processes that share it."""
    words = (process / "smaps_rollup").read_text("ascii").split()
    return int(words[words.index("Pss_Anon:") + 1]) * 1024
