"""The second program in a container: installs packages, then starts the program of the node.

It stays in front of that program, passes signals on, and decides the exit code: see `exit_code`. torchrun has no
handler for SIGTERM while it waits for the other nodes. What that program leaves may train, and gets SIGTERM from here.
With the option `Stalled` it is the attendant as well.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import cgroup, env, exit_code, packages, resource_monitor, termination

if TYPE_CHECKING:
    from .attendant import Attendant

#: Files beside the package in the folder that was unpacked.
PAYLOAD = "payload.json"
PACKAGES = "packages.json"
#: Line of a node in which torchrun waits for the others; `failure_facts` reads it.
WAITING = "trainjob: this node waits for the other nodes"
#: Seconds between two such lines.
_PATIENCE = 50.0
#: Signals that are passed on; torchrun would be ended by the others.
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
#: Seconds from SIGTERM to SIGKILL for a node that has stalled or failed and saves no checkpoints.
_GRACE = 3.0
#: Seconds between two looks for processes whose parents have ended.
_PAUSE = 0.1
#: Of `prctl`: orphans below this process become its children, as in a container whose first process it is.
_SET_CHILD_SUBREAPER = 36
_BOOTSTRAP = "trainer_core/node/bootstrap.py"
#: Variables that torchrun would set, by the variable of the controller that has the value.
_PET_VARIABLES = {"RANK": "PET_NODE_RANK", "WORLD_SIZE": "PET_NNODES"}
_HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


class LaunchError(Exception):
    """The program of the node cannot be started in this image; the message is one line for the user."""

    __module__ = "trainjob"


def main(launch: str, folder: str) -> None:
    """Install the packages, run the program of the node, and exit with the code of the node."""
    os.environ[env.PAYLOAD] = os.path.join(folder, PAYLOAD)
    has_checkpoints = bool(env.setting(env.CHECKPOINT_PATH))
    if has_checkpoints:
        from . import checkpoints  # Takes time.

        if (record := checkpoints.find_result()) is not None:
            # The other nodes may have ended with it: this one would wait for them.
            print("trainjob: the training is complete, and this node ends with its result", flush=True)
            termination.report_record(record)
            return
    try:
        settings = json.loads(Path(folder, PACKAGES).read_text(encoding="utf-8"))
        command = _command(launch, settings, os.path.join(folder, _BOOTSTRAP))
    except packages.PackageInstallError as error:
        termination.report_error(error, error.output)
        sys.exit(f"trainjob: {error}")
    except LaunchError as error:
        termination.report_error(error)
        sys.exit(f"trainjob: {error}")
    sys.stdout.flush()
    sys.stderr.flush()
    resource_monitor.start_process()
    is_torchrun, stalled = command[-1] == env.TORCHRUN, env.setting(env.STALLED)
    if is_torchrun and has_checkpoints:
        checkpoints.announce_launch()
    attendant = None
    if stalled:
        from .attendant import Attendant  # Only with the option `Stalled`.

        os.environ[env.BEATS] = tempfile.mkdtemp(prefix="beats-", dir=folder)
        attendant = Attendant(Path(os.environ[env.BEATS]), json.loads(stalled), _write)
    os.environ[env.MARKS] = os.path.join(folder, "ended-")
    log = Path(env.setting(env.TERMINATION_LOG))
    kills = cgroup.OomKills()
    # Some images do not have ctypes.
    with contextlib.suppress(ImportError, AttributeError):
        from ctypes import pythonapi

        pythonapi.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    code, is_stopped = _watch(subprocess.Popen(command), is_torchrun, attendant)
    if code == 128 + signal.SIGKILL:
        termination.report_values(log, **kills.describe())
    if code or is_stopped:
        _end_orphans(math.inf if is_stopped else time.monotonic() + _get_grace())
    sys.exit(exit_code.decide(code, os.environ[env.MARKS], log, is_stopped, _write))


def _watch(
    child: subprocess.Popen[bytes], is_torchrun: bool = True, attendant: Attendant | None = None
) -> tuple[int, bool]:
    """Return the exit code as a container has it, or that of the attendant of a node that has stalled.

    Return with it whether SIGTERM was received, which ends torchrun at once while it has no processes.
    """
    is_stopped = False

    def stop(number: int, frame: Any) -> None:
        nonlocal is_stopped
        is_stopped = is_stopped or number == signal.SIGTERM
        if attendant is not None and attendant.is_silent():
            attendant.print_stacks()
        if not is_torchrun or _has_processes(child.pid):
            child.send_signal(number)
        else:
            # It waits for the other nodes, and has no handler yet.
            child.kill()
            os._exit(128 + number)

    for number in _PASSED_ON[: 2 if is_torchrun else None]:
        signal.signal(number, stop)
    due = time.monotonic() + _PATIENCE
    while True:
        try:
            code = child.wait(_PATIENCE if attendant is None else attendant.pause)
        except subprocess.TimeoutExpired:
            if attendant is not None and attendant.check():
                return _end(child, attendant), is_stopped
            if is_torchrun and time.monotonic() >= due and not _has_processes(child.pid):
                due = time.monotonic() + _PATIENCE
                print(WAITING, flush=True)
        else:
            return 128 - code if code < 0 else code, is_stopped


def _end(child: subprocess.Popen[bytes], attendant: Attendant) -> int:
    attendant.print_stacks()
    attendant.report(Path(env.setting(env.TERMINATION_LOG)))
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_get_grace())
    attendant.kill()
    child.kill()
    child.wait()
    return attendant.code


def _get_grace() -> float:
    grace: float = json.loads(env.setting(env.CHECKPOINTS) or "{}").get("grace", _GRACE)
    return grace


def _end_orphans(end: float) -> None:
    """Send SIGTERM to each process whose parents have ended, and wait for its end: a child may train, and save.

    Who has sent SIGTERM to this process sends SIGKILL after the grace.
    """
    told: set[str] = set()
    with contextlib.suppress(ChildProcessError):  # None is left.
        while time.monotonic() < end:
            children = {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}
            for pid in children - told:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(int(pid), signal.SIGTERM)
            told |= children
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_PAUSE)


def _write(text: str) -> None:
    # Standard error: engines keep its lines apart from an unfinished line of standard output.
    sys.stderr.write(text)
    sys.stderr.flush()


def _has_processes(pid: int) -> bool:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return not path.is_file() or bool(path.read_text())


def _command(launch: str, settings: Mapping[str, Any], bootstrap: str) -> list[str]:
    python = packages.ensure_packages(settings)
    if launch == "python":
        if os.environ.get(env.NODES):
            os.environ.setdefault("RANK", str(env.rank()))
            os.environ.setdefault("WORLD_SIZE", os.environ[env.NODES])
        return [python, bootstrap]
    if subprocess.run([python, "-c", _HAS_TORCH], check=False).returncode == 0:
        os.environ.update(rendezvous_variables(os.environ))
        return [python, bootstrap, env.TORCHRUN]
    # From the request: the controller would start one process per CPU on a node without GPU.
    processes = settings.get("processes") or 1
    if processes > 1:
        raise LaunchError(
            f"num_proc_per_node={processes} needs torchrun, and torch is not installed in this image; use an "
            "image with torch, or num_proc_per_node=1"
        )
    # Not logged: the log belongs to the function, and importing torch in it reports that it is missing.
    for name, source in _PET_VARIABLES.items():
        if os.environ.get(source, "").isdecimal():
            os.environ.setdefault(name, os.environ[source])
    return [python, bootstrap]


def rendezvous_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the rendezvous variables of torchrun, where the controller sets only those of the training.

    Old controllers of PyTorchJobs set RANK and MASTER_ADDR and nothing for torchrun.
    """
    nodes = environ.get(env.NODES, "1")
    if nodes == "1" or "PET_NNODES" in environ or "MASTER_ADDR" not in environ:
        return {}
    sources = {"PET_NODE_RANK": "RANK", "PET_MASTER_ADDR": "MASTER_ADDR", "PET_MASTER_PORT": "MASTER_PORT"}
    return {"PET_NNODES": nodes, **{name: environ[source] for name, source in sources.items() if source in environ}}
