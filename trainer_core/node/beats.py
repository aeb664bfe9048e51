"""Signs of life of a rank for the attendant of its node, in files of which both know the place: see `attendant`.

What counts is decided here. A report of any form is a `beat`, whether it is shown or not and whichever process of the
rank makes it, and so is a bar of tqdm that has moved. A child of the rank, which may die in a save, has its own file.
"""

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
RUN, SAVE, OVER, RETURNED = range(4)
#: Time of the last sign, phase, process, its main thread, the last step, and whether it has reported progress. A child
#: has the process of its rank instead of a main thread.
LAYOUT = struct.Struct("<qqqQdq")
_NUMBER, _STEP = struct.Struct("<q"), struct.Struct("<d")
_PHASE_AT, _STEP_AT, _REPORTED_AT = 8, 32, 40
#: Prints the stacks of all threads, also while a thread in C holds the lock of the interpreter.
DUMP_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR2) - 2
STACKS = ".stacks"
#: File with the last report of the training, which the attendant repeats.
REPORT = "report"

#: Shared memory, and not a descriptor, which the training could close and use for another file; and whose it is.
_memory: Any = None
_pid = 0
#: The file for stacks, and its descriptor.
_stacks = ("", -1)
_bars: set[tuple[Any, ...]] = set()


def begin() -> None:
    """Announce this rank, if its node has an attendant. Never raises."""
    global _stacks
    if not env.setting(env.BEATS):
        return
    with contextlib.suppress(Exception):  # The training runs as well without.
        # By the path its children find the rank, whatever number they have themselves.
        path = os.environ[env.BEATS] = os.path.join(env.setting(env.BEATS), str(env.rank()))
        main_thread = threading.main_thread().ident or 0
        files.replace(Path(path), LAYOUT.pack(time.monotonic_ns(), RUN, os.getpid(), main_thread, -1.0, 0))
        _open()
        _stacks = (f"{path}{STACKS}", -1)
        watch()
        if json.loads(env.setting(env.STALLED)).get("output"):
            for stream in (sys.stdout, sys.stderr):
                stream.write = _beat_before(stream.write)  # type: ignore[method-assign]


def beat(step: Any = None, is_progress: bool = True) -> None:
    """Note that the training goes forward, or without `is_progress` that it still prepares to begin."""
    if (memory := _open()) is not None:
        if type(step) in (int, float):
            _STEP.pack_into(memory, _STEP_AT, step)
        if is_progress:
            _NUMBER.pack_into(memory, _REPORTED_AT, 1)
        _NUMBER.pack_into(memory, 0, time.monotonic_ns())


def enter(phase: int) -> None:
    if (memory := _open()) is not None:
        _NUMBER.pack_into(memory, _PHASE_AT, phase)
        _NUMBER.pack_into(memory, 0, time.monotonic_ns())


def keep_report(report: str) -> None:
    """Keep the last report of the training for the attendant. Never raises."""
    if _open() is not None:
        with contextlib.suppress(OSError):
            files.replace(Path(env.setting(env.BEATS)).with_name(REPORT), report.encode())


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """Note that the block saves a checkpoint, or waits for one."""
    memory = _open()
    before = RUN if memory is None else _NUMBER.unpack_from(memory, _PHASE_AT)[0]
    beat()
    enter(SAVE)
    try:
        yield
    finally:
        enter(before)


def watch() -> None:
    """Notice bars of tqdm that have moved, and keep the file for stacks open. Called every second. Never raises."""
    global _bars
    if _stacks[0]:
        with contextlib.suppress(Exception):  # Another thread may change bars meanwhile.
            _keep_stacks_open()
            tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
            bars = {(id(bar), bar.n, bar.unit) for bar in getattr(tqdm, "_instances", ())}
            moved, is_same, _bars = bars - _bars, bars == _bars, bars
            if not is_same:
                # Bars of bytes are downloads.
                beat(is_progress=any(unit != "B" for _, _, unit in moved))


def _keep_stacks_open() -> None:
    """Open the file for stacks where the training has closed its descriptor, and perhaps has another file there."""
    global _stacks
    path, descriptor = _stacks
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return
    _stacks = path, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    faulthandler.register(DUMP_SIGNAL, _stacks[1])


def _beat_before(write: Callable[[str], int]) -> Callable[[str], int]:
    def write_text(text: str) -> int:
        beat()
        return write(text)

    return write_text


def _open() -> Any:
    """Return the memory of this process, the rank or a child of it, which may be a fork; None without an attendant.

    The function may import another copy of this package, which opens the same file.
    """
    global _memory, _pid
    if _pid != (pid := os.getpid()):
        _memory, path = None, env.setting(env.BEATS)
        if path:
            with contextlib.suppress(Exception):  # The folder is lost, or no descriptor is free now.
                import mmap  # Takes time.

                if (rank := LAYOUT.unpack(Path(path).read_bytes())[2]) != pid:
                    path += f"-{pid}"
                    if not os.path.exists(path):
                        files.replace(Path(path), LAYOUT.pack(0, RUN, pid, rank, -1.0, 0))
                with open(path, "r+b") as file:
                    _memory, _pid = mmap.mmap(file.fileno(), 0), pid
    return _memory
