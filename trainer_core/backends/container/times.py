"""Times as engines write them. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timezone

__all__ = ["NEVER", "parsed", "text", "when"]

#: How engines say that it has not happened.
NEVER = "0001-01-01T00:00:00Z"
_DIGITS = re.compile(r"(\.\d{1,6})\d*")


def parsed(text: str) -> datetime:
    """Return the time of a text such as ``2024-01-01T00:00:00.123456789Z``."""
    return datetime.fromisoformat(_DIGITS.sub(lambda m: m[1].ljust(7, "0"), text).replace("Z", "+00:00"))


def when(text: str | None) -> datetime | None:
    """Return the time of a text; None where it says that it has not happened."""
    return None if not text or text.startswith(NEVER[:4]) else parsed(text).astimezone(timezone.utc)


def text(time: datetime) -> str:
    """Return a time as ISO 8601 in UTC, to the microsecond: what happened in one millisecond keeps its order."""
    return time.astimezone(timezone.utc).isoformat(timespec="microseconds")
