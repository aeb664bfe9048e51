"""Which checkpoints of a training are kept, and for how long."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .checkpoint_folder import Checkpoint, say

if TYPE_CHECKING:
    from .checkpoint_ranks import Place, Ranks


def prune(place: Place, complete: list[Checkpoint], keep: int, settings: Mapping[str, Any]) -> list[Checkpoint]:
    """Delete complete checkpoints except the newest ones and the best one; return those that stay, oldest first."""
    best, newest = find_best(complete, settings), complete[-max(1, keep) :]
    kept = [each for each in complete if each is best or each in newest]
    for each in complete:
        if each not in kept:
            place.discard(each.step)
    return kept


def find_best(complete: list[Checkpoint], settings: Mapping[str, Any]) -> Checkpoint | None:
    """Return the best checkpoint by ``keep_best`` and ``mode`` of the option; None if none has the metric."""
    name, choose = settings.get("keep_best") or "", max if settings.get("mode") == "max" else min
    return choose((c for c in complete if name in c.metrics), key=lambda c: c.metrics[name], default=None)


class Retention:
    """Deletes the checkpoints of a training that are kept no longer."""

    def __init__(self, place: Place, settings: Mapping[str, Any]) -> None:
        self._place, self._settings = place, settings
        self._complete: list[Checkpoint] | None = None

    def add(self, saved: Checkpoint) -> None:
        """Delete what is kept no longer after a save. What cannot be deleted stays until the next one."""
        try:
            # Listed once; nothing is read for this after later saves.
            complete = self._place.list_complete() if self._complete is None else self._complete
            self._complete = None
            complete = [*(each for each in complete if each.step != saved.step), saved]
            self._complete = prune(self._place, complete, int(self._settings.get("keep", 3)), self._settings)
        except OSError as error:
            say(f"checkpoints that are kept no longer cannot be deleted: {error}")

    def finish(self) -> None:
        """Delete what is kept no longer once the training is complete."""
        after = self._settings.get("after", "last")
        if after == "none":
            self._place.delete()
        elif after != "all":
            prune(self._place, self._place.list_complete(), 1, self._settings)

    def keep_alive(self, ranks: Ranks, ended: threading.Event) -> None:
        """Begin the time to live again and again until the end of this process, however long a step takes."""
        if self._settings.get("ttl"):
            threading.Thread(target=self._keep_alive, args=(ranks, ended), daemon=True).start()

    def _keep_alive(self, ranks: Ranks, ended: threading.Event) -> None:
        while not ended.wait(self._settings["ttl"] / 4):
            with contextlib.suppress(OSError):
                if ranks.is_current():
                    self._place.keep_alive()
