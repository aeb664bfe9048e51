"""Exit codes of the command: what became of it, for scripts."""

from __future__ import annotations

from trainer_core.errors import (
    BackendUnavailableError,
    ConflictError,
    JobEndedError,
    JobFailedError,
    JobNotFoundError,
    RuntimeNotFoundError,
    WaitTimeoutError,
)

__all__ = ["BAD_INPUT", "FAILED", "HELP", "INTERRUPTED", "OK", "code_of"]

OK = 0
FAILED = 1
BAD_INPUT = 2
NOT_FOUND = 3
CONFLICT = 4
TIMED_OUT = 5
UNAVAILABLE = 6
INTERRUPTED = 130

_CODES: dict[type[Exception], int] = {
    JobFailedError: FAILED,
    JobEndedError: FAILED,
    JobNotFoundError: NOT_FOUND,
    RuntimeNotFoundError: NOT_FOUND,
    ConflictError: CONFLICT,
    WaitTimeoutError: TIMED_OUT,
    BackendUnavailableError: UNAVAILABLE,
}

HELP = (
    "Exit codes: 0 done, 1 the TrainJob failed, 2 bad input, 3 no such TrainJob or runtime, 4 the name is taken, "
    "5 waiting timed out, 6 the backend cannot be used, 130 interrupted."
)


def code_of(error: Exception) -> int:
    """Return the exit code of an error; what is not listed is bad input."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), BAD_INPUT)
