"""Followers: observe one TrainJob repeatedly, each time that it has changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer_core.backends import job_poller
from trainer_core.backends.job_poller import JobReader, Subscription
from trainer_core.change_event import ChangeEvent
from trainer_core.errors import BackendUnavailableError
from trainer_core.jobs import Observation, TrainJob, TrainJobRef
from trainer_core.logs import MAX_LOG_LINES, LogChunk

if TYPE_CHECKING:
    from typing_extensions import Self

    from trainer_core.backends.base import Backend

#: Seconds until a follower reports that a job was not read. One thread reads all jobs; a wait tolerates the error.
_READ_SECONDS = 60.0


class Follower(ABC):
    """Observes one TrainJob repeatedly. A context manager; `close` releases its resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    @abstractmethod
    def changed(self) -> ChangeEvent:
        """Set when the TrainJob has changed since the last observation, to wait for several followers."""

    @abstractmethod
    def next_observation(self, timeout: float) -> Observation:
        """Return the next observation: at once on the first call, later when the TrainJob has changed."""

    @abstractmethod
    async def next_observation_async(self, timeout: float) -> Observation:
        """Return the next observation as `next_observation` does, without blocking the event loop."""

    @abstractmethod
    def get_job(self) -> TrainJob:
        """Return the TrainJob as of the last observation, or as it is now."""

    @abstractmethod
    def tail(self, cursor: Mapping[str, Any], job_ended: bool = False, max_lines: int = MAX_LOG_LINES) -> LogChunk:
        """Return the log lines of all steps after a cursor, as `Backend.tail` does, with what is cached already."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources. Must not be used afterwards."""


class PollingFollower(Follower):
    """Follower for a backend without a watch. All followers in this process share one poll of each TrainJob."""

    def __init__(
        self,
        backend: Backend,
        ref: TrainJobRef,
        progress: bool = False,
        scope: Hashable = None,
        read_version: Callable[[], Hashable] | None = None,
    ) -> None:
        self._backend = backend
        self._ref = ref
        self._scope = backend if scope is None else scope
        # Refs are equal without their host, which decides whether a missing job was deleted.
        self._key = (ref, ref.host, progress)
        self._reader = JobReader(partial(backend.observe, ref), read_version, progress)
        self._subscription: Subscription | None = None

    @property
    def changed(self) -> ChangeEvent:
        return self._subscribe()[0].changed

    def next_observation(self, timeout: float) -> Observation:
        subscription, is_new = self._subscribe()
        if not is_new and not subscription.wait(timeout):
            # Without a change, the observation is that of now.
            subscription.request_read()
        return self._take_observation(subscription, subscription.wait(_READ_SECONDS))

    async def next_observation_async(self, timeout: float) -> Observation:
        subscription, is_new = self._subscribe()
        if not is_new and not await subscription.wait_async(timeout):
            subscription.request_read()
        return self._take_observation(subscription, await subscription.wait_async(_READ_SECONDS))

    def get_job(self) -> TrainJob:
        return self._backend.get_job_by_ref(self._ref)

    def tail(self, cursor: Mapping[str, Any], job_ended: bool = False, max_lines: int = MAX_LOG_LINES) -> LogChunk:
        return self._backend.tail(self._ref, cursor, job_ended, max_lines)

    def close(self) -> None:
        """End the subscription."""
        if self._subscription is not None:
            self._subscription.close()

    def _take_observation(self, subscription: Subscription, is_read: bool) -> Observation:
        if not is_read:
            raise BackendUnavailableError(f"TrainJob {self._ref.name!r} was not read within {_READ_SECONDS:.0f} s")
        return subscription.get_observation()

    def _subscribe(self) -> tuple[Subscription, bool]:
        """Return the subscription, and whether it is new: the first one, or that of a forked child."""
        subscription = self._subscription
        if subscription is not None and not subscription.has_ended:
            return subscription, False
        self._subscription = job_poller.subscribe(self._scope, self._key, self._reader)
        return self._subscription, True
