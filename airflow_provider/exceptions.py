"""What a task of ours fails with.

    AirflowException
     └── TrainJobError                         the root: catch this, or name it in a retry policy
          ├── TrainJobFailedError              the TrainJob failed; carries its Outcome
          │    ├── TrainJobUserCodeError       by the diagnosis: the training function raised, or crashed
          │    ├── TrainJobOutOfMemoryError    it ran out of memory
          │    ├── TrainJobImageError          what it runs in could not be pulled or made
          │    ├── TrainJobUnschedulableError  no machine takes it, or its quota is used up
          │    ├── TrainJobPreemptedError      it had to leave its machine to others
          │    ├── TrainJobNodeLostError       its machine is gone
          │    ├── TrainJobDeadlineError       it ran longer than its own deadline
          │    ├── TrainJobInitializerError    a dataset or a model could not be fetched
          │    ├── TrainJobRefusedError        the cluster refuses what it is made of
          │    ├── TrainJobDeletedError        somebody cancelled or deleted it
          │    ├── TrainJobInfrastructureError what carries it out has failed
          │    └── TrainJobFailedForGoodError  (AirflowFailException)  it failed, and would again
          ├── TrainJobRejectedError            (AirflowFailException)  the definition cannot be right
          ├── TrainJobTimeoutError             the task's time is over
          ├── TrainJobInterruptedError         the task was told to end
          └── TrainJobUnreachableError         the TrainJob could not be followed; it may go on running

What derives from AirflowFailException fails the task at once, whatever retries are left. That is not said by the
class of the diagnosis, but by the diagnosis itself: an image is not there, or its registry is down for a minute. So
what is raised is of the class of its diagnosis, and of `TrainJobFailedForGoodError` as well where a retry cannot help.
A retry policy of Airflow decides about the others, by these names:

    ExceptionRetryPolicy(rules=[RetryRule("airflow_provider.exceptions.TrainJobPreemptedError", retry_delay=…)])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.compat import AirflowException, AirflowFailException

if TYPE_CHECKING:
    from trainer_core.outcome import Outcome

__all__ = [
    "TrainJobDeadlineError",
    "TrainJobDeletedError",
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
    "TrainJobTimeoutError",
    "TrainJobUnreachableError",
    "TrainJobUnschedulableError",
    "TrainJobUserCodeError",
    "failed",
]


class TrainJobError(AirflowException):
    """The root of what a task of ours fails with."""


class TrainJobFailedError(TrainJobError):
    """The TrainJob ended in status Failed.

    Attributes:
        outcome: What it left, with the diagnosis.
    """

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


class TrainJobUserCodeError(TrainJobFailedError):
    """The training function raised, or its process crashed."""


class TrainJobOutOfMemoryError(TrainJobFailedError):
    """It ran out of memory."""


class TrainJobImageError(TrainJobFailedError):
    """What it runs in could not be pulled or made."""


class TrainJobUnschedulableError(TrainJobFailedError):
    """No machine takes it, or its quota is used up."""


class TrainJobPreemptedError(TrainJobFailedError):
    """It had to leave its machine to others."""


class TrainJobNodeLostError(TrainJobFailedError):
    """Its machine is gone."""


class TrainJobDeadlineError(TrainJobFailedError):
    """It ran longer than its own deadline; the task's is `TrainJobTimeoutError`."""


class TrainJobInitializerError(TrainJobFailedError):
    """A dataset or a model could not be fetched."""


class TrainJobRefusedError(TrainJobFailedError):
    """The cluster refuses what it is made of, or lacks what it refers to."""


class TrainJobDeletedError(TrainJobFailedError):
    """Somebody cancelled or deleted it."""


class TrainJobInfrastructureError(TrainJobFailedError):
    """What carries it out has failed."""


class TrainJobFailedForGoodError(TrainJobFailedError, AirflowFailException):
    """The TrainJob ended in status Failed, and would again."""


class TrainJobRejectedError(TrainJobError, AirflowFailException):
    """The definition of the TrainJob cannot be right; nothing was created."""


class TrainJobTimeoutError(TrainJobError):
    """The time of the task is over."""


class TrainJobInterruptedError(TrainJobError):
    """The task was told to end while it waited."""


class TrainJobUnreachableError(TrainJobError):
    """The TrainJob could not be followed any further; it may go on running, and a retry takes it up again."""


#: By the category of the diagnosis; see `trainer_core.outcome.Category`.
_KINDS: dict[str, type[TrainJobFailedError]] = {
    "UserCode": TrainJobUserCodeError,
    "OutOfMemory": TrainJobOutOfMemoryError,
    "Image": TrainJobImageError,
    "Scheduling": TrainJobUnschedulableError,
    "Preempted": TrainJobPreemptedError,
    "NodeLost": TrainJobNodeLostError,
    "Deadline": TrainJobDeadlineError,
    "Initializer": TrainJobInitializerError,
    "Rejected": TrainJobRefusedError,
    "Deleted": TrainJobDeletedError,
    "Infrastructure": TrainJobInfrastructureError,
}


def failed(message: str, outcome: Outcome, *, for_good: bool) -> TrainJobFailedError:
    """Return the exception for a TrainJob that failed, of the class of its diagnosis.

    Args:
        message: What to say.
        outcome: What it left.
        for_good: A retry cannot help.
    """
    category = outcome.diagnosis.category.value if outcome.diagnosis else ""
    kind = _KINDS.get(category, TrainJobFailedError)
    return (_for_good(kind) if for_good else kind)(message, outcome)


def _for_good(kind: type[TrainJobFailedError]) -> type[TrainJobFailedError]:
    """The same class, by the same name, that uses up no retries."""
    if kind is TrainJobFailedError:
        return TrainJobFailedForGoodError
    return type(kind.__name__, (kind, TrainJobFailedForGoodError), {"__doc__": kind.__doc__, "__module__": __name__})
