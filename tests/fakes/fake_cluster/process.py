"""One run of a container: a local process in a separate process group, with its output in a log, line by line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from fake_cluster.podlog import Log

_CHUNK = 65536
#: Seconds without output, after the end of all processes of a container, until reading ends.
_DRAIN = 1.0


class StartError(Exception):
    """The program of a container cannot be started; the text is a container runtime's."""


class Process:
    """A process and everything that it starts."""

    def __init__(self, process: asyncio.subprocess.Process, log: Log) -> None:
        self._process = process
        self._pieces = 0
        self._reader = asyncio.create_task(self._read(log))

    @classmethod
    async def start(cls, argv: Sequence[str], environment: Mapping[str, str], folder: Path, log: Log) -> Process:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=folder,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            raise StartError(
                f"failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create "
                f'failed: unable to start container process: exec: "{argv[0]}": {error.strerror}: unknown'
            ) from error
        return cls(process, log)

    async def wait(self) -> int:
        """Return the exit code as container runtimes give it: 128 + the number of a signal."""
        try:
            code = await self._process.wait()
        except asyncio.CancelledError:
            self.signal(signal.SIGKILL)
            await self._process.wait()
            await self._drain()
            raise
        # What the first process of a container leaves behind ends with it, and with that its output.
        self.signal(signal.SIGKILL)
        await self._drain()
        return 128 - code if code < 0 else code

    def signal_first(self, number: int) -> bool:
        """Send a signal to its first process only, as a container runtime that stops a container.

        It has number 1 there: the kernel drops a SIGTERM for which it has no handler, and kills the others with it.
        Return whether it was sent.
        """
        if number == signal.SIGKILL:
            self.signal(number)
        if number == signal.SIGTERM and not _handles(self._process.pid, number):
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._process.send_signal(number)
        return True

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _drain(self) -> None:
        """Read the output to its end, unless a process that left the process group holds the pipe."""
        seen = -1
        # A machine that is busy reads slowly, and kills slowly: as long as something comes, there may be more.
        while seen < self._pieces and not self._reader.done():
            seen = self._pieces
            await asyncio.wait({self._reader}, timeout=_DRAIN)
        if not self._reader.done():
            self._reader.cancel()
            await asyncio.wait({self._reader})

    async def _read(self, log: Log) -> None:
        assert self._process.stdout is not None
        rest = b""
        try:
            while data := await self._process.stdout.read(_CHUNK):
                self._pieces += 1
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    log.write(line)
        finally:
            if rest:
                log.write(rest)


def _handles(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, or has blocked it until it has one."""
    with contextlib.suppress(OSError):
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return bool((int(fields["SigCgt"], 16) | int(fields["SigBlk"], 16)) >> (number - 1) & 1)
    return True
