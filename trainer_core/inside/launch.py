"""The second program of a container: installs the packages, then becomes the program of the node.

It replaces itself, so that a signal to the container reaches the training, and the exit code is the training's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from . import contract, packages, result

__all__ = ["PACKAGES", "PAYLOAD", "LaunchError", "main", "meeting"]

#: Files beside the package in the folder that was unpacked.
PAYLOAD = "payload.json"
PACKAGES = "packages.json"
_BOOTSTRAP = "trainer_core/inside/bootstrap.py"
#: What torchrun would tell its processes, by where the controller says it.
_PLACES = {"RANK": "PET_NODE_RANK", "WORLD_SIZE": "PET_NNODES"}
_HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


class LaunchError(Exception):
    """The program of the node cannot be started in this image; the message is one line for the user."""

    __module__ = "trainjob"


def main(launch: str, folder: str) -> None:
    """Install what is wanted and become the program of the node. Does not return.

    Args:
        launch: ``torchrun``, or ``python`` for one plain process.
        folder: What was unpacked.
    """
    # The first process of a container is not ended by a signal that it does not handle.
    signal.signal(signal.SIGTERM, _stop)
    os.environ[contract.PAYLOAD] = os.path.join(folder, PAYLOAD)
    try:
        wanted = json.loads(Path(folder, PACKAGES).read_text(encoding="utf-8"))
        command = _command(launch, wanted, os.path.join(folder, _BOOTSTRAP))
    except packages.PackageInstallError as error:
        result.report_error(error, error.output)
        sys.exit(f"trainjob: {error}")
    except LaunchError as error:
        result.report_error(error)
        sys.exit(f"trainjob: {error}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)  # noqa: S606 -- a program and its arguments; no shell is wanted


def _command(launch: str, wanted: Mapping[str, Any], bootstrap: str) -> list[str]:
    python = packages.interpreter(wanted)
    if launch == "python":
        if os.environ.get(contract.NODES):
            os.environ.setdefault("RANK", str(contract.rank()))
            os.environ.setdefault("WORLD_SIZE", os.environ[contract.NODES])
        return [python, bootstrap]
    if subprocess.run([python, "-c", _HAS_TORCH], check=False).returncode == 0:
        os.environ.update(meeting(os.environ))
        return [python, "-m", "torch.distributed.run", bootstrap]
    # Not what the controller makes of it, which is a process for each cpu of a container that has no gpu.
    processes = wanted.get("processes") or 1
    if processes > 1:
        raise LaunchError(
            f"{processes} processes are wanted on each node, which torchrun starts, and torch is not installed here; "
            "use an image with torch, or num_proc_per_node=1"
        )
    # Nothing is said of it: the log is the function's, and one that imports torch will say that it is not there.
    for name, place in _PLACES.items():
        if os.environ.get(place, "").isdecimal():
            os.environ.setdefault(name, os.environ[place])
    return [python, bootstrap]


def meeting(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun has to hear of the other nodes, where it is told to the training alone.

    Training Operators before 1.7, which Run:ai may still bring, say RANK and MASTER_ADDR, and nothing to torchrun.
    """
    nodes = environ.get(contract.NODES, "1")
    if nodes == "1" or "PET_NNODES" in environ or "MASTER_ADDR" not in environ:
        return {}
    told = {"PET_NODE_RANK": "RANK", "PET_MASTER_ADDR": "MASTER_ADDR", "PET_MASTER_PORT": "MASTER_PORT"}
    return {"PET_NNODES": nodes, **{name: environ[place] for name, place in told.items() if place in environ}}


def _stop(number: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + number)
