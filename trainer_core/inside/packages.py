"""The packages of a job, installed once in a container, over those of its image.

They go into a virtual environment in the temporary folder which sees all that the image has. So it works where the
image's own environment is read-only, belongs to another user or to the system's package manager; nothing of it is
changed, and nothing that it has is fetched again.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import files

__all__ = ["PackageInstallError", "interpreter"]

#: Written last: the environment is whole.
_MARKER = "ready"
_LAST_LINES = 20
_PIP = ("install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--requirement")


class PackageInstallError(Exception):
    """The packages could not be installed; the message is one line for the user.

    Args:
        message: Which, and why.
        output: The last lines of the installer.
    """

    __module__ = "trainjob"

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


def interpreter(wanted: Mapping[str, Any]) -> str:
    """Return the Python that has the packages, after installing them if nobody has.

    Args:
        wanted: ``packages``, as pip takes them, and ``index_urls``: the index and extra ones; none for pip's own.

    Raises:
        PackageInstallError: They cannot be installed.
    """
    if not wanted["packages"]:
        return sys.executable
    try:
        environment = _environment(wanted)
    except OSError as error:
        raise PackageInstallError(f"{_named(wanted)} cannot be installed: {error}") from error
    # What the packages bring as commands is found, too.
    os.environ["PATH"] = os.pathsep.join([str(environment / "bin"), os.environ.get("PATH") or os.defpath])
    os.environ["VIRTUAL_ENV"] = str(environment)
    return str(environment / "bin" / "python")


def _environment(wanted: Mapping[str, Any]) -> Path:
    folder = _folder(wanted)
    environment = folder / "environment"
    # The ranks of a node may come here all at once; the first one installs.
    with _alone(folder):
        if not (folder / _MARKER).exists():
            shutil.rmtree(environment, ignore_errors=True)
            _make(environment, wanted)
            _install(environment, folder / "requirements.txt", wanted)
            (folder / _MARKER).touch()
    return environment


def _folder(wanted: Mapping[str, Any]) -> Path:
    """A folder for this interpreter and these packages; shared by the processes of this user, and of nobody else."""
    facts = json.dumps([sys.version, sys.prefix, wanted["packages"], wanted["index_urls"]])
    digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
    shared = Path(tempfile.gettempdir(), f"trainjob-packages-{os.geteuid()}-{digest}")
    return shared if files.make_private(shared) else Path(tempfile.mkdtemp(prefix="trainjob-packages-"))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _make(environment: Path, wanted: Mapping[str, Any]) -> None:
    try:
        import venv
    except ImportError:
        raise PackageInstallError(
            f"{_named(wanted)} cannot be installed: this image's Python has no venv module; use an image that has the "
            "packages"
        ) from None
    venv.create(environment, symlinks=True)
    version = "python{}.{}".format(*sys.version_info[:2])
    seen = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *_site_folders()))
    # Not the bare paths: packages of the image may have .pth files of their own.
    lines = [f"import site; site.addsitedir({path!r})" for path in seen]
    (environment / "lib" / version / "site-packages" / "image.pth").write_text("\n".join(lines), encoding="utf-8")


def _site_folders() -> list[str]:
    return [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]


def _install(environment: Path, requirements: Path, wanted: Mapping[str, Any]) -> None:
    python = str(environment / "bin" / "python")
    if importlib.util.find_spec("pip") is None and _run([python, "-m", "ensurepip"], dict(os.environ))[0] != 0:
        raise PackageInstallError(
            f"{_named(wanted)} cannot be installed: this image has neither pip nor ensurepip; use one with pip, or "
            "one that has the packages"
        )
    requirements.write_text("\n".join(wanted["packages"]) + "\n", encoding="utf-8")
    code, last = _run([python, "-m", "pip", *_PIP, str(requirements)], _settings(wanted["index_urls"]))
    if code != 0:
        reason = next((line for line in last if line.startswith("ERROR: ")), f"exit code {code}")
        raise PackageInstallError(f"pip could not install {_named(wanted)}: {reason}", "\n".join(last))


def _settings(index_urls: list[str]) -> dict[str, str]:
    """The environment of pip: a URL may hold a password, which everybody could read in its arguments."""
    # An image may be set to install for the user, which an environment of its own does not allow.
    settings = {**os.environ, "PIP_USER": "0"}
    if index_urls:
        settings["PIP_INDEX_URL"] = index_urls[0]
    if index_urls[1:]:
        settings["PIP_EXTRA_INDEX_URL"] = " ".join(index_urls[1:])
    return settings


def _run(command: list[str], settings: dict[str, str]) -> tuple[int, list[str]]:
    """Run a program with its output in the log; return the exit code and the last lines."""
    last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        command, env=settings, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            for line in process.stdout or ():
                os.write(1, line)
                last.append(line.decode("utf-8", "replace").rstrip())
        except BaseException:
            process.kill()
            raise
    return process.returncode, list(last)


def _named(wanted: Mapping[str, Any]) -> str:
    return ", ".join(wanted["packages"])
