"""events.jsonl: what happened to a job, one line each."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

from trainer_core.backends.local.record import now_text
from trainer_core.jobs import Event

__all__ = ["append", "read"]


def append(path: Path, reason: str, message: str, step: str | None = None) -> None:
    """Add one event. One write of one line, so that readers never see half of it."""
    line = json.dumps({"time": now_text(), "reason": reason, "message": message, "step": step}, ensure_ascii=False)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def read(path: Path, name: str) -> list[Event]:
    """Return the events of the job of that name, oldest first; a damaged line is left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [event for line in lines if (event := _event(line, name)) is not None]


def _event(line: str, name: str) -> Event | None:
    try:
        data = json.loads(line)
        return Event(
            involved_object_kind="Step" if data["step"] else "TrainJob",
            involved_object_name=data["step"] or name,
            message=data["message"],
            reason=data["reason"],
            event_time=datetime.fromisoformat(data["time"]),
        )
    except (ValueError, KeyError, TypeError):
        return None
