"""The program of every node process: read the payload, call the function, report what became of it.

Runs as ``python bootstrap.py``, ``torchrun … bootstrap.py`` or ``python -m trainer_core.inside.bootstrap``, with or
without trainer_core installed. As a script it imports the files beside it under a private name: an installed
trainer_core may be of another version, and costs an import that most trainings do not need.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import inspect
import io
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

_HERE = Path(__file__).absolute().parent
_PRIVATE = "_trainjob_inside"
#: Lies in the package where it was shipped; the installed one has no such file.
_SHIPPED = "SHIPPED"


def _adopt() -> str:
    """Make the folder of this script a package of a private name, and no place to import modules from.

    Python puts a script's folder at the head of sys.path, where `result` or `progress` would hide other modules.
    """
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).absolute() != _HERE]
    if _PRIVATE not in sys.modules:
        place = _HERE / "__init__.py"
        spec = importlib.util.spec_from_file_location(_PRIVATE, place, submodule_search_locations=[str(_HERE)])
        if spec is None:
            raise ImportError(f"{_HERE} cannot be imported from")
        sys.modules[_PRIVATE] = importlib.util.module_from_spec(spec)
    return _PRIVATE


# The package of the imports below has to be made first.
if not __package__:
    __package__ = _adopt()

from . import contract, function, result  # noqa: E402 -- see above


def main() -> int:
    """Run the function of the payload; return the exit code."""
    _prepare()
    try:
        value = _call()
    except KeyboardInterrupt:
        raise
    except SystemExit as stop:
        _report_exit(stop)
        raise
    except BaseException as error:  # noqa: BLE001 -- the boundary of the process: whatever is raised is its failure
        _report_failure(error)
        return 1
    result.report_result(value)
    return 0


def call(payload: dict[str, Any], folder: Path) -> Any:
    """Load the function of a payload, call it with its arguments, and return what it returns.

    Args:
        payload: ``kind``, ``text``, ``entry`` and ``args``.
        folder: Where the file of a source function may be written.

    Raises:
        function.PayloadError: The payload is damaged, or its function would not run when it is called.
        Exception: Whatever the function raises.
    """
    value = function.load(payload, folder)(**payload.get("args") or {})
    if inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise function.PayloadError(
            f"{payload.get('entry')} returned a {type(value).__name__} and has not run: a training function must be a "
            "plain function, neither async nor a generator"
        )
    return value


def _call() -> Any:
    path = Path(contract.setting(contract.PAYLOAD))
    if not contract.setting(contract.PAYLOAD):
        raise function.PayloadError(f"{contract.PAYLOAD} is not set: it must name the file of the packaged function")
    try:
        payload = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise function.PayloadError(f"{contract.PAYLOAD}={path} cannot be read: {error}") from None
    if not isinstance(payload, dict):
        raise function.PayloadError(f"{contract.PAYLOAD}={path} is not a packaged function")
    return call(payload, path.absolute().parent / "function")


def _prepare() -> None:
    for name, value in contract.DEFAULTS.items():
        os.environ.setdefault(name, value)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A log is followed line by line, and a character it cannot show must not end the training.
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    if sys.stderr is not None and not faulthandler.is_enabled():
        with contextlib.suppress(OSError, RuntimeError):  # A stderr that is no file cannot take a crash's stack.
            faulthandler.enable()
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # What ends any other process is ignored by the first one of a container, unless it handles it.
        signal.signal(signal.SIGTERM, _stop)
    if (_HERE.parent / _SHIPPED).is_file():
        # At the end: a trainer_core that is installed comes first.
        sys.path.append(str(_HERE.parent.parent))


def _stop(number: int, frame: FrameType | None) -> None:
    """End at once with the exit code of a signal, as any other process would."""
    del frame
    os._exit(128 + number)


def _report_exit(stop: SystemExit) -> None:
    if stop.code in (None, 0):
        result.report_result(None)
    else:
        result.report_error(stop.with_traceback(users_part(stop.__traceback__)))


def _report_failure(error: BaseException) -> None:
    error = error.with_traceback(users_part(error.__traceback__))
    result.report_error(error)
    traceback.print_exception(type(error), error, error.__traceback__)


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames above the function, which say nothing about the user's mistake."""
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
    sys.exit(main())
