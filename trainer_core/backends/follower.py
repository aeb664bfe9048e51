"""Follower: observes a TrainJob after each change. `PollingFollower` reads it, `WatchFollower` watches Kubernetes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from trainer_core.base.change_event import ChangeEvent
from trainer_core.model.jobs import Observation, TrainJob
from trainer_core.model.logs import MAX_LOG_LINES, LogChunk


class Follower(AbstractContextManager["Follower"]):
    """Observes one TrainJob repeatedly. A context manager; `close` releases its resources."""

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
