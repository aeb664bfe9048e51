"""Starts the supervisor of a container job, and checks whether one is running."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from filelock import FileLock, Timeout

from trainer_core.backends.container.paths import lock_path
from trainer_core.backends.supervisor import start_supervisor
from trainer_core.errors import BackendUnavailableError
from trainer_core.jobs import TrainJobRef

__all__ = ["is_supervised", "launch_supervisor"]


def launch_supervisor(ref: TrainJobRef, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
    """Start a supervisor. If one is already running on this machine, the new one exits."""
    folder = lock_path(ref.uid).parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        finished = start_supervisor(
            "trainer_core.backends.container.supervisor",
            [],
            stdin=json.dumps({"ref": ref.to_dict(), "config": config, "secrets": dict(secrets)}),
        )
    except OSError as error:
        raise BackendUnavailableError(f"supervisor of TrainJob {ref.name!r} cannot be started: {error}") from error
    if finished.returncode != 0:
        reason = (finished.stderr.strip().splitlines() or ["no output"])[-1]
        raise BackendUnavailableError(f"supervisor of TrainJob {ref.name!r} did not start: {reason}")


def is_supervised(uid: str) -> bool:
    """Return whether a supervisor of a job is running on this machine."""
    path = lock_path(uid)
    if not path.exists():
        return False
    lock = FileLock(path, blocking=False, mode=0o600)
    try:
        with lock:
            return False
    except Timeout:
        return True
