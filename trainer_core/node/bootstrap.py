"""The program of each node process: reads the payload, calls the training function, reports its result or error.

Runs as ``python bootstrap.py``, ``torchrun … bootstrap.py`` or ``python -m trainer_core.node.bootstrap``, with or
without trainer_core installed. As a script it imports the files beside it under a private package name: an installed
trainer_core may have another version, and importing it costs time.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import importlib.util
import io
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

_HERE = Path(__file__).absolute().parent
_PRIVATE = "_trainjob_node"
#: Exists in a package that travelled with the job, and not in an installed one.
_SHIPPED = "SHIPPED"


def _adopt() -> str:
    """Make the folder of this script a package with a private name, and remove it from sys.path.

    Python puts a script's folder first in sys.path, where `result` or `progress` would shadow other modules.
    """
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).absolute() != _HERE]
    if _PRIVATE not in sys.modules:
        place = _HERE / "__init__.py"
        spec = importlib.util.spec_from_file_location(_PRIVATE, place, submodule_search_locations=[str(_HERE)])
        if spec is None:
            raise ImportError(f"{_HERE} cannot be imported")
        sys.modules[_PRIVATE] = importlib.util.module_from_spec(spec)
    return _PRIVATE


# The relative imports below need the package.
if not __package__:
    __package__ = _adopt()

from . import (  # noqa: E402 -- see above
    beats,
    cgroup,
    env,
    exit_code,
    hyperparameters,
    project,
    return_value,
    termination,
    torchrun,
)
from .load_function import PayloadError, load, shorten_socket_paths  # noqa: E402
from .rank_lines import OpenLines, RankLines, show_open_lines  # noqa: E402
from .status_server import StatusServer  # noqa: E402


def main() -> int:
    """Run the function of the payload; return the exit code."""
    _prepare()
    kills = cgroup.OomKills()
    try:
        record, how = _call_and_share()
    except KeyboardInterrupt:
        raise
    except SystemExit as stop:
        termination.report_error(stop.with_traceback(strip_internal_frames(stop.__traceback__)))
        if isinstance(stop.code, int) and not stop.code & 0xFF:
            return 1  # Of other codes the system keeps as little.
        raise
    except BaseException as error:  # noqa: BLE001 -- the boundary of the process: every exception is its failure
        _report_failure(error)
        termination.report_values(Path(env.setting(env.TERMINATION_LOG)), **kills.describe())
        return 1
    if termination.report_record(record):
        exit_code.mark(how)
    getattr(_get_checkpoints(), "finish", bool)()
    beats.enter(beats.RETURNED)
    return 0


def _call_and_share() -> tuple[dict[str, Any], str]:
    """Call the function; return the record of its result, kept with the checkpoints, if any, and how it ended."""
    if env.rank() and env.setting(env.CHECKPOINT_PATH):
        from . import checkpoints

        checkpoints.remember_launch()
    pause, how = {}, exit_code.RETURNED
    try:
        value = _call()
    except SystemExit as stop:
        if not is_success(stop):
            raise
        value, how = None, exit_code.EXITED
        if hasattr(stop, "paused_at"):
            pause, how = {"paused_at": stop.paused_at}, exit_code.RETURNED
    record = {} if env.rank() else {**termination.result_record(value), **pause}
    beats.enter(beats.OVER)
    getattr(_get_checkpoints(), "share_result", bool)(record)
    return record, how


def is_success(stop: SystemExit) -> bool:
    """Return whether Python exits with 0, and not because the system keeps the low byte of the code only."""
    return stop.code is None or (isinstance(stop.code, int) and stop.code == 0)


def call(payload: dict[str, Any], folder: Path) -> Any:
    """Load the function of a payload, call it with its arguments, and return its result."""
    with StatusServer(folder.parent):
        resume = partial(_resume, os.getpid(), env.keep())
        try:
            function = load(payload, folder)
            value = function(**hyperparameters.override_args(payload.get("args") or {}))
        except BaseException as error:
            resume(error)
            _wait_for_saves()
            raise
        resume()
        getattr(_get_checkpoints(), "flush", _wait_for_saves)()
    value = return_value.unwrap(value)
    if (undone := return_value.find_undone(value)) is not None:
        raise PayloadError(
            f"{payload.get('entry')} returned {undone}, whose work was not done: a training function must be a plain "
            "function that returns its result, not async and not a generator, map, partial, function or running Future"
        )
    return value


def _resume(pid: int, restore: Callable[[], None], error: BaseException | None = None) -> None:
    """Restore the variables of the node after the function, or end a fork: what follows belongs to its parent."""
    if os.getpid() == pid:
        return restore()
    code: Any = getattr(error, "code", 1) if error else 0
    with contextlib.suppress(Exception):  # The function may have closed the streams.
        if error and not isinstance(error, SystemExit):
            print_traceback(error)
        elif not isinstance(code, (int, type(None))):
            print(code, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit((code or 0) & 0xFF if isinstance(code, (int, type(None))) else 1)


def _wait_for_saves() -> None:
    """Wait for checkpoints that are saved in the background: the job ends with the function."""
    for thread in threading.enumerate():
        if thread.name == env.SAVE_THREAD:
            with beats.saving():
                thread.join()


def _get_checkpoints() -> ModuleType | None:
    """Return the module of checkpoints that the function has imported, if any: it may be another copy than this one."""
    return sys.modules.get("trainer_core.node.checkpoints")


def _call() -> Any:
    path = Path(env.setting(env.PAYLOAD))
    if not env.setting(env.PAYLOAD):
        raise PayloadError(f"{env.PAYLOAD} is not set; set it to the file of the packaged function")
    try:
        payload = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PayloadError(f"{env.PAYLOAD}={path} cannot be read: {error}") from None
    if not isinstance(payload, dict):
        raise PayloadError(f"{env.PAYLOAD}={path} is not a packaged function")
    return call(payload, path.absolute().parent / "function")


def _prepare() -> None:
    for name, value in env.DEFAULTS.items():
        os.environ.setdefault(name, value)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Followers read the log line by line, and a character that cannot be encoded must not end the training.
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    if sys.stderr is not None and not faulthandler.is_enabled():
        with contextlib.suppress(OSError, RuntimeError):  # faulthandler needs a stderr with a file descriptor.
            faulthandler.enable()
    lines: list[OpenLines] = []
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            continue
        if env.processes_on_node() > 1:
            setattr(sys, name, RankLines(getattr(sys, name), env.rank()))
            atexit.register(getattr(sys, name).end_line)
            lines.append(getattr(sys, name))
        else:
            lines.append(OpenLines(getattr(sys, name)))
            getattr(sys, name).write = lines[-1].write
    beats.begin()
    show_open_lines(lines, beats.watch)
    shorten_socket_paths()
    if (_HERE.parent / _SHIPPED).is_file():
        # Last: an installed trainer_core takes precedence.
        sys.path.append(str(_HERE.parent.parent))


def _report_failure(error: BaseException) -> None:
    error = error.with_traceback(strip_internal_frames(error.__traceback__))
    termination.report_error(error)
    print_traceback(error)


def print_traceback(error: BaseException) -> None:
    """Print a traceback to standard error, with the paths of the user's project."""
    trace = traceback.format_exception(type(error), error, error.__traceback__)
    print(project.shorten("".join(trace)), file=sys.stderr, end="")


def strip_internal_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames above the training function."""
    called = trace
    while called is not None:
        if called.tb_frame.f_code is call.__code__:
            trace = called
        called = called.tb_next
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_ours(filename: str) -> bool:
    importing = filename.startswith("<frozen importlib") or filename == importlib.__file__
    return importing or Path(filename).parent == _HERE


if __name__ == "__main__":
    if sys.argv[1:] == [env.TORCHRUN]:
        torchrun.main(__file__)
    else:
        sys.exit(main())
