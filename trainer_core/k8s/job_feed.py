"""State of one job for who follows its log: from the watch that this process shares; read where that has none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from trainer_core.errors import JobNotFoundError
from trainer_core.jobs import COMPLETE, FAILED
from trainer_core.k8s import observations
from trainer_core.k8s.informer import Subscription
from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.pod_state import PodState

if TYPE_CHECKING:
    from typing_extensions import Self

    from trainer_core.jobs import TrainJobRef

__all__ = ["JobFeed"]

#: Seconds to wait for the informer's first list before the job is read directly.
_FIRST_LIST_SECONDS = 15.0
#: Seconds after which a log is looked at again although the watch reports no change.
_MAX_SILENCE_SECONDS = 5.0
_ENDED = (COMPLETE, FAILED)


class StateReader(Protocol):
    """What a feed reads where the watch has nothing: the `JobReader` of the backend."""

    def read_state(self, ref: TrainJobRef) -> tuple[JobState, list[PodState]]: ...

    def list_log_pods(self, job: JobState) -> list[PodState]: ...

    def list_ended_pods(self, job: JobState, pods: Sequence[PodState]) -> Sequence[PodState]: ...


class JobFeed:
    """The state of one job, without a request while the watch works. A context manager.

    Attributes:
        pods: Its pods, as of the last `read`.
    """

    def __init__(self, reader: StateReader, ref: TrainJobRef, subscribe: Callable[[], Subscription] | None) -> None:
        self.pods: Sequence[PodState] = ()
        self._reader = reader
        self._ref = ref
        self._subscription = subscribe() if subscribe else None
        self._job: JobState | None = None
        self._is_watched = False
        if self._subscription:
            self._subscription.wait(_FIRST_LIST_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription."""
        if self._subscription:
            self._subscription.close()

    def read(self) -> tuple[JobState, Sequence[PodState]]:
        """Return the job and its pods."""
        snapshot = self._subscription.snapshot() if self._subscription else None
        job = snapshot.job if snapshot and snapshot.error is None and snapshot.pods is not None else None
        self._is_watched = job is not None
        if job is None or snapshot is None:
            self._job, self.pods = self._reader.read_state(self._ref)
        else:
            self._job, self.pods = job, job.select_pods(snapshot.pods or ())
        return self._job, self.pods

    def has_ended(self) -> bool:
        """Read the job and return whether it has ended, or was deleted."""
        try:
            job, pods = self.read()
        except JobNotFoundError:
            if self._job is not None:
                self.pods = self._reader.list_log_pods(self._job)
            return True
        if observations.get_status(job, pods) not in _ENDED:
            return False
        if self._is_watched:
            self.pods = self._reader.list_ended_pods(job, pods)
        return True

    def wait_for_change(self, seconds: float) -> None:
        """Wait until the job or a pod has changed; where the job is not watched, for a number of seconds."""
        if self._is_watched and self._subscription:
            self._subscription.wait(_MAX_SILENCE_SECONDS)
        else:
            time.sleep(seconds)
