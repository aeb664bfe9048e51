"""Runs the function of a debugged TrainJob in this process, under a debugger.

Also a program, for a function that needs another environment or may end its process: ``python -m
trainer_core.client.debug_session <folder>`` reads the session from a folder, and writes the outcome there.
"""

from __future__ import annotations

import bdb
import contextlib
import json
import pdb
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from trainer_core.backends.debug import DebugBackend
from trainer_core.model.jobs import Outcome
from trainer_core.model.request import TrainJobRequest

#: Files of a session that runs as a program.
_SESSION, _OUTCOME = "session.json", "outcome.json"
#: Exit code of the program after the user has left the debugger.
INTERRUPTED = 130


@dataclass(frozen=True)
class Session:
    """What to run.

    Attributes:
        request: The request, as JSON.
        folder: Folder of all its files.
        pdb: Whether an exception starts the debugger.
        file: File of the breakpoint, as it ends. None for no breakpoint.
        line: Line of the breakpoint.
    """

    request: str
    folder: str
    pdb: bool = True
    file: str | None = None
    line: int = 0

    def write(self) -> None:
        """Write the session for the program."""
        Path(self.folder, _SESSION).write_text(json.dumps(asdict(self)), encoding="utf-8")

    def read_outcome(self) -> Outcome | None:
        """Return the outcome that the program has written; None if its process died before."""
        path = Path(self.folder, _OUTCOME)
        return Outcome.from_dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


class _SessionBackend(DebugBackend):
    """The debug backend with its downloads in the folder of the session, and a debugger for exceptions."""

    def __init__(self, folder: Path, debugger: _Debugger | None) -> None:
        super().__init__()
        self._folder, self._debugger = folder, debugger

    @property
    def cache(self) -> Path:
        return self._folder / "cache"

    def on_error(self, error: BaseException) -> None:
        if self._debugger is not None:
            self._debugger.inspect(error)


class _Debugger(pdb.Pdb):
    """pdb on the terminal of the process, while the output of the training is copied to its log."""

    def __init__(self, file: str | None, line: int) -> None:
        super().__init__()
        self._file, self._line = file, line
        self._output = sys.stdout, sys.stderr
        self.was_reached = False

    def interaction(self, *args: Any, **named: Any) -> None:
        # On the terminal itself input() edits lines.
        out, err = self._output
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            super().interaction(*args, **named)

    def inspect(self, error: BaseException) -> None:
        """Start at the line that raised an exception."""
        self.stop_watching()
        self.reset()
        self.interaction(None, error.__traceback__)

    def watch(self) -> None:
        """Stop at the line of the breakpoint, whose module is loaded later."""
        if self._file is not None:
            sys.settrace(self._watch_calls)

    def stop_watching(self) -> None:
        """Stop at no further line: pdb has also marked the frames that called the function."""
        if self._file is not None:
            sys.settrace(None)
            frame: FrameType | None = sys._getframe()
            while frame is not None:
                if frame.f_trace == self.trace_dispatch:
                    frame.f_trace = None
                frame = frame.f_back

    def _watch_calls(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        is_file = name == self._file or name.endswith(f"/{self._file}")
        return self._watch_lines if event == "call" and is_file else None

    def _watch_lines(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event != "line" or frame.f_lineno != self._line:
            return self._watch_lines
        self.was_reached = True
        # From here it is a breakpoint of pdb, which its commands list, disable and clear.
        self.set_break(frame.f_code.co_filename, self._line)
        self.set_trace(frame)
        return self.trace_dispatch(frame, event, arg)

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:  # It would be an error of the training.
            raise KeyboardInterrupt from None


def run(session: Session) -> Outcome:
    """Run the function of a session here; return the outcome. Leaving the debugger raises KeyboardInterrupt."""
    debugger = _Debugger(session.file, session.line) if session.pdb else None
    backend = _SessionBackend(Path(session.folder), debugger)
    # The debugger of an editor traces this thread, too. pdb replaces the handler, and keeps it after its last command.
    trace, handler = sys.gettrace(), signal.getsignal(signal.SIGINT)
    try:
        if debugger is not None:
            debugger.watch()
        ref = backend.submit(TrainJobRequest.from_json(session.request))
        outcome = backend.observe(ref).outcome
    finally:
        if debugger is not None:
            debugger.stop_watching()
        sys.settrace(trace)
        if signal.getsignal(signal.SIGINT) is not handler:
            signal.signal(signal.SIGINT, handler)
        for job in backend.list_jobs():
            backend.delete(backend.get_ref(job.name))
    if outcome is None:
        raise RuntimeError("the debug backend returned before the function")
    if debugger is not None and session.file is not None and not debugger.was_reached:
        print(f"trainjob: the breakpoint at {session.file}:{session.line} was not reached", file=sys.stderr)
    return outcome


def main(folder: str) -> None:
    """Run the session in a folder, and write the outcome there."""
    session = Session(**json.loads(Path(folder, _SESSION).read_text(encoding="utf-8")))
    try:
        outcome = run(session)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    Path(folder, _OUTCOME).write_text(json.dumps(outcome.to_dict()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
