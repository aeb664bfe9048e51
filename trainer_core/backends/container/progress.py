"""What a training last reported, found in its log without reading all of it at each look."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from trainer_core.backends.container.book import Container
from trainer_core.backends.container.engine import Engine, RefusedError
from trainer_core.backends.container.logs import Place, near_the_end, read_on
from trainer_core.inside.progress import parse_progress
from trainer_core.observation import Progress

__all__ = ["Reports"]

#: Lines that the first look at a log goes back.
_LAST_LINES = 20_000
_LOOK_LINES = 20_000


@dataclass
class _Known:
    place: Place
    progress: Progress | None


class Reports:
    """Remembers of each container how far its log was looked through, and what was found."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, _Known] = {}

    def of(self, container: Container) -> Progress | None:
        """Return what was last reported; None if nothing."""
        known = self._known.get(container.key)
        # What has ended is not looked at again.
        most = sys.maxsize if container.ended else _LOOK_LINES
        try:
            place = known.place if known else self._near_the_end(container)
            read = read_on(self._engine.frames(container.key, place.since), place, container.ended, most)
        except RefusedError:
            # Its log is gone, with it.
            return known.progress if known else None
        found = next((data for line in reversed(read.lines) if (data := parse_progress(line)) is not None), None)
        progress = known.progress if known else None
        if found is not None:
            progress = Progress(found.get("step"), found.get("total"), found.get("metrics") or {})
        self._known[container.key] = _Known(read.place, progress)
        return progress

    def _near_the_end(self, container: Container) -> Place:
        return near_the_end(self._engine.frames(container.key, 0, _LAST_LINES), _LAST_LINES)
