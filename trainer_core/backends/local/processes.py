"""Finds and kills the processes of a job by an environment variable that each of them inherits.

A child that left the session of its parent, or lost its parent, still has the variable.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from trainer_core.node import env

__all__ = ["find_processes", "kill_job_processes", "signal_group", "signal_supervisor"]

_KILL_SECONDS = 3.0
#: Seconds to wait for a process that begins another program.
_EXEC_SECONDS = 1.0
_MAX_ROUNDS = 10
_POLL_SECONDS = 0.01
#: Linux has it, macOS has not.
_PROC = Path("/proc")


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to the process group of a step. If the group does not exist, this succeeds."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


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


def kill_job_processes(uids: Collection[str], proc: Path = _PROC) -> None:
    """Kill every process of some jobs and wait until they have ended.

    The search is repeated, because a process may start another one during the search.
    """
    for _ in range(_MAX_ROUNDS):
        killed = []
        # Each is killed when it is found: later its process id may belong to another process.
        for pid in find_processes(uids, proc):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        if not killed:
            return
        _wait_for_end(killed, proc)


def find_processes(uids: Collection[str], proc: Path = _PROC) -> Iterator[int]:
    """Yield the ids of the processes of some jobs, without this process."""
    if not proc.exists():
        yield from _find_processes_without_proc(uids)
        return
    # Read directly: psutil takes 30 ms to import, and several system calls for each process.
    variables = {f"{env.UID}={uid}".encode() for uid in uids}
    for folder in proc.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):  # It has ended meanwhile, or belongs to another user.
            if not variables.isdisjoint(_read_environment(folder)):
                yield int(folder.name)


def _read_environment(process: Path) -> list[bytes]:
    """Return the environment of a process.

    While a process begins another program, it has neither environment nor command line: wait for the end of `exec`.
    """
    deadline, is_set_up = time.monotonic() + _EXEC_SECONDS, False
    while not (environment := (process / "environ").read_bytes()):
        (process / "exe").readlink()  # A zombie and a kernel thread have none.
        if is_set_up or time.monotonic() > deadline:
            break
        is_set_up = bool((process / "cmdline").read_bytes())
        if not is_set_up:
            time.sleep(_POLL_SECONDS)
    return environment.split(b"\0")


def _find_processes_without_proc(uids: Collection[str]) -> Iterator[int]:
    import psutil  # See `find_processes`.

    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            is_own = process.pid == os.getpid()
            if not is_own and process.status() != psutil.STATUS_ZOMBIE and process.environ().get(env.UID) in uids:
                yield process.pid


def _wait_for_end(pids: Sequence[int], proc: Path) -> None:
    """Wait until processes are dead. Zombies count as dead: in a container, there may be no parent to reap them."""
    is_dead = partial(_is_dead, proc=proc) if proc.exists() else _is_dead_without_proc
    deadline = time.monotonic() + _KILL_SECONDS
    while not all(map(is_dead, pids)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _is_dead(pid: int, proc: Path) -> bool:
    try:
        # The state is behind the name, which can contain anything.
        return (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


def _is_dead_without_proc(pid: int) -> bool:
    import psutil  # See `find_processes`.

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True
