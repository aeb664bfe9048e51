"""What the steps of a job left behind: termination messages, the ends of logs, fetched data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trainer_core.inside.progress import parse_progress
from trainer_core.inside.result import parse_record
from trainer_core.observation import Progress

__all__ = ["fetched", "last_progress", "left_by", "tail"]

_TAIL_BYTES = 16_384
_TAIL_LINES = 50


def left_by(termination: Path) -> dict[str, Any]:
    """Return a step's termination message; empty when it left none, or none that can be read."""
    try:
        return parse_record(termination.read_bytes()) or {}
    except OSError:
        return {}


def tail(log: Path) -> list[str]:
    """Return the last lines of a log."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return text.splitlines()[-_TAIL_LINES:]


def last_progress(log: Path) -> Progress | None:
    """Return what training last reported, if it is near the end of its log."""
    for line in reversed(tail(log)):
        data = parse_progress(line)
        if data is not None:
            return Progress(data.get("step"), data.get("total"), data.get("metrics") or {})
    return None


def fetched(workspace: Path) -> dict[str, str]:
    """Return the URIs of what initializers brought, by role."""
    roles = ((role, workspace / role) for role in ("dataset", "model"))
    return {role: path.resolve().as_uri() for role, path in roles if path.is_symlink()}
