"""The log of a TrainJob in the log of a task: every line once, with its step; progress as a percentage."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from trainer_core.client import TrainerClient
from trainer_core.errors import TrainerError
from trainer_core.inside.progress import parse_progress
from trainer_core.observation import Progress, Tail
from trainer_core.ref import TrainJobRef

__all__ = ["PACE", "LogTail", "Shown", "of_task", "rest"]

#: Seconds between two looks at a log.
PACE = 2.0
#: Reading may take this share of the time, so that a huge log does not keep its reader busy.
_SHARE = 0.05
#: Seconds between two times to write down how far a log was shown.
_KEEP_SECONDS = 10.0
_KEY = "trainjob_log"
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
        keep: Called now and then, and at the end, with how far it is shown.
    """

    def __init__(
        self,
        client: TrainerClient,
        ref: TrainJobRef,
        show: Callable[[str], object],
        shown: Shown | None = None,
        keep: Callable[[Shown], object] | None = None,
    ) -> None:
        self.shown = shown or Shown(ref)
        self._keep = keep
        self._next_keeping = 0.0
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
        now = time.monotonic()
        self._next = begin + max(PACE, (now - begin) / _SHARE)
        if self._keep is not None and (ended or now >= self._next_keeping):
            self._next_keeping = now + _KEEP_SECONDS
            self._keep(self.shown)

    def _read(self, whole: bool) -> bool:
        """Show one piece; return whether there may be more. The log must never be what fails a task."""
        try:
            tail = self._client.backend.tail(self._ref, self.shown.place, whole)
        except TrainerError:
            return False
        for line in self.shown.take(tail, whole, time.monotonic()):
            self._show(line)
        return bool(tail.lines) and not tail.complete


def of_task(client: TrainerClient, ref: TrainJobRef, log: Any, store: Any) -> LogTail:
    """Return what shows a job's log in the log of a task, from where the try before has come to.

    A next try has a log of its own. Where a worker was killed, it begins with the last seconds of the log before.

    Args:
        client: Reaches the job.
        ref: The job.
        log: Where the task logs.
        store: What Airflow keeps for a task over its tries (3.3 and later); None where there is none.
    """
    shown = Shown(ref, _recalled(store))
    return LogTail(client, ref, lambda line: log.info("%s", line), shown, lambda shown: _write_down(store, shown))


def rest(client: Callable[[], TrainerClient], ref: TrainJobRef, log: Any, store: Any, carried: Any) -> None:
    """Show what the trigger has left to show of a job that has ended.

    Args:
        client: Makes the client; asked only if there is something left.
        ref: The job.
        log: Where the task logs.
        store: As for `of_task`.
        carried: What the trigger's event says of the log; None for nothing, as of one that did not look at it.
    """
    shown = Shown(ref, carried)
    if carried is not None and not shown.complete:
        LogTail(client(), ref, lambda line: log.info("%s", line), shown).look(ended=True)
    _write_down(store, shown)


def _recalled(store: Any) -> Any:
    try:
        return store.get(_KEY) if store is not None else None
    except Exception:  # noqa: BLE001 -- the log must never be what fails a task; it then begins anew
        return None


def _write_down(store: Any, shown: Shown) -> None:
    # As above: a next try then shows some lines again.
    with suppress(Exception):
        if store is not None:
            store.set(_KEY, shown.to_dict())


def _sentence(progress: Progress) -> str:
    steps = [f"{number:g}" for number in (progress.step, progress.total) if number is not None]
    percent = progress.percentage
    where = f"{percent}% ({'/'.join(steps)})" if percent is not None else "/".join(steps)
    return " ".join(part for part in ("progress", where, *(f"{k}={v:g}" for k, v in progress.metrics.items())) if part)
