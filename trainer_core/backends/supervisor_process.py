"""Starts the detached supervisor process of a job, for backends without a server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["start_supervisor"]


def start_supervisor(
    module: str, arguments: Sequence[str], stdin: str, cwd: Path, environ: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a supervisor module in a new session and return when it has detached itself.

    Args:
        module: Dotted name of the module. It forks, and its first process exits.
        arguments: Command line arguments. Other users can read them, so they contain no secrets.
        stdin: Text for its standard input, which may contain secrets.
        cwd: Working directory. Python also imports modules from there, so it must not be the submitter's directory.
        environ: Environment variables. PYTHONPATH is extended by the folder of this package.

    Raises:
        OSError: The process cannot be started.
    """
    package_root = str(Path(__file__).parents[2])
    # Relative entries would mean something else in the working directory of the supervisor.
    entries = [str(Path(entry).absolute()) for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env={**environ, "PYTHONPATH": os.pathsep.join([package_root, *entries])},
        start_new_session=True,
        check=False,
        text=True,
    )
