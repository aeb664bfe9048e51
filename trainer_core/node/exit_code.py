"""The exit code of a node, which is 0 only if the functions of its processes have returned.

A process leaves a mark when its function has returned and its record is written. What started the processes of the node
decides by the marks: `launch`, or the supervisor of a local job.
"""

from __future__ import annotations

import contextlib
import glob
import os
import signal
from collections.abc import Callable
from pathlib import Path

from . import env, termination

#: How a function ended: it returned, or it called ``sys.exit(0)``.
RETURNED, EXITED = "returned", "exited"
_NO_RECORD = (
    "it ended with exit code 0 and without a record that its function returned: the function ended the process "
    "(os._exit, os.exec), or the record could not be written, as its log says"
)


def mark(how: str) -> None:
    """Note how the function of this process ended. A symbolic link needs neither a descriptor nor disk space."""
    if env.setting(env.MARKS):
        with contextlib.suppress(OSError):
            os.symlink(f"{how} {env.processes_on_node()}", f"{env.setting(env.MARKS)}{env.restart()}-{env.rank()}")


def clear_marks(prefix: str) -> None:
    for path in glob.glob(f"{glob.escape(prefix)}*"):
        os.unlink(path)


def decide(code: int, prefix: str, log: Path, is_stopped: bool, write: Callable[[str], object]) -> int:
    """Return the exit code of a node whose processes have ended with one.

    It is 0 if all functions have returned: what crashes afterwards is a note. ``sys.exit(0)`` counts as a return,
    unless the process was told to stop or ended with another code.
    """
    record, how = termination.read_record(log), _read_marks(prefix)
    clear_marks(prefix)
    if how is None:
        # The function may have emptied the folder of the marks, or changed its user.
        how = {EXITED} if "result" in record else set()
    # torchrun may report an error of its own after the functions have returned.
    if (how == {RETURNED} and (not code or "error" not in record)) or (how and not code and not is_stopped):
        if code:
            note = f"the process ended with {_describe(code)} after the function had returned"
            write(f"trainjob: {note}\n")
            termination.report_values(log, note="; ".join(filter(None, (note, record.get("note")))))
        return 0
    if not code and not is_stopped:
        write(f"trainjob: {_NO_RECORD}\n")
        error = {"type": "trainjob.NoRecord", "message": _NO_RECORD, "traceback": "", "rank": env.rank()}
        termination.report_error_record({"error": error}, log)
    # torchrun ends with 1 where SIGTERM reaches it before its processes save.
    is_silent = not code or (code == 1 and record.keys().isdisjoint(("error", "exits")))
    return 128 + signal.SIGTERM if is_stopped and is_silent else code or 1


def _read_marks(prefix: str) -> set[str] | None:
    """Return how the functions of the last start ended: an empty set unless all have, None without any mark."""
    found = []
    for path in glob.glob(f"{glob.escape(prefix)}*"):
        how, size = os.readlink(path).split()
        found.append((int(path[len(prefix) :].partition("-")[0]), int(size), how))
    last = [each for each in found if each[0] == max(found)[0]]
    if not last:
        return None
    return {how for _, _, how in last} if len(last) >= last[0][1] else set()


def _describe(code: int) -> str:
    number = -code if code < 0 else code - 128
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"exit code {code}"
