"""Starts the detached supervisor process of a job, for backends without a server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["start_supervisor"]

#: Python imports modules from here before those of the standard library: only root may write to it.
_WORKING_DIRECTORY = "/"
#: A start takes 0.3 seconds. A disk that hangs must not hang the submitter.
_START_SECONDS = 120


def start_supervisor(
    module: str, arguments: Sequence[str], stdin: str, environ: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a supervisor module in a new session and return when it has detached itself.

    Args:
        module: Dotted name of the module. It forks, and its first process exits.
        arguments: Command line arguments. Other users can read them, so they contain no secrets.
        stdin: Text for its standard input, which may contain secrets.
        environ: Environment variables. PYTHONPATH is extended by the folder of this package.

    Raises:
        OSError: The process cannot be started, or has not detached itself after two minutes.
    """
    package_root = str(Path(__file__).parents[2])
    # Relative entries would mean something else in the working directory of the supervisor.
    entries = [str(Path(entry).absolute()) for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    try:
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            input=stdin,
            capture_output=True,
            cwd=_WORKING_DIRECTORY,
            env={**environ, "PYTHONPATH": os.pathsep.join([package_root, *entries])},
            start_new_session=True,
            check=False,
            text=True,
            timeout=_START_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"it did not answer in {_START_SECONDS} seconds") from error
