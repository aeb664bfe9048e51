"""Debugging of a TrainJob on another machine: the command, and whether two failures are the same. Pure."""

from __future__ import annotations

import re
import shlex

from trainer_core.jobs import Category, Diagnosis, Outcome, TrainJobRef

_FRAME = re.compile(r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+)', re.MULTILINE)
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
        code = diagnosis.exit_code
        # A container ends with 128 + the number of the signal.
        return diagnosis.category, 128 - code if code is not None and code < 0 else code
    error = diagnosis.reason.partition(":")[0] if is_user_code else ""
    return diagnosis.category, error, find_user_line(diagnosis.traceback)


def find_user_line(traceback: str) -> tuple[str, int] | None:
    """Return file name and line of the innermost frame of the user's code, else of the innermost frame.

    The paths of the user's files in a traceback are relative, unless the function travelled without its file's name.
    """
    frames = [(match["file"], int(match["line"])) for match in _FRAME.finditer(traceback)]
    own = [(file, line) for file, line in frames if file[0] not in "/<" or _SOURCE_MODULE.search(file)]
    last = (own or frames)[-1:]
    return (last[0][0].rpartition("/")[2], last[0][1]) if last else None
