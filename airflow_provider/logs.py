"""The log of a TrainJob in the log of a task: every line once, with its step; progress as a percentage."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from trainer_core.client import TrainerClient
from trainer_core.errors import TrainerError
from trainer_core.inside.progress import parse_progress
from trainer_core.observation import Progress, Tail
from trainer_core.ref import TrainJobRef

__all__ = ["PACE", "LogTail", "Shown", "rest"]

#: Seconds between two looks at a log.
PACE = 2.0
#: Reading may take this share of the time, so that a huge log does not keep its reader busy.
_SHARE = 0.05
#: Progress is shown when it has moved by so many percent, or after so many seconds.
_PERCENT = 10
_SECONDS = 30.0


class Shown:
    """How far the log of a job was shown, in whichever process: plain data that goes along with the waiting.

    Attributes:
        place: As the backend has it, see `Backend.tail`.
        complete: The job has ended and all of its log was shown.
        progress: What the training said last of its progress.

    Args:
        ref: The job.
        carried: What `to_dict` returned in another process. That of another job counts for nothing.
    """

    def __init__(self, ref: TrainJobRef, carried: Any = None) -> None:
        known = carried if isinstance(carried, Mapping) and carried.get("uid") == ref.uid else {}
        self.place: dict[str, Any] = dict(known.get("place", {}))
        self.complete = bool(known.get("complete"))
        self.progress: Progress | None = None
        self._uid = ref.uid
        self._percent: int | None = known.get("percent")
        self._next_progress: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return {"uid": self._uid, "place": self.place, "percent": self._percent, "complete": self.complete}

    def take(self, tail: Tail, whole: bool, now: float) -> list[str]:
        """Return the lines to show of what was read, which count as shown from now on.

        Args:
            tail: What was read at the place.
            whole: The job had ended before.
            now: Seconds that only grow.
        """
        self.place = tail.place
        self.complete = whole and tail.complete
        found = (self._readable(step, line, now) for step, line in tail.lines)
        return [line for line in found if line]

    def _readable(self, step: str, line: str, now: float) -> str:
        """A line as people read it: what `progress` prints is meant for programs, and too often for a log."""
        said = parse_progress(line)
        if said is None:
            return f"[{step}] {line}"
        self.progress = Progress(said.get("step"), said.get("total"), said.get("metrics", {}))
        percent = self.progress.percentage
        last = self._percent
        if self._next_progress is None:
            self._next_progress = now if last is None else now + _SECONDS
        moved = percent is not None and (last is None or abs(percent - last) >= _PERCENT or last < percent == 100)
        if not moved and now < self._next_progress:
            return ""
        self._percent = percent if percent is not None else last
        self._next_progress = now + _SECONDS
        return f"[{step}] {_sentence(self.progress)}"


class LogTail:
    """Shows what was added to the log of a TrainJob since the last look.

    Each look asks anew instead of holding a stream open: whoever waits can do so in one thread.

    Args:
        client: Reaches the job.
        ref: The job.
        show: Called with each line, once.
        shown: How far it was shown already.
    """

    def __init__(
        self, client: TrainerClient, ref: TrainJobRef, show: Callable[[str], object], shown: Shown | None = None
    ) -> None:
        self.shown = shown or Shown(ref)
        self._client = client
        self._ref = ref
        self._show = show
        self._next = 0.0

    def look(self, *, ended: bool = False) -> None:
        """Show the new lines.

        Args:
            ended: The job has ended: there will be no other look, so all that is left is shown.
        """
        begin = time.monotonic()
        if not ended and begin < self._next:
            return
        while self._read(ended) and ended:
            pass
        if ended and not self.shown.complete:
            self._show("the rest of the log could not be read")
        self._next = begin + max(PACE, (time.monotonic() - begin) / _SHARE)

    def _read(self, whole: bool) -> bool:
        """Show one piece; return whether there may be more. The log must never be what fails a task."""
        try:
            tail = self._client.backend.tail(self._ref, self.shown.place, whole)
        except TrainerError:
            return False
        for line in self.shown.take(tail, whole, time.monotonic()):
            self._show(line)
        return bool(tail.lines) and not tail.complete


def rest(client: Callable[[], TrainerClient], ref: TrainJobRef, show: Callable[[str], object], carried: Any) -> None:
    """Show what the trigger has left to show of a job that has ended.

    Args:
        client: Makes the client; asked only if there is something left.
        ref: The job.
        show: Called with each line.
        carried: What the trigger's event says of the log; None for nothing, as of one that did not look at it.
    """
    shown = Shown(ref, carried)
    if carried is not None and not shown.complete:
        LogTail(client(), ref, show, shown).look(ended=True)


def _sentence(progress: Progress) -> str:
    steps = [f"{number:g}" for number in (progress.step, progress.total) if number is not None]
    percent = progress.percentage
    where = f"{percent}% ({'/'.join(steps)})" if percent is not None else "/".join(steps)
    return " ".join(part for part in ("progress", where, *(f"{k}={v:g}" for k, v in progress.metrics.items())) if part)
