"""The log of a TrainJob in the log of its task: each line once, with its step; progress as a percentage.

Format, position, and what tasks write that wait in a worker; `triggers.deferred_log` writes while a task is deferred.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainer_core.base.errors import TrainerError
from trainer_core.model.jobs import Progress, TrainJobRef
from trainer_core.model.logs import LogChunk
from trainer_core.model.readable_log import ReadableLog

if TYPE_CHECKING:
    from trainer_core.client import TrainerClient

#: Seconds between two reads of a log.
POLL_SECONDS = 2.0
#: Largest share of the time to spend on reading; a huge log is read less often.
_MAX_READ_SHARE = 0.05
#: Characters of a line; the triggerer takes 4 KiB of a trigger's log at a time, and runs no trigger meanwhile.
_MAX_LINE = 10_000
#: Seconds between two saves of the log position.
_SAVE_SECONDS = 10.0
#: Key of the log position in the XComs and in the storage that all tries of a task share.
LOG_KEY = "trainjob_log"


class LogPosition:
    """How much of a job's log is in the task's log. Saved as JSON, so that another process can continue."""

    def __init__(self, ref: TrainJobRef, saved: Any = None) -> None:
        data = saved if isinstance(saved, Mapping) and saved.get("uid") == ref.uid else {}
        #: Cursor of the backend, see `Backend.tail_logs`.
        self.cursor: dict[str, Any] = dict(data.get("place", {}))
        #: Whether the job has ended and all of its log has been written.
        self.complete = bool(data.get("complete"))
        self._uid = ref.uid
        self._log = ReadableLog(data.get("percent"))

    @property
    def progress(self) -> Progress | None:
        """The last progress that the training reported; None if it reported none."""
        return self._log.progress

    def to_dict(self) -> dict[str, Any]:
        """Return the position as plain JSON data."""
        return {"uid": self._uid, "place": self.cursor, "percent": self._log.percent, "complete": self.complete}

    def format_lines(self, chunk: LogChunk, job_ended: bool, now: float) -> list[str]:
        """Return the lines of a chunk as the task's log shows them, and advance the position behind it."""
        self.cursor = chunk.cursor
        self.complete = job_ended and chunk.complete
        return [f"[{step}] {_cut(text)}" for step, line in chunk.lines for text in self._log.format(step, line, now)]


class LogForwarder:
    """Forwards new lines of a job's log to a function. Each `poll` is a separate read; no stream stays open."""

    def __init__(
        self,
        client: TrainerClient,
        ref: TrainJobRef,
        write_line: Callable[[str], object],
        position: LogPosition | None = None,
        save: Callable[[LogPosition], object] | None = None,
    ) -> None:
        self.position = position or LogPosition(ref)
        self._save = save
        self._next_save = 0.0
        self._client = client
        self._ref = ref
        self._write_line = write_line
        self._next = 0.0

    def poll(self, *, ended: bool = False) -> None:
        """Forward the new lines."""
        begin = time.monotonic()
        if not ended and begin < self._next:
            return
        while self._read(ended) and ended:
            pass
        if ended and not self.position.complete:
            self._write_line("the rest of the log cannot be read")
        now = time.monotonic()
        self._next = begin + max(POLL_SECONDS, (now - begin) / _MAX_READ_SHARE)
        if self._save is not None and (ended or now >= self._next_save):
            self._next_save = now + _SAVE_SECONDS
            self._save(self.position)

    def _read(self, job_ended: bool) -> bool:
        """Forward one chunk; return whether there may be more. An error in reading the log must not fail the task."""
        try:
            chunk = self._client.tail_job_logs(self._ref, self.position.cursor, job_ended)
        except TrainerError:
            return False
        for line in self.position.format_lines(chunk, job_ended, time.monotonic()):
            self._write_line(line)
        return bool(chunk.lines) and not chunk.complete


def _cut(line: str) -> str:
    more = len(line) - _MAX_LINE
    return line if more <= 0 else f"{line[:_MAX_LINE]} … ({more} more characters)"
