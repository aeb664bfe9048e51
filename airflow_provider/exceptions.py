"""What a task of ours fails with.

    AirflowException
     └── TrainJobError                         the root: catch this, or name it in a retry policy
          ├── TrainJobFailedError              the TrainJob failed, and another run can help; carries its Outcome
          │    └── TrainJobFailedForGoodError  (AirflowFailException)  it failed, and would again
          ├── TrainJobRejectedError            (AirflowFailException)  the definition cannot be right
          ├── TrainJobTimeoutError             the task's time is over
          ├── TrainJobInterruptedError         the task was told to end
          └── TrainJobUnreachableError         the TrainJob could not be followed; it may go on running

What derives from AirflowFailException fails the task at once, whatever retries are left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.compat import AirflowException, AirflowFailException

if TYPE_CHECKING:
    from trainer_core.outcome import Outcome

__all__ = [
    "TrainJobError",
    "TrainJobFailedError",
    "TrainJobFailedForGoodError",
    "TrainJobInterruptedError",
    "TrainJobRejectedError",
    "TrainJobTimeoutError",
    "TrainJobUnreachableError",
]


class TrainJobError(AirflowException):
    """The root of what a task of ours fails with."""


class TrainJobFailedError(TrainJobError):
    """The TrainJob ended in status Failed, for a reason that may not return.

    Attributes:
        outcome: What it left, with the diagnosis.
    """

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


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
