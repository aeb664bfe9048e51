"""Exceptions of the provider's tasks.

    AirflowException
     └── TrainJobError                         root of all exceptions of the provider
          ├── TrainJobFailedError              the TrainJob failed; has its outcome
          │    ├── TrainJobUserCodeError       the training code raised an exception or crashed
          │    ├── TrainJobOutOfMemoryError    a process ran out of memory
          │    ├── TrainJobImageError          the image or environment could not be pulled or built
          │    ├── TrainJobUnschedulableError  no node has the requested resources, or the quota is exhausted
          │    ├── TrainJobPreemptedError      the job was preempted
          │    ├── TrainJobNodeLostError       a node failed
          │    ├── TrainJobStalledError        the training made no progress for too long
          │    ├── TrainJobDeadlineError       the job exceeded its own deadline
          │    ├── TrainJobInitializerError    the dataset or the model could not be downloaded
          │    ├── TrainJobRefusedError        the cluster rejected an object of the job
          │    ├── TrainJobDeletedError        the job was cancelled or deleted
          │    ├── TrainJobInfrastructureError the backend itself failed
          │    ├── TrainJobStoppedEarlyError   a search ended the trial, because others are better
          │    └── TrainJobFailedForGoodError  (AirflowFailException) the job failed, and a retry cannot help
          ├── TrainJobRejectedError            (AirflowFailException) the definition is invalid
          │    └── TrainJobConnectionMissingError  an Airflow connection does not exist
          ├── TrainJobSearchFailedError        (AirflowFailException) a search failed or was cancelled
          ├── TrainJobTimeoutError             the task exceeded its timeout
          ├── TrainJobInterruptedError         the task was killed
          └── TrainJobUnreachableError         the status of the TrainJob cannot be read; it may still run
               ├── TrainJobElsewhereError      (AirflowFailException) the job lives on a host that the task cannot see
               └── TrainJobConnectionUnreadableError  an Airflow connection cannot be read now

Exceptions that derive from AirflowFailException fail the task without retries. Whether a retry can help depends on the
diagnosis, not on its category alone: an image can be missing, or its registry can be down for a minute. A failure that
a retry cannot fix therefore has two classes: that of its category and `TrainJobFailedForGoodError`. For the others, an
Airflow retry policy can use the class names:

    ExceptionRetryPolicy(rules=[RetryRule("airflow_provider.exceptions.TrainJobPreemptedError", retry_delay=…)])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.compat import AirflowException, AirflowFailException, AirflowNotFoundException

if TYPE_CHECKING:
    from trainer_core.model.jobs import Outcome
    from trainer_core.search.results import SearchOutcome

__all__ = [
    "TrainJobConnectionMissingError",
    "TrainJobConnectionUnreadableError",
    "TrainJobDeadlineError",
    "TrainJobDeletedError",
    "TrainJobElsewhereError",
    "TrainJobError",
    "TrainJobFailedError",
    "TrainJobFailedForGoodError",
    "TrainJobImageError",
    "TrainJobInfrastructureError",
    "TrainJobInitializerError",
    "TrainJobInterruptedError",
    "TrainJobNodeLostError",
    "TrainJobOutOfMemoryError",
    "TrainJobPreemptedError",
    "TrainJobRefusedError",
    "TrainJobRejectedError",
    "TrainJobSearchFailedError",
    "TrainJobStalledError",
    "TrainJobStoppedEarlyError",
    "TrainJobTimeoutError",
    "TrainJobUnreachableError",
    "TrainJobUnschedulableError",
    "TrainJobUserCodeError",
    "build_failure",
]


class TrainJobError(AirflowException):
    """Root of all exceptions of the provider."""


class TrainJobFailedError(TrainJobError):
    """The TrainJob ended with status Failed.

    Attributes:
        outcome: Outcome of the job, with the diagnosis.
    """

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


class TrainJobUserCodeError(TrainJobFailedError):
    """The training code raised an exception, or its process crashed."""


class TrainJobOutOfMemoryError(TrainJobFailedError):
    """A process of the job ran out of memory."""


class TrainJobImageError(TrainJobFailedError):
    """The image could not be pulled, or the environment could not be built."""


class TrainJobUnschedulableError(TrainJobFailedError):
    """No node has the requested resources, or the quota is exhausted."""


class TrainJobPreemptedError(TrainJobFailedError):
    """The job was preempted by other workloads."""


class TrainJobNodeLostError(TrainJobFailedError):
    """A node on which the job ran failed."""


class TrainJobStalledError(TrainJobFailedError):
    """The training made no progress for too long; see the option `Stalled`."""


class TrainJobDeadlineError(TrainJobFailedError):
    """The job exceeded its own deadline. For the task's timeout, see `TrainJobTimeoutError`."""


class TrainJobInitializerError(TrainJobFailedError):
    """The dataset or the model could not be downloaded."""


class TrainJobRefusedError(TrainJobFailedError):
    """The cluster rejected an object of the job, or an object that the job refers to does not exist."""


class TrainJobDeletedError(TrainJobFailedError):
    """The job was cancelled or deleted by a user or another process."""


class TrainJobInfrastructureError(TrainJobFailedError):
    """The backend itself failed."""


class TrainJobStoppedEarlyError(TrainJobFailedError):
    """A search ended the trial, because others are better."""


class TrainJobFailedForGoodError(TrainJobFailedError, AirflowFailException):
    """The TrainJob ended with status Failed, and a retry cannot help."""


class TrainJobRejectedError(TrainJobError, AirflowFailException):
    """The definition of the TrainJob is invalid; no job was created."""


class TrainJobConnectionMissingError(TrainJobRejectedError, AirflowNotFoundException):
    """An Airflow connection does not exist; no job was created."""


class TrainJobSearchFailedError(TrainJobError, AirflowFailException):
    """The search failed or was cancelled. Not retried: a retry would find the same search.

    Attributes:
        outcome: Outcome of the search.
    """

    def __init__(self, message: str, outcome: SearchOutcome) -> None:
        super().__init__(message)
        self.outcome = outcome


class TrainJobTimeoutError(TrainJobError):
    """The task exceeded its timeout before the job ended."""


class TrainJobInterruptedError(TrainJobError):
    """The task was killed while it waited for the job."""


class TrainJobUnreachableError(TrainJobError):
    """The status of the TrainJob can no longer be read. The job may still run; a retry of the task attaches to it."""


class TrainJobConnectionUnreadableError(TrainJobUnreachableError):
    """An Airflow connection cannot be read now: a secrets backend or Airflow's API server failed."""


class TrainJobElsewhereError(TrainJobUnreachableError, AirflowFailException):
    """The TrainJob lives on another host. Not retried: a retry that does not know of it could start a second one."""


#: Exception classes by category of the diagnosis.
_CLASSES_BY_CATEGORY: dict[str, type[TrainJobFailedError]] = {
    "UserCode": TrainJobUserCodeError,
    "OutOfMemory": TrainJobOutOfMemoryError,
    "Image": TrainJobImageError,
    "Scheduling": TrainJobUnschedulableError,
    "Preempted": TrainJobPreemptedError,
    "NodeLost": TrainJobNodeLostError,
    "Stalled": TrainJobStalledError,
    "Deadline": TrainJobDeadlineError,
    "Initializer": TrainJobInitializerError,
    "Rejected": TrainJobRefusedError,
    "Deleted": TrainJobDeletedError,
    "Infrastructure": TrainJobInfrastructureError,
    "StoppedEarly": TrainJobStoppedEarlyError,
}


def build_failure(outcome: Outcome, *, retry_can_help: bool = True) -> TrainJobFailedError:
    """Return the exception for a failed TrainJob by its diagnosis; a retry of a task that only reads cannot help."""
    from trainer_core.lifecycle.wait_state import failure_message  # Parsing a DAG file does not need it.

    diagnosis = outcome.diagnosis
    cls = _CLASSES_BY_CATEGORY.get(diagnosis.category, TrainJobFailedError) if diagnosis else TrainJobFailedError
    if not (retry_can_help and diagnosis is not None and diagnosis.retryable):
        cls = _without_retries(cls)
    return cls(failure_message(outcome), outcome)


def _without_retries(cls: type[TrainJobFailedError]) -> type[TrainJobFailedError]:
    """Return a class of the same name that Airflow does not retry."""
    if cls is TrainJobFailedError:
        return TrainJobFailedForGoodError
    return type(cls.__name__, (cls, TrainJobFailedForGoodError), {"__doc__": cls.__doc__, "__module__": __name__})
