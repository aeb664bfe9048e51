"""Virtual environments for ``packages_to_install``, shared by jobs. A marker, written last, tells a complete one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from trainer_core.node import locks, packages
from trainer_core.node.packages import MARKER


class EnvironmentBuildError(Exception):
    """The packages could not be installed. The incomplete environment was removed."""


def environment_key(packages: Sequence[str], index_urls: Sequence[str]) -> str:
    """Return the folder name of the environment with these packages for this interpreter."""
    inputs = [sys.version, sys.prefix, sorted(packages), list(index_urls)]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:24]


def get_interpreter(environments: Path, spec: dict[str, Any] | None) -> Path:
    if spec is None:
        return Path(sys.executable)
    return environments / environment_key(spec["packages"], spec["index_urls"]) / "bin" / "python"


def build_environment(environments: Path, spec: dict[str, Any], log: IO[bytes], process_env: Mapping[str, str]) -> None:
    """Build an environment unless it exists. Of several concurrent builders, one builds and the others wait."""
    key = environment_key(spec["packages"], spec["index_urls"])
    uv = shutil.which("uv")

    def install(python: Path) -> None:
        command = [uv, "pip", "install", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
        for names, arguments, variables in packages.plan_installs(python, spec):
            finished = subprocess.run(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **process_env, **_index_variables(spec["index_urls"], os.environ), **variables},
                check=False,
            )
            if finished.returncode != 0:
                raise EnvironmentBuildError(f"installing {names} failed with exit code {finished.returncode}")

    with_pip = not uv and find_spec("pip") is None
    packages.build_environment(environments / key, environments / f"{key}.lock", with_pip, install)


def list_environments(environments: Path) -> list[Path]:
    """Return the folders of the complete environments."""
    return [marker.parent for marker in environments.glob(f"*/{MARKER}")]


def remove_environments(environments: Path, in_use: Set[str], min_age: float) -> None:
    for folder in list_environments(environments):
        marker = folder / MARKER
        if folder.name in in_use:
            continue
        # FileNotFoundError: another process removed the environment meanwhile.
        with locks.locked(environments / f"{folder.name}.lock"), suppress(FileNotFoundError):
            if time.time() - marker.stat().st_mtime > min_age:
                marker.unlink()
                shutil.rmtree(folder, ignore_errors=True)


def _index_variables(index_urls: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Set the package indexes in variables: index URLs can have passwords, and every user can read arguments."""
    uv_names = {"PIP_INDEX_URL": "UV_INDEX_URL", "PIP_EXTRA_INDEX_URL": "UV_EXTRA_INDEX_URL"}
    variables = {uv: env[pip] for pip, uv in uv_names.items() if pip in env and uv not in env}
    if "PIP_FIND_LINKS" in env and "UV_FIND_LINKS" not in env:
        variables["UV_FIND_LINKS"] = ",".join(env["PIP_FIND_LINKS"].split())
    first, *rest = index_urls or [""]
    if first:
        variables.update(PIP_INDEX_URL=first, UV_DEFAULT_INDEX=first)
    if rest:
        variables.update(PIP_EXTRA_INDEX_URL=" ".join(rest), UV_EXTRA_INDEX_URL=" ".join(rest))
    return variables
