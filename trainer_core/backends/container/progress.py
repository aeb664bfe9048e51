"""What a training last reported, found in its log without reading all of it at each look."""

from __future__ import annotations

from dataclasses import dataclass

from trainer_core.backends.container.book import Container
from trainer_core.backends.container.engine import Engine, RefusedError
from trainer_core.backends.container.logs import Place, read_on
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
        place = known.place if known else Place()
        try:
            frames = self._engine.frames(container.key, place.since, None if known else _LAST_LINES)
            read = read_on(frames, place, container.ended, _LOOK_LINES)
        except RefusedError:
            # Its log is gone, with it.
            return known.progress if known else None
        found = next((data for line in reversed(read.lines) if (data := parse_progress(line)) is not None), None)
        progress = known.progress if known else None
        if found is not None:
            progress = Progress(found.get("step"), found.get("total"), found.get("metrics") or {})
        self._known[container.key] = _Known(read.place, progress)
        return progress
