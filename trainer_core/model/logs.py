"""Log lines of the steps of a TrainJob: read in chunks from a cursor, or merged from several streams."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any, NamedTuple

from trainer_core.base.errors import InvalidRequestError
from trainer_core.model.jobs import ObjectiveReport, Progress
from trainer_core.node.jsonable import is_finite_number, to_text
from trainer_core.node.progress import PREFIX

#: Default limit of the lines in a chunk: few enough to forward them without blocking the reader for long.
MAX_LOG_LINES = 1000
#: Lines that `merge_streams` buffers, so that a slow reader does not let memory grow.
_BUFFERED_LINES = 1000
#: Fields of a progress line that are numbers: of any kind, and the steps of checkpoints.
_NUMBERS, _CHECKPOINT_STEPS = ("step", "total"), ("checkpoint", "resumed_from")
#: In milliseconds; the year 2286.
_MAX_TIME = 10**13


class LogLine(str):
    """A log line with the time when it was written, in seconds since 1970, to about a second."""

    __slots__ = ("time",)
    time: float

    def __new__(cls, text: str, time: float = 0.0) -> LogLine:
        """Return the line."""
        line = super().__new__(cls, text)
        line.time = time
        return line


@dataclass(frozen=True)
class LogChunk:
    """Consecutive log lines of a TrainJob.

    Attributes:
        lines: Pairs of step name and line, without the line end. A line whose time the backend knows is a `LogLine`.
        cursor: Position after these lines, as JSON data that only the backend interprets. Reading continues from it
            in any process.
        complete: True if there were no further lines when it was read.
    """

    lines: list[tuple[str, str]] = field(default_factory=list)
    cursor: dict[str, Any] = field(default_factory=dict)
    complete: bool = True


def tail_steps(
    steps: Iterable[str],
    cursors: Mapping[str, Any],
    limit: int,
    read_step: Callable[[str, Any, int], tuple[list[str], Any, bool]],
) -> LogChunk:
    """Read the new log lines of several steps, one step after the other."""
    lines: list[tuple[str, str]] = []
    reached, complete = dict(cursors), True
    for step in steps:
        new, reached[step], is_complete = read_step(step, cursors.get(step), limit - len(lines))
        lines += [(step, line) for line in new]
        complete = complete and is_complete
    return LogChunk(lines, reached, complete)


def select_steps(job_name: str, steps: Iterable[str], only: str | None) -> list[str]:
    """Return the steps of a TrainJob, or the only one to read."""
    names = list(steps)
    if only is None:
        return names
    if only not in names:
        raise InvalidRequestError(f"TrainJob {job_name!r} has no step {only!r}; its steps are {', '.join(names)}")
    return [only]


def parse_progress(line: str) -> dict[str, Any] | None:
    """Parse a log line; return None if it is not a progress line."""
    return parse_timed_progress(line)[0]


def parse_timed_progress(line: str) -> tuple[dict[str, Any] | None, int | None]:
    """Return what `parse_progress` returns, and when it was printed, in ms since 1970; None if the line lacks it."""
    _, found, text = line.partition(PREFIX)
    if not found:
        return None, None
    try:
        data = json.loads(text)
        printed = data.get("t")
        return _known(data), printed if isinstance(printed, int) and 0 < printed < _MAX_TIME else None
    except (ValueError, OverflowError, RecursionError, AttributeError):
        return None, None


def _known(data: dict[str, Any]) -> dict[str, Any]:
    numbers = {key: data[key] for key in _NUMBERS if key in data and is_finite_number(data[key])}
    numbers |= {key: int(data[key]) for key in _CHECKPOINT_STEPS if key in data and is_finite_number(data[key])}
    known: dict[str, Any] = {**numbers, "objective": data["objective"]} if "objective" in data else numbers
    if isinstance(silent := data.get("silent"), list) and len(silent) == 2 and all(map(is_finite_number, silent)):
        known["silent"] = silent
    for entry in ("metrics", "last"):
        if isinstance(metrics := data.get(entry), dict):
            known[entry] = {to_text(name): float(value) for name, value in metrics.items() if is_finite_number(value)}
    return known


def find_last_progress(lines: Iterable[str]) -> Progress | None:
    """Return the progress report that is nearest to the end of a log, None if there is none."""
    report = next((found for line in lines if (found := parse_progress(line)) is not None), None)
    if report is None:
        return None
    return build_progress(report)


def build_progress(report: Mapping[str, Any]) -> Progress:
    """Return the progress report of a parsed line."""
    numbers = {name: report.get(name) for name in _NUMBERS + _CHECKPOINT_STEPS}
    objective = ObjectiveReport.parse(report["objective"]) if "objective" in report else None
    silent = _describe_silence(*report["silent"]) if "silent" in report else None
    metrics = {**report.get("last", {}), **report.get("metrics", {})}
    return Progress(metrics=metrics, objective=objective, silent=silent, **numbers)


def _describe_silence(seconds: float, limit: float) -> str:
    return f"{seconds / 60:.0f} of {limit / 60:.0f} min" if limit >= 120 else f"{seconds:.0f} of {limit:.0f} s"


class _Line(NamedTuple):
    source: str
    text: str


class _End(NamedTuple):
    error: Exception | None


def merge_streams(sources: Mapping[str, Iterator[str]]) -> Iterator[tuple[str, str]]:
    """Yield lines as they arrive, in order per stream. Each thread ends with the next line of its stream."""
    # At least one place for each stream: see `_stop`.
    lines: Queue[_Line | _End] = Queue(max(_BUFFERED_LINES, len(sources)))
    stopped = threading.Event()
    threads = [
        threading.Thread(target=_read, args=(name, source, lines, stopped), name=f"lines of {name}", daemon=True)
        for name, source in sources.items()
    ]
    try:
        for thread in threads:
            thread.start()
        running = len(threads)
        while running:
            item = lines.get()
            if isinstance(item, _Line):
                yield item.source, item.text
                continue
            running -= 1
            if item.error is not None:
                raise item.error
        for thread in threads:
            thread.join()
    finally:
        _stop(lines, stopped)


def _read(name: str, source: Iterator[str], lines: Queue[_Line | _End], stopped: threading.Event) -> None:
    error: Exception | None = None
    try:
        for line in source:
            lines.put(_Line(name, line))
            if stopped.is_set():
                return
    except Exception as raised:  # noqa: BLE001 -- boundary of the thread: the reader of the lines raises it
        error = raised
    lines.put(_End(error))


def _stop(lines: Queue[_Line | _End], stopped: threading.Event) -> None:
    """Unblock every thread: an empty queue has room for one more item of each."""
    stopped.set()
    while True:
        try:
            lines.get_nowait()
        except Empty:
            return
