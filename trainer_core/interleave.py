"""Several sources of lines, read at the same time, as one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from queue import Empty, Queue
from typing import NamedTuple

__all__ = ["interleaved"]

#: How many lines may wait for whoever reads them, so that memory does not grow with what is printed.
_WAITING = 1000


class _Line(NamedTuple):
    source: str
    text: str


class _End(NamedTuple):
    error: Exception | None


def interleaved(sources: Mapping[str, Iterator[str]]) -> Iterator[tuple[str, str]]:
    """Yield the lines of all sources as they come, each with the name of its source, until all have ended.

    The lines of one source keep their order. Each source is read by a thread of its own. Whoever closes this early
    need not wait for them: each ends with the next line that its source has, or with the process.

    Args:
        sources: Lines by name. They are used up.

    Raises:
        Exception: Whatever the first source that fails raises.
    """
    # More than there are sources: see `_stop`.
    lines: Queue[_Line | _End] = Queue(max(_WAITING, len(sources)))
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
    except Exception as raised:  # noqa: BLE001 -- the boundary of the thread: it is raised where the lines are read
        error = raised
    lines.put(_End(error))


def _stop(lines: Queue[_Line | _End], stopped: threading.Event) -> None:
    """Let no thread wait for room: after this there is room for one more item of each."""
    stopped.set()
    while True:
        try:
            lines.get_nowait()
        except Empty:
            return
