"""Exit codes of the command."""

from __future__ import annotations

from trainer_core.base.errors import (
    BackendUnavailableError,
    ConflictError,
    JobEndedError,
    JobNotFoundError,
    RuntimeNotFoundError,
    TrackingError,
    WaitTimeoutError,
)
from trainer_core.model.jobs import JobFailedError

OK = 0
FAILED = 1
BAD_INPUT = 2
NOT_FOUND = 3
CONFLICT = 4
TIMED_OUT = 5
UNAVAILABLE = 6
ANOTHER_FAILURE = 7
INTERRUPTED = 130

_CODES: dict[type[Exception], int] = {
    JobFailedError: FAILED,
    JobEndedError: FAILED,
    JobNotFoundError: NOT_FOUND,
    RuntimeNotFoundError: NOT_FOUND,
    ConflictError: CONFLICT,
    WaitTimeoutError: TIMED_OUT,
    BackendUnavailableError: UNAVAILABLE,
    TrackingError: UNAVAILABLE,
}

HELP = (
    "Exit codes: 0 success, 1 the TrainJob failed, 2 invalid input, 3 TrainJob or runtime not found, 4 name conflict, "
    "5 timeout of a wait, 6 backend unavailable, 7 another failure than that of the debugged TrainJob, 130 interrupted."
)


def get_exit_code(error: Exception) -> int:
    """Return the exit code of an error; `BAD_INPUT` if the error has no exit code."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), BAD_INPUT)
