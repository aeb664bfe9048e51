"""Copies a ``file://`` source into the data cache in a thread: a container would need an image and could read more."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_core.backends.container import paths
from trainer_core.backends.container.engine import Engine
from trainer_core.backends.container.timestamps import format_time
from trainer_core.fetch import cache
from trainer_core.fetch.local_files import LocalSource, parse_local_path
from trainer_core.fetch.source import FetchError, FetchProgress


class CopyTask:
    """One copy, started by the constructor."""

    def __init__(self, step: Mapping[str, Any], engine: Engine) -> None:
        self._step = step
        self._engine = engine
        self._result: dict[str, Any] | None = None
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def result(self) -> dict[str, Any] | None:
        """Data of the journal entry for this copy; None until it has ended."""
        return self._result

    def _run(self) -> None:
        started = format_time(self._engine.now())
        uri, role = self._step["uri"], self._step["role"]
        result: dict[str, Any] = {"step": self._step["name"], "started": started}
        try:
            path, action = self._copy(parse_local_path(uri), role)
        except (FetchError, OSError, ValueError) as error:
            message = f"{type(error).__name__}: {error}"
            result.update(error=message, log=[f"{role}: {uri}: {message}"])
        else:
            result.update(path=str(path), uri=path.as_uri(), log=[f"{role}: {uri} {action} {path}"])
        self._result = {**result, "finished": format_time(self._engine.now())}

    def _copy(self, source: Path, role: str) -> tuple[Path, str]:
        """Return the folder that containers mount, and how it got there."""
        if self._step["link"]:
            source.stat()
            return source, "is mounted from"
        local_source = LocalSource(source, tuple(self._step["ignore_patterns"]))
        path, fetched = cache.fetch_to_cache(local_source, paths.data_cache(role), FetchProgress())
        return path, "fetched into" if fetched else "found in"
