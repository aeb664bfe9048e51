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
import signal
import sys
import threading
import traceback
from collections.abc import Awaitable
from pathlib import Path
from types import AsyncGeneratorType, FrameType, GeneratorType, ModuleType, TracebackType
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

from . import beats, cgroup, env, hyperparameters, project, termination, torchrun  # noqa: E402 -- see above
from .load_function import PayloadError, load, shorten_socket_paths  # noqa: E402
from .rank_lines import RankLines  # noqa: E402
from .status_server import StatusServer  # noqa: E402


def main() -> int:
    """Run the function of the payload; return the exit code."""
    _prepare()
    kills = cgroup.OomKills()
    try:
        record = _call_and_share()
    except KeyboardInterrupt:
        raise
    except SystemExit as stop:
        termination.report_error(stop.with_traceback(strip_internal_frames(stop.__traceback__)))
        raise
    except BaseException as error:  # noqa: BLE001 -- the boundary of the process: every exception is its failure
        _report_failure(error)
        termination.report_values(Path(env.setting(env.TERMINATION_LOG)), **kills.describe())
        return 1
    termination.report_record(record)
    getattr(_get_checkpoints(), "finish", bool)()
    beats.enter(beats.RETURNED)
    return 0


def _call_and_share() -> dict[str, Any]:
    """Call the function; return the record of its result once it lies with the checkpoints, if there are any."""
    if env.rank() and env.setting(env.CHECKPOINT_PATH):
        from . import checkpoints

        checkpoints.remember_launch()
    pause = {}
    try:
        value = _call()
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
        value = None
        if hasattr(stop, "paused_at"):
            pause = {"paused_at": stop.paused_at}
    record = {} if env.rank() else {**termination.result_record(value), **pause}
    beats.enter(beats.OVER)
    getattr(_get_checkpoints(), "share_result", bool)(record)
    return record


def call(payload: dict[str, Any], folder: Path) -> Any:
    """Load the function of a payload, call it with its arguments, and return its result."""
    with StatusServer(folder.parent):
        function = load(payload, folder)
        try:
            value = function(**hyperparameters.override_args(payload.get("args") or {}))
        except BaseException:
            with beats.saving():
                _wait_for_saves()
            raise
        with beats.saving():
            getattr(_get_checkpoints(), "flush", _wait_for_saves)()
    if isinstance(value, (Awaitable, GeneratorType, AsyncGeneratorType)):
        raise PayloadError(
            f"{payload.get('entry')} returned a {type(value).__name__} and did not run: a training function must be a "
            "plain function, not async and not a generator"
        )
    return value


def _wait_for_saves() -> None:
    """Wait for checkpoints that are saved in the background: the job ends with the function."""
    for thread in threading.enumerate():
        if thread.name == env.SAVE_THREAD:
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
    if env.processes_on_node() > 1:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is not None:
                setattr(sys, name, RankLines(getattr(sys, name), env.rank()))
                atexit.register(getattr(sys, name).end_line)
    beats.begin()
    shorten_socket_paths()
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # The kernel delivers SIGTERM to PID 1 only if there is a handler.
        signal.signal(signal.SIGTERM, exit_at_once)
    # Blocked by `launch`, until there is a handler.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    if (_HERE.parent / _SHIPPED).is_file():
        # Last: an installed trainer_core takes precedence.
        sys.path.append(str(_HERE.parent.parent))


def exit_at_once(number: int, frame: FrameType | None) -> None:
    """Exit at once with the exit code of the signal, as any other process does."""
    del frame
    os._exit(128 + number)


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
