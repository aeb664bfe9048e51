"""The clock by which a process waits for TrainJobs."""

from __future__ import annotations

import time


class Clock:
    """The time of this machine. A backend can have another one, whose `sleep` takes no time."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def time(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
