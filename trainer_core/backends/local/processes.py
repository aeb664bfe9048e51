"""Finds, measures and ends the processes of a job, by a mark that all children inherit.

The mark is the limit of real-time processor time, far above what any process uses. A process keeps it with another
environment, title, session or user; see docs/decisions/processes-of-a-job.md. Where the system has no such limit, and
for programs that reset it (su), an environment variable is the mark.
"""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import suppress
from functools import partial
from pathlib import Path

from trainer_core.node import env, resource_monitor
from trainer_core.node.resource_monitor import Usage

_KILL_SECONDS = 3.0
_MAX_ROUNDS = 10
_POLL_SECONDS = 0.01
#: Linux has it, macOS has not.
_PROC = Path("/proc")
_LIMIT = b"Max realtime timeout"
#: The kernel walks all pages to tell what is shared, which takes seconds for 100 GB: at most 1 % of the time.
_PAUSE_FACTOR = 100


def signal_supervisor(pid: int, number: signal.Signals, is_alive: Callable[[], bool]) -> None:
    """Send a signal to a supervisor that is alive, and never to a later process with its id."""
    with suppress(ProcessLookupError):
        try:
            handle = os.pidfd_open(pid)
        except (AttributeError, OSError) as error:
            if isinstance(error, ProcessLookupError) or not is_alive():
                return
            os.kill(pid, number)  # macOS, or Linux before 5.3.
            return
        try:
            # The handle means the supervisor if that is alive after the handle was opened.
            if is_alive():
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def mark_process(uid: str) -> None:
    """Mark this process as one of a job. Never raises: it runs between fork and exec."""
    with suppress(AttributeError, OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (_get_mark(uid), resource.getrlimit(resource.RLIMIT_RTTIME)[1]))


def _get_mark(uid: str) -> int:
    """Return microseconds: at least 36,000 years."""
    return 2**60 + int.from_bytes(hashlib.blake2b(uid.encode(), digest_size=7).digest(), "big")


def kill_job_processes(uids: Collection[str], proc: Path = _PROC) -> None:
    """Kill every process of some jobs and wait for their end; search again, because one may start another meanwhile."""
    for _ in range(_MAX_ROUNDS):
        # Each is killed when it is found: later its process id may belong to another process.
        killed = [pid for pid, _ in find_processes(uids, proc) if _signal(pid, signal.SIGKILL)]
        if not killed:
            return
        _wait_for_end(killed, proc)


def terminate_orphans(uid: str, told: set[int], proc: Path = _PROC) -> bool:
    """Send SIGTERM to the processes of a job whose parents have ended, and that were not told; return whether any are.

    A process that has a parent is the parent's business: the checkpoint of a training may need its workers.
    """
    found = dict(find_processes([uid], proc))
    orphans = {pid for pid, parent in found.items() if parent not in found and parent != os.getpid()}
    for pid in orphans - told:
        _signal(pid, signal.SIGTERM)
    told |= orphans
    return bool(orphans)


def _signal(pid: int, number: signal.Signals) -> bool:
    """Send a signal; return whether it was sent. The process may have ended, or belong to another user."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
        return True
    return False


def find_processes(uids: Collection[str], proc: Path = _PROC) -> Iterator[tuple[int, int]]:
    """Yield the ids of the processes of some jobs, without this process, and of their parents."""
    if not proc.exists():
        yield from _find_processes_without_proc(uids)
        return
    # Read directly: psutil takes 30 ms to import, and several system calls for each process.
    marks = {str(_get_mark(uid)).encode() for uid in uids}
    variables = {f"{env.UID}={uid}".encode() for uid in uids}
    for folder in proc.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):  # It has ended meanwhile, or its environment belongs to another user.
            if _is_marked(folder, marks, variables):
                is_alive, parent = _read_state(folder)
                if is_alive:
                    yield int(folder.name), parent


def _is_marked(process: Path, marks: Set[bytes], variables: Set[bytes]) -> bool:
    with suppress(FileNotFoundError):  # Of a system without this file, or it has ended meanwhile.
        limit = (process / "limits").read_bytes().rpartition(_LIMIT)[2].split()[:1]
        if not marks.isdisjoint(limit):
            return True
    return not variables.isdisjoint((process / "environ").read_bytes().split(b"\0"))


def _find_processes_without_proc(uids: Collection[str]) -> Iterator[tuple[int, int]]:
    import psutil  # See `find_processes`.

    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            is_own = process.pid == os.getpid()
            if not is_own and process.status() != psutil.STATUS_ZOMBIE and process.environ().get(env.UID) in uids:
                yield process.pid, process.ppid()


def _wait_for_end(pids: Sequence[int], proc: Path) -> None:
    """Wait until processes are dead. Zombies count as dead: in a container, there may be no parent to reap them."""
    is_dead = partial(_is_dead, proc=proc) if proc.exists() else _is_dead_without_proc
    deadline = time.monotonic() + _KILL_SECONDS
    while not all(map(is_dead, pids)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _is_dead(pid: int, proc: Path) -> bool:
    try:
        return not _read_state(proc / str(pid))[0]
    except OSError:
        return True


def _read_state(process: Path) -> tuple[bool, int]:
    """Return whether a process is alive, and its parent. One whose first thread has ended may have others."""
    # The fields behind the name, which can contain anything.
    fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
    return fields[0] not in (b"Z", b"X") or int(fields[17]) > 1, int(fields[1])


def _is_dead_without_proc(pid: int) -> bool:
    import psutil  # See `find_processes`.

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


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
