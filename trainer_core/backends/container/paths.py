"""Files of the container backend on the submitter's machine. The state of jobs is on the engine."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """Return the folder of all files, inside ``TRAINJOB_HOME`` (default ``~/.trainjob``)."""
    return Path(os.environ.get("TRAINJOB_HOME") or "~/.trainjob").expanduser().absolute() / "containers"


def data_cache(role: str) -> Path:
    """Return the folder of copied ``file://`` data of a role."""
    return state_folder() / "cache" / role


def code_folder() -> Path:
    """Return the folder of projects that are too large for the arguments of a job."""
    return state_folder() / "code"


def runtime_cache() -> Path:
    return state_folder() / "runtimes"


def lock_path(uid: str) -> Path:
    return state_folder() / "supervisors" / f"{uid}.lock"
