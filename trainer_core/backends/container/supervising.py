"""Starting the program that carries a job out, and asking whether it lives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from trainer_core.backends.container.supervisor import lock_path
from trainer_core.errors import BackendUnavailableError
from trainer_core.ref import TrainJobRef

__all__ = ["lives", "start"]


def start(ref: TrainJobRef, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
    """Start it; where one lives on this machine, this one leaves.

    Args:
        ref: The job.
        config: Of the backend, as plain data.
        secrets: Literal secrets of the job's initializers; they travel through a pipe that only the two hold.

    Raises:
        BackendUnavailableError: It cannot be started.
    """
    told = json.dumps({"ref": ref.to_dict(), "config": config, "secrets": dict(secrets)})
    try:
        lock_path(ref.uid).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        finished = subprocess.run(
            [sys.executable, "-m", "trainer_core.backends.container.supervisor"],
            input=told,
            capture_output=True,
            # Python looks for modules where it is started: not where the submitter happens to stand.
            cwd=lock_path(ref.uid).parent,
            env=_environment(),
            start_new_session=True,
            check=False,
            text=True,
        )
    except OSError as error:
        raise BackendUnavailableError(f"what carries TrainJob {ref.name!r} out cannot be started: {error}") from error
    if finished.returncode != 0:
        last = (finished.stderr.strip().splitlines() or ["no answer"])[-1]
        raise BackendUnavailableError(f"what carries TrainJob {ref.name!r} out did not start: {last}")


def lives(uid: str) -> bool:
    """Whether a job is carried out on this machine."""
    path = lock_path(uid)
    if not path.exists():
        return False
    lock = FileLock(path, blocking=False, mode=0o600)
    try:
        with lock:
            return False
    except Timeout:
        return True


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[3])
    search = [str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, *search])}
