"""Starts the detached supervisor process of a job, for backends without a server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer_core.fetch.settings import ENV_PREFIX
from trainer_core.node import env

#: The folder of the submitter may be gone before the supervisor.
_WORKING_DIRECTORY = "/"
#: A start takes 0.3 seconds. A disk that hangs must not hang the submitter.
_START_SECONDS = 120
#: Runs a module of this package, whichever version the interpreter has installed, and imports nothing from the working
#: directory. The folder of this package is not in PYTHONPATH, which the training would inherit: if it is site-packages,
#: the packages of the submitter would come before those of the job, and before the standard library.
_RUN_MODULE = (
    "import runpy, sys; root, module = sys.argv[1:3]; del sys.argv[1:3]; path = [each for each in sys.path if each]; "
    "sys.path[:] = [root, *path]; import trainer_core; sys.path[:] = path; "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)
#: Removes the mark of the job around a supervisor, by which the local backend finds the processes of a job.
_LEAVE_JOB = (
    "import contextlib, resource\n"
    "with contextlib.suppress(AttributeError, OSError):\n"
    "    resource.setrlimit(resource.RLIMIT_RTTIME, (resource.getrlimit(resource.RLIMIT_RTTIME)[1],) * 2)\n"
)
#: Environment variables that a backend or launcher sets for one job. A job that submits another job must not pass
#: them on.
_JOB_VARIABLES = frozenset(
    {
        *(each for each in vars(env).values() if isinstance(each, str) and each.startswith("TRAINJOB_")),
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    }
).difference(env.OF_MACHINE)
_JOB_VARIABLE_PREFIXES = (
    *(ENV_PREFIX, "PET_", "TORCHELASTIC_"),
    *("KUBEFLOW_TRAINER_SERVER_", "TRAINJOB_KUBEFLOW_TRAINER_SERVER_"),
)


def start_supervisor(module: str, arguments: Sequence[str], stdin: str) -> subprocess.CompletedProcess[str]:
    """Run a supervisor in a new session, until it has detached itself. It is no part of a job around it."""
    python, option, program, *rest = build_module_command(sys.executable, module, *arguments)
    try:
        return subprocess.run(
            [python, option, _LEAVE_JOB + program, *rest],
            input=stdin,
            capture_output=True,
            cwd=_WORKING_DIRECTORY,
            env=remove_job_variables(os.environ),
            start_new_session=True,
            check=False,
            text=True,
            timeout=_START_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"it did not answer in {_START_SECONDS} seconds") from error


def build_module_command(python: str, module: str, *arguments: str) -> list[str]:
    return [python, "-c", _RUN_MODULE, str(Path(__file__).parents[2]), module, *arguments]


def remove_job_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for another job than the one around it."""
    variables = {
        name: value
        for name, value in environ.items()
        if name not in _JOB_VARIABLES and not name.startswith(_JOB_VARIABLE_PREFIXES)
    }
    if variables.get("PYTHONPATH"):
        # Relative entries would mean something else in the working directory of the supervisor.
        entries = [entry for entry in variables["PYTHONPATH"].split(os.pathsep) if entry]
        variables["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in entries)
    return variables
