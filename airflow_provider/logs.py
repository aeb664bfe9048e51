"""The log of a TrainJob, line by line as it grows, for the log of a task."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice

from trainer_core.client import TrainerClient
from trainer_core.errors import TrainerError
from trainer_core.inside.progress import parse_progress
from trainer_core.ref import TrainJobRef

__all__ = ["LogTail"]

#: The steps whose log is worth reading in Airflow: what fetches, and the node that reports.
_STEPS = ("dataset-initializer", "model-initializer", "node-0")
#: Reading may take this share of the time, so that a huge log does not keep its reader busy.
_SHARE = 0.05


class LogTail:
    """Show what was added to the log of a TrainJob since the last look.

    Each look asks anew instead of holding a stream open: hundreds of jobs can be followed without a thread each.

    Args:
        client: Reaches the job.
        ref: The job.
        show: Called with each line, once.
    """

    def __init__(self, client: TrainerClient, ref: TrainJobRef, show: Callable[[str], object]) -> None:
        self._client = client
        self._ref = ref
        self._show = show
        self._shown = dict.fromkeys(_STEPS, 0)
        self._last: dict[str, str | None] = {}
        self._early: dict[str, str | None] = {}
        self._next = 0.0

    def look(self, *, ended: bool = False) -> None:
        """Show the new lines.

        Args:
            ended: The job has ended: the last line is whole, and there will be no other look.
        """
        begin = time.monotonic()
        if not ended and begin < self._next:
            return
        for step in _STEPS:
            for line in self._new(step, ended):
                self._show(_readable(line) if step == "node-0" else f"[{step}] {line}")
        taken = time.monotonic() - begin
        self._next = begin + taken / _SHARE

    def _new(self, step: str, ended: bool) -> list[str]:
        """The log must never be what fails a task, so a step or a job that is not there has no lines."""
        try:
            lines = list(islice(self._client.backend.logs(self._ref, step), self._shown[step], None))
        except TrainerError:
            return []
        last = None if ended or not lines else lines.pop()
        self._shown[step] += len(lines)
        return self._but_early(step, lines) + self._unfinished(step, last)

    def _but_early(self, step: str, lines: list[str]) -> list[str]:
        """The lines that are whole, without one that was shown before it was."""
        if not lines:
            return []
        early = self._early.pop(step, None)
        return lines[1:] if lines[0] == early else lines

    def _unfinished(self, step: str, last: str | None) -> list[str]:
        """A last line may still grow, as a progress bar does; one that did not since the look before is shown."""
        before, self._last[step] = self._last.get(step), last
        if last is None or last != before or last == self._early.get(step):
            return []
        self._early[step] = last
        return [last]


def _readable(line: str) -> str:
    """A line as people read it: what `progress` prints is meant for programs."""
    found = parse_progress(line)
    if found is None:
        return line
    numbers = [f"{name}={value:g}" for name, value in found.get("metrics", {}).items()]
    steps = [str(found[key]) for key in ("step", "total") if key in found]
    return " ".join(part for part in ("progress", "/".join(steps), *numbers) if part)
