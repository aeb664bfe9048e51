"""Writes why a TrainJob cannot start or continue, for the processes that wait for it."""

from __future__ import annotations

from collections.abc import Callable

from trainer_core.jobs import Observation

__all__ = ["PendingFailureLog"]


class PendingFailureLog:
    """Writes each pending failure of a TrainJob once, when it appears or changes, and once that it is queued."""

    def __init__(self, name: str, write_line: Callable[[str], object]) -> None:
        self._name = name
        self._write_line = write_line
        self._last = ""
        self._was_queued = False

    def report(self, observation: Observation) -> None:
        """Write the pending failure of an observation, unless it was written last, and when the job is queued."""
        pending = observation.pending_failure
        reason = str(pending.diagnosis) if pending is not None else ""
        if reason and reason != self._last:
            self._write_line(f"TrainJob {self._name} is {observation.status}: {reason}")
        self._last = reason
        # Not at each step forward: hundreds of tasks can wait for the same queue.
        if observation.queued and not self._was_queued:
            self._write_line(f"TrainJob {self._name} is {observation.queued}")
        self._was_queued = bool(observation.queued)
