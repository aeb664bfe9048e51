"""Helpers for reading raw Kubernetes objects: times, and text as one line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

#: An object as the API server sends it.
RawObject = Mapping[str, Any]

_MAX_LENGTH = 1000


def parse_time(text: str | None) -> datetime | None:
    """Return a Kubernetes time (``2026-11-20T10:00:00Z``); None if it is absent or not a time."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)
    except ValueError:
        return None


def parse_seconds(text: str | None) -> float | None:
    """Return the number of seconds of an annotation; None if it is absent or not a number."""
    try:
        return float(text) if text else None
    except ValueError:
        return None


def to_single_line(text: str | None, max_length: int = _MAX_LENGTH) -> str:
    """Return a text as one line of at most `max_length` characters, without terminal control characters."""
    # Cut first: the text may have megabytes.
    start = (text or "")[: 2 * max_length]
    line = " ".join("".join(char if char.isprintable() else " " for char in start).split())
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"
