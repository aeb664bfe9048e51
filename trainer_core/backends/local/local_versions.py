"""The versions of what a job runs on this machine: Python, packages and environment."""

from __future__ import annotations

import json
import os
import platform
import site
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from trainer_core.backends.local.runtimes import LocalRuntime
from trainer_core.base.secrets import is_secret_name
from trainer_core.lifecycle.reuse import Versions
from trainer_core.model.request import TrainJobRequest

#: The installed project: it does not change what is trained.
_OWN = "trainjob-workflows"
#: Inherited environment variables that name a session, a task, a test or a tracking run, and no setting of a training.
IGNORED = frozenset(Path(__file__).with_name("ignored_variables.txt").read_text(encoding="ascii").split())
#: Of a task in Airflow, too: the setting `get_airflow_context_vars` adds any names behind it.
IGNORED_PREFIX = "AIRFLOW_CTX_"


def read_versions(request: TrainJobRequest, runtime: LocalRuntime) -> Versions:
    folders = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders = [*folders, site.getusersitepackages()]
    unknown = [
        f"{line}: a .pth file adds this folder to the modules, which has no version" for line in _list_added(folders)
    ]
    packages: dict[str, str] = {}
    for package in metadata.distributions(path=folders):
        name = package.metadata["Name"]
        if name == _OWN or name in packages:  # The first one on the path is imported.
            continue
        source = package.read_text("direct_url.json") or ""
        packages[name] = f"{package.version} {source}"  # A commit or an archive can have the version of another one.
        if _is_folder(source):
            unknown.append(f"package {name}: it is installed from a folder, whose content has no version")
    code = request.work.trainer.code if request.work.trainer else None
    if code is not None and code.kind == "reference" and code.project is None:
        unknown.append(f"function {code.entry}: it is imported from this machine; give its project as code")
    job_env = request.work.trainer.env if request.work.trainer else {}
    if any("PYTHONPATH" in each for each in (os.environ, job_env, runtime.env)):
        unknown.append("PYTHONPATH: the modules below it have no version")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in job_env
        and name not in IGNORED
        and not name.startswith(IGNORED_PREFIX)
        and not is_secret_name(name)
    }
    python = [platform.python_implementation(), platform.python_version(), platform.machine()]
    parts = {"python": python, "packages": packages, "runtime": asdict(runtime), "environment": environment}
    return Versions(parts, tuple(unknown))


def _list_added(folders: list[str]) -> Iterator[str]:
    """Yield the folders that ``.pth`` files add to the modules."""
    for folder in folders:
        for path in sorted(Path(folder).glob("*.pth")):
            if _OWN.replace("-", "_") in path.name:
                continue
            for line in path.read_text(errors="replace").splitlines():
                text = line.strip()
                if text and not text.startswith(("#", "import ", "import\t")) and (path.parent / text).is_dir():
                    yield text


def _is_folder(direct_url: str) -> bool:
    """Return whether a package was installed from a folder, editable or not (PEP 610)."""
    data: Any = None
    with suppress(ValueError):
        data = json.loads(direct_url or "null")
    return isinstance(data, dict) and "dir_info" in data
