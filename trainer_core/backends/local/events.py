"""events.jsonl: what happened to a job, one line each."""

from __future__ import annotations

import json
import os
from pathlib import Path

from trainer_core.backends.local.record import now_text

__all__ = ["append"]


def append(path: Path, reason: str, message: str, step: str | None = None) -> None:
    """Add one event. One write of one line, so that readers never see half of it."""
    line = json.dumps({"time": now_text(), "reason": reason, "message": message, "step": step}, ensure_ascii=False)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)
