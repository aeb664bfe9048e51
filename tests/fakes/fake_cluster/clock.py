"""The time of the cluster: that of this machine, until a test advances it."""

from __future__ import annotations

import time
from datetime import datetime, timezone

_ahead = 0.0


def advance(seconds: float) -> None:
    """Set the clock of every cluster in this process forward, or back."""
    global _ahead
    _ahead += seconds


def read() -> float:
    return time.time() + _ahead


def now() -> str:
    """Return the time as objects say it: whole seconds."""
    return _read_utc().strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time() -> str:
    return _read_utc().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _read_utc() -> datetime:
    return datetime.fromtimestamp(read(), timezone.utc)
