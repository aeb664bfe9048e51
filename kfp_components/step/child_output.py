"""Keeps stdout and stderr of the step from child processes of code that runs in the step's own process.

KFP's launcher ends a step when the program has ended and every process has closed its stdout and stderr. A child that
training code leaves behind would keep the step running until its deadline.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_CHUNK = 65_536


@contextmanager
def pipe_output() -> Iterator[None]:
    """Let children that start in the block inherit pipes instead of the step's own stdout and stderr.

    What is written in the block is copied to the step's output at once. With the end of the block a child that is
    still there writes to a closed pipe.
    """
    copies = [_Copy(number) for number in (1, 2)]
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for copy in copies:
            copy.stop()


class _Copy:
    """A pipe in place of a file descriptor, and a thread that copies from the pipe to the original."""

    def __init__(self, number: int) -> None:
        self._number = number
        # os.dup makes descriptors that children do not inherit.
        self._original = os.dup(number)
        self._read, write = os.pipe()
        os.dup2(write, number)
        os.close(write)
        # Closed to end the thread: the pipe itself stays open as long as a child has it.
        self._stopped, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._copy, name=f"output {number}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        os.dup2(self._original, self._number)
        os.close(self._stop)
        self._thread.join()
        for descriptor in (self._original, self._read, self._stopped):
            os.close(descriptor)

    def _copy(self) -> None:
        while True:
            ready, _, _ = select.select([self._read, self._stopped], [], [])
            data = os.read(self._read, _CHUNK) if self._read in ready else b""
            if not data:
                # Stopped, or every process has closed the pipe.
                return
            while data:
                data = data[os.write(self._original, data) :]
