"""Virtual environments by what is installed in them, built once and shared by jobs.

An environment sees the packages of the interpreter that runs the backend and adds the job's own on top, as a
container's `pip install` adds to its image. A marker written last says that it is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

__all__ = ["BuildFailedError", "build", "interpreter", "key", "remove_unused"]

_MARKER = "trainjob-ready"


class BuildFailedError(Exception):
    """Installing the packages failed; nothing is left of the environment."""


def key(packages: Sequence[str], index_urls: Sequence[str]) -> str:
    """Name the environment that holds these packages over this interpreter."""
    facts = [sys.version, sys.prefix, sorted(packages), list(index_urls)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def interpreter(environments: Path, wanted: dict[str, Any] | None) -> Path:
    """Return the Python that a job runs with: the cached environment's, or the one that runs now."""
    if wanted is None:
        return Path(sys.executable)
    return environments / key(wanted["packages"], wanted["index_urls"]) / "bin" / "python"


def build(environments: Path, wanted: dict[str, Any], log: IO[bytes], marks: Mapping[str, str]) -> None:
    """Make the environment if it is not there; concurrent builders wait for the first.

    Args:
        environments: The folder of all environments.
        wanted: ``packages`` and ``index_urls``.
        log: Where the installer's output goes.
        marks: Environment variables by which the installer is found when the job has to end.

    Raises:
        BuildFailedError: The installer failed.
    """
    name = key(wanted["packages"], wanted["index_urls"])
    folder = environments / name
    with FileLock(environments / f"{name}.lock", mode=0o600):
        if (folder / _MARKER).exists():
            # Says when it was last wanted.
            (folder / _MARKER).touch()
            return
        shutil.rmtree(folder, ignore_errors=True)
        try:
            _install(folder, wanted["packages"], wanted["index_urls"], log, {**os.environ, **marks})
            (folder / _MARKER).touch(mode=0o600)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def remove_unused(environments: Path, needed: Set[str], older_than: float) -> None:
    """Remove the environments that no job needs.

    Args:
        environments: The folder of all environments.
        needed: Keys of those that jobs refer to.
        older_than: Seconds since an environment was last wanted; a job that is just being made is not listed yet.
    """
    for marker in environments.glob(f"*/{_MARKER}"):
        folder = marker.parent
        if folder.name in needed:
            continue
        with FileLock(environments / f"{folder.name}.lock", mode=0o600), suppress(FileNotFoundError):
            # Gone already where another one has removed it in the meantime.
            if time.time() - marker.stat().st_mtime > older_than:
                marker.unlink()
                shutil.rmtree(folder, ignore_errors=True)


def _install(
    folder: Path, packages: Sequence[str], index_urls: Sequence[str], log: IO[bytes], env: Mapping[str, str]
) -> None:
    uv = shutil.which("uv")
    venv.create(folder, symlinks=True, with_pip=not uv and find_spec("pip") is None)
    _show_packages_of_this_interpreter(folder)
    python = folder / "bin" / "python"
    command = [uv, "pip", "install", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
    local = env.get("PIP_FIND_LINKS")
    finished = subprocess.run(
        # pip reads its own environment; uv does not.
        [*command, *(["--find-links", local] if uv and local else []), *packages],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**env, **_indexes(index_urls, env)},
        check=False,
    )
    if finished.returncode != 0:
        raise BuildFailedError(f"installing {', '.join(packages)} failed with exit code {finished.returncode}")


def _indexes(index_urls: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Tell pip and uv the indexes by their environment: arguments can be read by everybody, and URLs hold passwords."""
    names = {"PIP_INDEX_URL": "UV_INDEX_URL", "PIP_EXTRA_INDEX_URL": "UV_EXTRA_INDEX_URL"}
    found = {uvs: env[pips] for pips, uvs in names.items() if pips in env and uvs not in env}
    first, *rest = index_urls or [""]
    if first:
        found.update(PIP_INDEX_URL=first, UV_DEFAULT_INDEX=first)
    if rest:
        found.update(PIP_EXTRA_INDEX_URL=" ".join(rest), UV_EXTRA_INDEX_URL=" ".join(rest))
    return found


def _show_packages_of_this_interpreter(folder: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    paths = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *_extra_paths()))
    (site / "trainjob-base.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")


def _extra_paths() -> list[str]:
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
