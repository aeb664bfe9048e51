"""Bringing a folder of this machine to where containers can be shown it; in a thread of its own.

No container does it: the engine's programs may read what the user may not, and an image would have to be pulled for a
copy.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_core.backends.container import places, times
from trainer_core.fetching import store
from trainer_core.fetching.local import LocalSource, local_path
from trainer_core.fetching.source import FetchError, Silent

__all__ = ["Copying"]


class Copying:
    """One copy, begun at once.

    Args:
        step: The step of the plan.
    """

    def __init__(self, step: Mapping[str, Any], clock: Any) -> None:
        self._step = step
        self._clock = clock
        self._done: dict[str, Any] | None = None
        threading.Thread(target=self._copy, daemon=True).start()

    @property
    def done(self) -> dict[str, Any] | None:
        """What became of it, as data of an entry; None before its end."""
        return self._done

    def _copy(self) -> None:
        started = times.text(self._clock.now())
        uri, role = self._step["uri"], self._step["role"]
        found: dict[str, Any] = {"step": self._step["name"], "started": started}
        try:
            path, line = self._brought(local_path(uri), role)
        except (FetchError, OSError, ValueError) as error:
            said = f"{type(error).__name__}: {error}"
            found.update(error=said, log=[f"{role}: {uri}: {said}"])
        else:
            found.update(path=str(path), uri=path.as_uri(), log=[f"{role}: {uri} {line} {path}"])
        self._done = {**found, "finished": times.text(self._clock.now())}

    def _brought(self, source: Path, role: str) -> tuple[Path, str]:
        if self._step["link"]:
            source.stat()
            return source, "is shown as it is in"
        wanted = LocalSource(source, tuple(self._step["ignore_patterns"]))
        where, fetched = store.fetch(wanted, places.home() / "cache" / role, Silent())
        return where, "fetched into" if fetched else "found in"
