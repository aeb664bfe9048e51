"""Install the packages of a job, once per container, in addition to those of the image.

They are installed into a virtual environment in the temporary folder, which also sees the packages of the image. This
works where the image's environment is read-only or belongs to another user or to the system's package manager, and
downloads nothing that the image already has.
"""

from __future__ import annotations

import collections
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from . import files, locks
from .requirement import HASH, INDEX, strip_options

#: File of an environment that is created last: the environment is complete.
MARKER = "trainjob-ready"
_LAST_LINES = 20
_PIP = ("install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off")
_CREDENTIALS = re.compile("(?<=://)[^/@]+@")
_INDEX_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
#: What pip and uv would take from beside the only index of a package.
_OTHER_SOURCES = (
    *("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"),
    *("UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX"),
)


class PackageInstallError(Exception):
    """The packages cannot be installed; the message is one line for the user."""

    __module__ = "trainjob"

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


def ensure_packages(wanted: Mapping[str, Any]) -> str:
    """Return the Python interpreter that has the packages, after installing them if necessary."""
    if not wanted["packages"]:
        return sys.executable
    named = _named(wanted["packages"])
    try:
        folder = _folder(wanted)
        environment = folder / "environment"
        install = partial(_install, wanted=wanted)
        build_environment(environment, folder, importlib.util.find_spec("pip") is None, install)
    except ImportError:
        raise PackageInstallError(
            f"{named} cannot be installed: this image's Python has no venv module; use an image with "
            "venv or with the packages"
        ) from None
    except subprocess.CalledProcessError:
        raise PackageInstallError(
            f"{named} cannot be installed: this image has neither pip nor ensurepip; use an image with "
            "pip or with the packages"
        ) from None
    except OSError as error:
        raise PackageInstallError(f"{named} cannot be installed: {error}") from error
    # Commands of the packages are on PATH, too.
    os.environ["PATH"] = os.pathsep.join([str(environment / "bin"), os.environ.get("PATH") or os.defpath])
    os.environ["VIRTUAL_ENV"] = str(environment)
    return str(environment / "bin" / "python")


def build_environment(environment: Path, lock: Path, with_pip: bool, install: Callable[[Path], object]) -> None:
    """Build an environment unless it is complete, as `install` does with its interpreter.

    Of several processes that need it, one builds it and the others wait.
    """
    marker = environment / MARKER
    with locks.locked(lock):
        if marker.exists():
            # Its time is that of the last use.
            marker.touch()
            return
        shutil.rmtree(environment, ignore_errors=True)
        try:
            _create_virtualenv(environment)
            python = environment / "bin" / "python"
            if with_pip:
                subprocess.run([str(python), "-m", "ensurepip"], stdin=subprocess.DEVNULL, check=True)
            install(python)
            marker.touch(mode=0o600)
        except BaseException:
            shutil.rmtree(environment, ignore_errors=True)
            raise


def _folder(wanted: Mapping[str, Any]) -> Path:
    """Return the folder for this interpreter and these packages, shared by the processes of this user only."""
    key = json.dumps([sys.version, sys.prefix, wanted["packages"], wanted["index_urls"]])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    shared = Path(tempfile.gettempdir(), f"trainjob-packages-{os.geteuid()}-{digest}")
    return shared if files.make_private(shared) else Path(tempfile.mkdtemp(prefix="trainjob-packages-"))


def _create_virtualenv(folder: Path) -> None:
    """Create a virtual environment that also sees the packages of this interpreter."""
    import venv  # Some images do not have it.

    venv.create(folder, symlinks=True)
    base = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *_list_site_folders()))
    # addsitedir instead of the bare path: packages of the base interpreter may have .pth files.
    lines = [f"import site; site.addsitedir({path!r})\n" for path in base]
    version = "python{}.{}".format(*sys.version_info[:2])
    (folder / "lib" / version / "site-packages" / "trainjob-base.pth").write_text("".join(lines), encoding="utf-8")


def _list_site_folders() -> list[str]:
    return [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]


def plan_installs(python: Path, wanted: Mapping[str, Any]) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Yield the calls of pip or uv, each when the one before has ended: names, arguments and variables.

    pip knows no index of a single package, and wants hashes of all packages or of none. So packages with hashes or an
    index are installed first, index by index and without what they need: with hashes, that is in the list. Then follow
    the others, and what a package without hashes needs, with the versions that are there.
    """
    folder = python.parents[1]
    before = set(_list_installed(folder))
    calls: dict[tuple[str, bool], list[str]] = {}
    for package in wanted["packages"]:
        index, is_hashed = INDEX.search(package), bool(HASH.search(package))
        if index or is_hashed:
            calls.setdefault((index[1] if index else "", is_hashed), []).append(package)
    for (index_url, is_hashed), packages in calls.items():
        options = ["--no-deps", *(["--require-hashes"] if is_hashed else [])]
        file = _write(folder, "requirements.txt", [INDEX.sub("", each) for each in packages])
        variables = _only_index(index_url, wanted["index_urls"]) if index_url else {}
        if is_hashed:
            variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # The hashes decide, and not the order of the indexes.
        yield _named(packages), [*options, *file], variables
    rest = [INDEX.sub("", each) for each in wanted["packages"] if not HASH.search(each)]
    if rest:
        present = [each for each in _list_installed(folder) if each not in before]
        constraints = _write(folder, "constraints.txt", present) if calls else []
        yield _named(rest), [*constraints, *_write(folder, "requirements.txt", rest)], {}


def _only_index(index: str, index_urls: list[str]) -> dict[str, str]:
    """Return the variables with which pip and uv know one index, with the user that the job's variables have for it."""
    known = [*index_urls, *(url for name in _INDEX_VARIABLES for url in os.environ.get(name, "").split())]
    url = next((each for each in known if _CREDENTIALS.sub("", each).rstrip("/") == index.rstrip("/")), index)
    return {**dict.fromkeys(_OTHER_SOURCES, ""), "PIP_INDEX_URL": url, "UV_DEFAULT_INDEX": url, "UV_NO_CONFIG": "1"}


def _write(folder: Path, name: str, lines: list[str]) -> list[str]:
    """Write a file for pip and return the arguments that name it."""
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ["--requirement" if name == "requirements.txt" else "--constraint", str(folder / name)]


def _list_installed(folder: Path) -> list[str]:
    """Return ``name==version`` of what is in an environment, without what it sees of another one."""
    return ["==".join(each.stem.split("-", 1)) for each in folder.glob("lib/python*/site-packages/*.dist-info")]


def _install(python: Path, wanted: Mapping[str, Any]) -> None:
    for named, arguments, variables in plan_installs(python, wanted):
        settings = {**_settings(wanted["index_urls"]), **variables}
        code, last = _run([str(python), "-m", "pip", *_PIP, *arguments], settings)
        if code != 0:
            reason = next((line for line in last if line.startswith("ERROR: ")), f"exit code {code}")
            raise PackageInstallError(f"pip could not install {named}: {reason}", "\n".join(last))


def _settings(index_urls: list[str]) -> dict[str, str]:
    """Return the environment of pip. Index URLs are variables and not arguments: they may have a password."""
    # An image may set PIP_USER, which does not work in a virtual environment.
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


def _named(packages: list[str]) -> str:
    return ", ".join(map(strip_options, packages))
