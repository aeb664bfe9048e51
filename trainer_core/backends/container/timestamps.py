"""Converts the timestamps of container engines. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timezone

#: The timestamp by which engines represent an event that has not happened.
NEVER = "0001-01-01T00:00:00Z"
_FRACTION = re.compile(r"(\.\d{1,6})\d*")


def parse_time(text: str) -> datetime:
    """Parse a timestamp such as ``2024-01-01T00:00:00.123456789Z``."""
    return datetime.fromisoformat(_FRACTION.sub(lambda m: m[1].ljust(7, "0"), text).replace("Z", "+00:00"))


def parse_optional_time(text: str | None) -> datetime | None:
    """Parse a timestamp; None if it is empty or `NEVER`."""
    return None if not text or text.startswith(NEVER[:4]) else parse_time(text).astimezone(timezone.utc)


def format_time(time: datetime) -> str:
    """Format a time as ISO 8601 in UTC. Microseconds keep the order of events within a millisecond."""
    return time.astimezone(timezone.utc).isoformat(timespec="microseconds")
