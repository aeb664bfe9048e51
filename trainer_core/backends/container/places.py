"""Folders of this machine that the container backend uses; the engine has all that matters."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["home"]


def home() -> Path:
    """Return the folder of everything: copies of local data, runtimes, locks. The environment is asked each time."""
    return Path(os.environ.get("TRAINJOB_HOME") or "~/.trainjob").expanduser().absolute() / "containers"
