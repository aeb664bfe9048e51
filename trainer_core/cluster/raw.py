"""What all readers of raw objects do alike: times, texts that fit on a line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

__all__ = ["Raw", "one_line", "time_of"]

#: An object as the API server sends it.
Raw = Mapping[str, Any]

_LIMIT = 1000


def time_of(text: str | None) -> datetime | None:
    """Read a time as Kubernetes writes it (``2026-11-20T10:00:00Z``); None where there is none."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)
    except ValueError:
        return None


def one_line(text: str | None, limit: int = _LIMIT) -> str:
    """Return a text as one line of at most so many characters, without what could steer a terminal."""
    # Cut before it is split as well: others may have written megabytes.
    line = " ".join("".join(char if char.isprintable() else " " for char in (text or "")[: 2 * limit]).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
