"""Following one TrainJob: how a backend tells whoever waits that there is something new to see, or to read."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from trainer_core.jobs import TrainJob
from trainer_core.observation import Observation, Tail
from trainer_core.ref import TrainJobRef

if TYPE_CHECKING:
    from typing_extensions import Self

    from trainer_core.backends.base import Backend

__all__ = ["MOST", "Follower", "Polling"]

#: Lines that one look at a log returns at most, about: so many can be written elsewhere without holding others up.
MOST = 1000


class Follower(ABC):
    """Looks at one TrainJob again and again. A context manager; what it holds is given back at its end."""

    #: Whether it is told of changes, so that the patience of whoever looks costs nobody anything.
    pushed: ClassVar[bool]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def look(self, patience: float) -> Observation:
        """Return what there is to see: the first time at once, later when it has changed or the patience is over.

        Args:
            patience: Seconds to wait at most.

        Raises:
            JobNotFoundError: The job is gone, or its name has passed to another job.
            BackendUnavailableError: The backend cannot be reached at the moment; looking again may help.
        """

    @abstractmethod
    async def look_async(self, patience: float) -> Observation:
        """Do the same without blocking the event loop."""

    @abstractmethod
    def job(self) -> TrainJob:
        """Return the job as it was at the last look, or now.

        Raises:
            JobNotFoundError: The job is gone.
        """

    @abstractmethod
    def tail(self, place: Mapping[str, Any], whole: bool = False, most: int = MOST) -> Tail:
        """See `Backend.tail`; what the looks have found out is not asked for again."""

    def close(self) -> None:  # noqa: B027 -- most hold nothing
        """Stop looking."""


class Polling(Follower):
    """Follows a job of a backend that can only be asked.

    Args:
        backend: Where the job runs.
        ref: The job.
    """

    pushed: ClassVar[bool] = False

    def __init__(self, backend: Backend, ref: TrainJobRef) -> None:
        self._backend = backend
        self._ref = ref
        self._looked = False

    def look(self, patience: float) -> Observation:
        """See `Follower.look`."""
        time.sleep(self._pause(patience))
        return self._backend.observe(self._ref)

    async def look_async(self, patience: float) -> Observation:
        """See `Follower.look_async`."""
        import asyncio  # Costs 40 ms, and most programs that import the core never wait like this.

        await asyncio.sleep(self._pause(patience))
        return await asyncio.to_thread(self._backend.observe, self._ref)

    def job(self) -> TrainJob:
        """See `Follower.job`."""
        return self._backend.get_job(self._ref.name)

    def tail(self, place: Mapping[str, Any], whole: bool = False, most: int = MOST) -> Tail:
        """See `Follower.tail`."""
        return self._backend.tail(self._ref, place, whole, most)

    def _pause(self, patience: float) -> float:
        pause = patience if self._looked else 0.0
        self._looked = True
        return pause
