"""The errors that callers of the core catch.

    TrainerError
     ├── InvalidRequestError      (ValueError)     a value of a request is invalid
     ├── UnsupportedError         (ValueError)     the request is valid, but the backend cannot do what it asks for
     ├── JobNotFoundError         (RuntimeError)   the TrainJob does not exist
     ├── RuntimeNotFoundError     (RuntimeError)   the runtime does not exist
     ├── ConflictError            (RuntimeError)   the name belongs to another owner or request
     ├── JobFailedError           (RuntimeError)   the TrainJob failed; in `trainer_core.model.jobs`, with its Outcome
     ├── JobEndedError            (RuntimeError)   the TrainJob is Complete and cannot reach the status waited for
     ├── WaitTimeoutError         (TimeoutError)   a wait timed out; the TrainJob is not stopped
     ├── TrackingError            (RuntimeError)   the tracking server or model registry refuses or cannot be reached
     └── BackendUnavailableError  (RuntimeError)   the backend, or a package it needs, is not available
          └── JobElsewhereError                    the TrainJob lives on a host or engine that this process cannot see

`trainer_core.k8s.errors` and the container engine raise subclasses of them. Each class also derives from the built-in
that the Kubeflow SDK raises in the same situation, so that code written for the SDK catches the same errors.
Constructors of public classes and options raise plain ``ValueError``.
"""

from __future__ import annotations

from trainer_core.base.text import shorten

__all__ = [
    "BackendUnavailableError",
    "ConflictError",
    "InvalidRequestError",
    "JobElsewhereError",
    "JobEndedError",
    "JobNotFoundError",
    "RuntimeNotFoundError",
    "TrackingError",
    "TrainerError",
    "UnsupportedError",
    "WaitTimeoutError",
]


class TrainerError(Exception):
    """Base class of all errors that the core raises on purpose.

    The message is one line: the subject (job, field, file), what is wrong with it, and what to do.
    """


class _QuotingError(TrainerError):
    """Base of the errors that quote what a user gave: their message is cut to one line of `MAX_MESSAGE` characters."""

    def __init__(self, message: str) -> None:
        super().__init__(shorten(message))


class InvalidRequestError(_QuotingError, ValueError):
    """A value of a request is invalid. Nothing was created."""


class UnsupportedError(_QuotingError, ValueError):
    """The backend or runtime cannot do what the request asks for. Nothing was created."""


class JobNotFoundError(_QuotingError, RuntimeError):
    """The TrainJob does not exist, or was deleted."""


class RuntimeNotFoundError(_QuotingError, RuntimeError):
    """The runtime does not exist. The message lists the known ones."""


class ConflictError(_QuotingError, RuntimeError):
    """The name belongs to a TrainJob of another owner or with another request."""


class JobEndedError(TrainerError, RuntimeError):
    """The TrainJob is Complete, so it cannot reach the status that was waited for."""


class WaitTimeoutError(TrainerError, TimeoutError):
    """The TrainJob did not end, or did not reach a status, within the timeout. It is not stopped."""


class BackendUnavailableError(TrainerError, RuntimeError):
    """The backend cannot be reached, denies access, or needs a package that is not installed.

    Attributes:
        transient: True if the backend may be available again later. False if a person has to change something.
    """

    transient = True

    def __init__(self, message: str = "", transient: bool | None = None) -> None:
        super().__init__(message)
        if transient is not None:
            self.transient = transient


class TrackingError(TrainerError, RuntimeError):
    """The tracking server or the model registry cannot be reached, or refuses a request.

    Attributes:
        code: MLflow's error code, such as ``RESOURCE_DOES_NOT_EXIST``. Empty without one.
        transient: True if the same request may succeed later.
    """

    def __init__(self, message: str, code: str = "", transient: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.transient = transient


class JobElsewhereError(BackendUnavailableError):
    """The TrainJob lives on another host, container engine or PID namespace, and may still run there.

    Nothing was changed.
    """

    transient = False
