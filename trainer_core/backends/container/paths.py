"""Paths of the container backend: in a container, and of its files on the submitter's machine."""

from __future__ import annotations

import os
from pathlib import Path

from trainer_core.node import env

#: Path of the fetched data in a container, by role.
DATA_PATHS = {"dataset": env.DEFAULTS[env.DATASET_PATH], "model": env.DEFAULTS[env.MODEL_PATH]}
#: Files that a node writes and that are read when it has exited. /dev does not exist then, and a mount can hide /tmp.
#: They are created with the container, so that every user of it can write to them.
TERMINATION_PATH = "/trainjob-termination.json"
RESULT_PATH = "/trainjob-result.json"
#: Path of the cache that jobs share. Data that is in it is linked and not fetched again.
CACHE_PATH = "/trainjob-cache"
#: File with the files of a large project, copied into the container of each node before it starts.
CODE_PATH = "/trainjob-code.json.zlib"


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
