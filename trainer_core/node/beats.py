"""Signs of life of a rank for the attendant of its node, in a file of which both know the place: see `attendant`."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import env, files

#: Phases of a rank. Nothing is expected of one whose function has returned while others run.
START, RUN, SAVE, OVER, RETURNED = range(5)
#: Time of the last beat, phase, process, its main thread, and the last step that was reported.
LAYOUT = struct.Struct("<qqqQd")
#: Prints the stacks of all threads, also while a thread in C holds the lock of the interpreter.
DUMP_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR2) - 2
STACKS = ".stacks"
#: File with the last report of the training, which the attendant repeats.
REPORT = "report"

_phase, _step = START, -1.0
#: Shared memory, and not a descriptor, which the training could close and use for another file.
_memory: Any = None
_pid = _main_thread = 0
_stacks: Any = None


def begin() -> None:
    """Announce this rank, if its node has an attendant. Never raises."""
    global _stacks
    if not env.setting(env.BEATS):
        return
    with contextlib.suppress(Exception):  # The training runs as well without.
        main_thread = threading.main_thread().ident or 0
        data = LAYOUT.pack(time.monotonic_ns(), START, os.getpid(), main_thread, -1.0)
        files.replace(Path(_get_path()), data)
        _open()
        _stacks = open(f"{_get_path()}{STACKS}", "wb")  # noqa: SIM115 -- until the process ends
        faulthandler.register(DUMP_SIGNAL, _stacks)
        if json.loads(env.setting(env.STALLED)).get("output"):
            for stream in (sys.stdout, sys.stderr):
                stream.write = _beat_before(stream.write)  # type: ignore[method-assign]


def beat(step: Any = None) -> None:
    """Note that the training goes forward."""
    global _phase, _step
    # A process that the training has forked is not the rank.
    if _memory is not None and os.getpid() == _pid:
        _phase = _phase or RUN
        if type(step) in (int, float):
            _step = step
        _write()


def enter(phase: int) -> None:
    global _phase
    _phase = phase
    if _memory is not None and os.getpid() == _pid:
        _write()


def keep_report(report: str) -> None:
    """Keep the last report of the training for the attendant. Never raises."""
    if _memory is not None and os.getpid() == _pid:
        with contextlib.suppress(OSError):
            files.replace(Path(env.setting(env.BEATS), REPORT), report.encode())


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """Note that the block saves a checkpoint, or waits for one."""
    before = _phase
    enter(SAVE)
    try:
        yield
    finally:
        enter(before or RUN)


def _beat_before(write: Callable[[str], int]) -> Callable[[str], int]:
    def write_text(text: str) -> int:
        beat()
        return write(text)

    return write_text


def _get_path() -> str:
    return os.path.join(env.setting(env.BEATS), str(env.rank()))


def _write() -> None:
    LAYOUT.pack_into(_memory, 0, time.monotonic_ns(), _phase, _pid, _main_thread, _step)


def _open() -> None:
    """Open the file of this rank, if this process is the rank: the function may import another copy of this package."""
    global _memory, _pid, _main_thread
    import mmap  # Takes time.

    with contextlib.suppress(OSError, ValueError), open(_get_path(), "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
        _, _, _pid, _main_thread, _ = LAYOUT.unpack_from(memory)
        if _pid == os.getpid():
            _memory = memory


if env.setting(env.BEATS):
    _open()
