"""The errors that callers of the core catch, and functions for their messages.

    TrainerError
     ├── InvalidRequestError      (ValueError)     a value of a request is invalid
     ├── UnsupportedError         (ValueError)     the request is valid, but the backend cannot do what it asks for
     ├── JobNotFoundError         (RuntimeError)   the TrainJob does not exist
     ├── RuntimeNotFoundError     (RuntimeError)   the runtime does not exist
     ├── ConflictError            (RuntimeError)   the name belongs to another owner or request
     ├── JobFailedError           (RuntimeError)   the TrainJob failed; carries its Outcome
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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer_core.jobs import Outcome

__all__ = [
    "BackendUnavailableError",
    "ConflictError",
    "InvalidRequestError",
    "JobElsewhereError",
    "JobEndedError",
    "JobFailedError",
    "JobNotFoundError",
    "RuntimeNotFoundError",
    "TrackingError",
    "TrainerError",
    "UnsupportedError",
    "WaitTimeoutError",
    "format_memory",
    "format_size",
    "missing_extra",
    "shorten",
]

#: Longest message of an error that quotes what a user gave.
MAX_MESSAGE = 300
_GAP = " … "


def shorten(text: str, limit: int = MAX_MESSAGE) -> str:
    """Return a text as one line without control characters.

    If it is too long, the middle is left out: the end of a message is the advice.

    Args:
        text: The text.
        limit: Maximum number of characters. Default `MAX_MESSAGE`.
    """
    line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in " ".join(text.split()))
    if len(line) <= limit:
        return line
    start = limit * 2 // 3
    return f"{line[:start]}{_GAP}{line[len(line) - (limit - start - len(_GAP)) :]}"


def format_size(size: float) -> str:
    """Return a number of bytes for people: ``249 bytes``, ``1.23 MB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:  # From there on it would be shown as 1e+03.
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def format_memory(size: float) -> str:
    """Return an amount of memory for people, in the units of Kubernetes' limits: ``300 MiB``, ``1.5 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1023.5:
            return f"{size:.0f} {unit}" if size >= 99.95 else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


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


class JobFailedError(TrainerError, RuntimeError):
    """The TrainJob ended with status Failed.

    Attributes:
        outcome: Its outcome, with the diagnosis.
    """

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.outcome)  # A process pool sends errors as pickles.


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


def missing_extra(subject: str, package: str, extra: str) -> str:
    """Return the message for a package that is not installed: who needs it, and the extra that installs it.

    Args:
        subject: What needs the package, such as ``"the container backend"``.
        package: Name of the package, such as ``"docker"``.
        extra: Extra of this distribution that installs it, such as ``"containers"``.
    """
    command = f"pip install -e '.[{extra}]'"  # The distribution is on no index, where anybody could take its name.
    return f"{subject} needs the package {package}, which is not installed: {command} in a clone of trainjob-workflows"
