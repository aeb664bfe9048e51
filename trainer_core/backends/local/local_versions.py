"""The versions of what a job runs on this machine, for the option `Reuse`: Python and the installed packages."""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from typing import Any

from trainer_core.backends.local.runtimes import LocalRuntime
from trainer_core.lifecycle.reuse import Versions
from trainer_core.request import TrainJobRequest

#: The installed project: it does not change what is trained.
_OWN = "trainjob-workflows"


def read_versions(request: TrainJobRequest, runtime: LocalRuntime) -> Versions:
    packages: dict[str, str] = {}
    unknown = []
    for package in metadata.distributions():
        name = package.metadata["Name"]
        if name == _OWN or name in packages:  # The first one on the path is imported.
            continue
        packages[name] = package.version
        if _is_folder(package):
            unknown.append(f"package {name}: it is installed from a folder, whose content has no version")
    code = request.trainer.code if request.trainer else None
    if code is not None and code.kind == "reference" and code.project is None:
        unknown.append(f"function {code.entry}: it is imported from this machine; give its project as code")
    if "PYTHONPATH" in os.environ or (request.trainer and "PYTHONPATH" in request.trainer.env):
        unknown.append("PYTHONPATH: the modules below it have no version")
    python = [platform.python_implementation(), platform.python_version(), platform.machine()]
    return Versions({"python": python, "packages": packages, "runtime": asdict(runtime)}, tuple(unknown))


def _is_folder(package: metadata.Distribution) -> bool:
    """Return whether a package was installed from a folder, editable or not (PEP 610)."""
    data: Any = None
    with suppress(ValueError):
        data = json.loads(package.read_text("direct_url.json") or "null")
    return isinstance(data, dict) and "dir_info" in data
