"""Debugging of a TrainJob on another machine: the command, and whether two failures are the same. Pure."""

from __future__ import annotations

import re
import shlex
import signal

from trainer_core.model.jobs import Category, Diagnosis, Outcome, TrainJobRef

_FRAME = re.compile(r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+)', re.MULTILINE)
_SIGNAL = re.compile(r"\bSIG[A-Z]+\b")
_SIGNALS = {each.value: each.name for each in signal.Signals}
#: Modules that are created from the source of a function: see `node.load_function`.
_SOURCE_MODULE = re.compile(r"(^|/)trainjob_[0-9a-f]+(/|\.py$)")


def build_command(ref: TrainJobRef) -> str:
    """Return the command that debugs a TrainJob on the machine of the user who runs it."""
    if ref.backend == "local":
        place = ["--home", ref.namespace]
    else:
        place = ["--backend", ref.backend, "--namespace", ref.namespace]
    return shlex.join(["trainjob", *place, "debug", ref.name])


def suggest_command(outcome: Outcome) -> str | None:
    """Return the command for a TrainJob that its own Python code has failed; None for another end."""
    diagnosis = outcome.diagnosis
    is_exception = diagnosis is not None and diagnosis.category is Category.USER_CODE and diagnosis.traceback
    return build_command(outcome.job) if is_exception and outcome.job.backend != "debug" else None


def is_same_failure(first: Diagnosis, second: Diagnosis) -> bool:
    """Return whether two TrainJobs failed with the same type of exception at the same line, or in the same way."""
    return _describe_failure(first) == _describe_failure(second)


def _describe_failure(diagnosis: Diagnosis) -> tuple[object, ...]:
    is_user_code = diagnosis.category is Category.USER_CODE
    if not diagnosis.traceback:
        return diagnosis.category, _find_signal(diagnosis) or diagnosis.exit_code
    error = diagnosis.reason.partition(":")[0] if is_user_code else ""
    return diagnosis.category, error, find_user_line(diagnosis.traceback)


def _find_signal(diagnosis: Diagnosis) -> str | None:
    """Return the name of the signal that ended a process: the exit code is its number, or is that of torchrun."""
    named, code = _SIGNAL.search(diagnosis.reason), diagnosis.exit_code or 0
    # A container ends with 128 + the number.
    return named[0] if named else _SIGNALS.get(-code if code < 0 else code - 128)


def find_user_line(traceback: str) -> tuple[str, int] | None:
    """Return file and line of the innermost frame of the user's code, whose paths are relative, else of any frame."""
    frames = [(match["file"], int(match["line"])) for match in _FRAME.finditer(traceback)]
    own = [(file, line) for file, line in frames if file[0] not in "/<" or _SOURCE_MODULE.search(file)]
    last = (own or frames)[-1:]
    return (last[0][0].rpartition("/")[2], last[0][1]) if last else None
