"""Followers: observe one TrainJob repeatedly, by polling or by a watch."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from trainer_core.jobs import Observation, TrainJob, TrainJobRef
from trainer_core.logs import MAX_LOG_LINES, LogChunk

if TYPE_CHECKING:
    from typing_extensions import Self

    from trainer_core.backends.base import Backend

__all__ = ["Follower", "PollingFollower"]


class Follower(ABC):
    """Observes one TrainJob repeatedly. A context manager; `close` releases its resources."""

    #: Whether a watch reports changes, so that a long timeout delays no observation.
    supports_watch: ClassVar[bool]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def next_observation(self, timeout: float) -> Observation:
        """Return the next observation: at once on the first call, later when the TrainJob has changed.

        Args:
            timeout: Seconds after which to return an observation without a change.

        Raises:
            JobNotFoundError: The TrainJob was deleted.
            BackendUnavailableError: The backend cannot be reached now; the next call may succeed.
        """

    @abstractmethod
    async def next_observation_async(self, timeout: float) -> Observation:
        """Return the next observation as `next_observation` does, without blocking the event loop.

        Args:
            timeout: Seconds after which to return an observation without a change.

        Raises:
            JobNotFoundError: The TrainJob was deleted.
            BackendUnavailableError: The backend cannot be reached now; the next call may succeed.
        """

    @abstractmethod
    def get_job(self) -> TrainJob:
        """Return the TrainJob as of the last observation, or as it is now.

        Raises:
            JobNotFoundError: The TrainJob was deleted.
        """

    @abstractmethod
    def tail(self, cursor: Mapping[str, Any], job_ended: bool = False, max_lines: int = MAX_LOG_LINES) -> LogChunk:
        """Return the log lines of all steps after a cursor, as `Backend.tail` does, with what is cached already.

        Args:
            cursor: `LogChunk.cursor` of the previous chunk; empty for the beginning.
            job_ended: Whether the TrainJob has ended: the last line counts even without a line end.
            max_lines: Approximate limit of lines to return.

        Raises:
            JobNotFoundError: The TrainJob was deleted.
        """

    def close(self) -> None:  # noqa: B027 -- a polling follower holds no resources
        """Release the resources. Must not be used afterwards."""


class PollingFollower(Follower):
    """Follower for a backend without a watch: each observation is a request.

    Args:
        backend: Backend of the TrainJob.
        ref: The TrainJob.
    """

    supports_watch: ClassVar[bool] = False

    def __init__(self, backend: Backend, ref: TrainJobRef) -> None:
        self._backend = backend
        self._ref = ref
        self._is_first = True

    def next_observation(self, timeout: float) -> Observation:
        """See `Follower.next_observation`."""
        time.sleep(self._pause(timeout))
        return self._backend.observe(self._ref)

    async def next_observation_async(self, timeout: float) -> Observation:
        """See `Follower.next_observation_async`."""
        import asyncio  # Takes 40 ms, and most programs that import the core do not wait asynchronously.

        await asyncio.sleep(self._pause(timeout))
        return await asyncio.to_thread(self._backend.observe, self._ref)

    def get_job(self) -> TrainJob:
        """See `Follower.get_job`."""
        return self._backend.get_job_by_ref(self._ref)

    def tail(self, cursor: Mapping[str, Any], job_ended: bool = False, max_lines: int = MAX_LOG_LINES) -> LogChunk:
        """See `Follower.tail`."""
        return self._backend.tail(self._ref, cursor, job_ended, max_lines)

    def _pause(self, timeout: float) -> float:
        pause = 0.0 if self._is_first else timeout
        self._is_first = False
        return pause
