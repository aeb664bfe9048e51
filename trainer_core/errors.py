"""Every error of the core, in one tree.

    TrainerError
     ├── InvalidRequestError      (ValueError)     a value in a request cannot be right
     ├── UnsupportedError         (ValueError)     the request is fine, this backend cannot do it
     ├── JobNotFoundError         (RuntimeError)   no TrainJob of that name
     ├── RuntimeNotFoundError     (RuntimeError)   no runtime of that name
     ├── ConflictError            (RuntimeError)   the name belongs to another request
     ├── JobFailedError           (RuntimeError)   the TrainJob ended Failed; carries its Outcome
     ├── JobEndedError            (RuntimeError)   the TrainJob has ended, the status waited for cannot come
     ├── WaitTimeoutError         (TimeoutError)   the TrainJob did not get there in time; it goes on running
     └── BackendUnavailableError  (RuntimeError)   the backend, or what it needs installed, cannot be reached

Each also derives from the built-in that the API reference of the Kubeflow SDK names for the
situation, so code written against the reference catches the same things.
Constructors of public classes and options raise plain ``ValueError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer_core.outcome import Outcome

__all__ = [
    "BackendUnavailableError",
    "ConflictError",
    "InvalidRequestError",
    "JobEndedError",
    "JobFailedError",
    "JobNotFoundError",
    "RuntimeNotFoundError",
    "TrainerError",
    "UnsupportedError",
    "WaitTimeoutError",
]


class TrainerError(Exception):
    """The root: catch this to catch whatever the core raises on purpose.

    Its message is one line: what was wrong, where, and what to do.
    """


class InvalidRequestError(TrainerError, ValueError):
    """A value of a request cannot be right; nothing was created."""


class UnsupportedError(TrainerError, ValueError):
    """The chosen backend or runtime cannot express this request; nothing was created."""


class JobNotFoundError(TrainerError, RuntimeError):
    """There is no TrainJob of that name (any more)."""


class RuntimeNotFoundError(TrainerError, RuntimeError):
    """There is no runtime of that name; the message lists those there are."""


class ConflictError(TrainerError, RuntimeError):
    """The name is taken by a TrainJob of another owner or with another request."""


class JobFailedError(TrainerError, RuntimeError):
    """The TrainJob ended in status Failed.

    Attributes:
        outcome: What it left, with the diagnosis.
    """

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


class JobEndedError(TrainerError, RuntimeError):
    """The TrainJob is Complete, so the status that was waited for cannot come any more."""


class WaitTimeoutError(TrainerError, TimeoutError):
    """The time given for waiting has passed; the TrainJob itself goes on."""


class BackendUnavailableError(TrainerError, RuntimeError):
    """The backend cannot be used: not reachable, not permitted, or an extra is not installed.

    Attributes:
        transient: It may be there again in a while; False where only a person can help.
    """

    transient = True
