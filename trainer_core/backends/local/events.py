"""The events file of a local job: one JSON object for each line."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

from trainer_core.backends.local.job_record import utc_timestamp
from trainer_core.jobs import Event

__all__ = ["append_event", "read_events"]


def append_event(path: Path, reason: str, message: str, step: str | None = None) -> None:
    """Append one event. It is written with a single write, so that readers never see a partial line."""
    event = {"time": utc_timestamp(), "reason": reason, "message": message, "step": step}
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{json.dumps(event, ensure_ascii=False)}\n".encode())
    finally:
        os.close(descriptor)


def read_events(path: Path, job_name: str) -> list[Event]:
    """Return the events of a job, oldest first. Damaged lines are skipped."""
    try:
        # Not splitlines(): it also splits at characters such as U+2028, which a message may contain.
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return []
    return [event for line in lines if (event := _parse_event(line, job_name)) is not None]


def _parse_event(line: str, job_name: str) -> Event | None:
    try:
        data = json.loads(line)
        return Event(
            involved_object_kind="Step" if data["step"] else "TrainJob",
            involved_object_name=data["step"] or job_name,
            message=data["message"],
            reason=data["reason"],
            event_time=datetime.fromisoformat(data["time"]),
        )
    except (ValueError, KeyError, TypeError):
        return None
