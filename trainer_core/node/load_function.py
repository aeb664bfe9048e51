"""Load the training function from its payload.

Source is written to a file below a folder of the import path and loaded from there, so that tracebacks and `inspect`
show it, and so that child processes (DataLoader workers, `torch.multiprocessing`) can import objects that were pickled
by name.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import files, project

#: Prefix of the names of modules created from source.
_MODULE_PREFIX = "trainjob_"
#: `multiprocessing` adds the name of a folder and of a socket.
_MAX_TEMPORARY = 64


class PayloadError(Exception):
    """The payload was not created by the packaging, or is damaged; the message is one line for the user."""

    # Shown in tracebacks instead of the private name of this module.
    __module__ = "trainjob"


def digest(kind: str, text: str, entry: str) -> str:
    """Return the hash that identifies packaged code and detects damage."""
    return hashlib.sha256(f"{kind}\0{text}\0{entry}".encode("utf-8", "surrogatepass")).hexdigest()


def shorten_socket_paths() -> None:
    """Give `multiprocessing` a short folder: a socket whose path has more than 107 bytes hangs its manager."""
    if len(os.fsencode(tempfile.gettempdir())) > _MAX_TEMPORARY:
        from multiprocessing import process  # Takes milliseconds, which the others need not pay.

        with contextlib.suppress(OSError):
            short = tempfile.mkdtemp(prefix=_MODULE_PREFIX, dir="/tmp")
            atexit.register(_remove, Path(short), os.getpid())
            process.current_process()._config["tempdir"] = short  # type: ignore[attr-defined]


def load(payload: Mapping[str, Any], folder: Path) -> Callable[..., Any]:
    kind, text, entry = (str(payload.get(key, "")) for key in ("kind", "text", "entry"))
    if payload.get("digest") and payload["digest"] != digest(kind, text, entry):
        raise PayloadError("the packaged function does not match its digest: it was changed on the way")
    travelled = payload.get("project")
    if travelled or kind == "source":
        folder = _ensure_private_folder(folder)
    if travelled:
        project.enter(unpack_project(travelled, str(folder)), travelled["roots"])
    if kind == "source":
        return _from_source(text, entry, folder, str(payload.get("origin") or ""))
    if kind == "reference":
        return _from_reference(text)
    if kind == "cloudpickle":
        return _from_cloudpickle(text)
    raise PayloadError(f"the packaged function has the unknown kind {kind!r}; use source, reference or cloudpickle")


def unpack_project(travelled: Mapping[str, Any], parent: str) -> str:
    """Return the folder with the files, written first unless another process of the node has done it."""
    if travelled.get("uri"):
        from . import project_fetch  # Travels only with jobs that need it.

        return project_fetch.unpack(travelled, parent)
    return project.unpack(travelled, parent)


def _from_source(text: str, entry: str, folder: Path, origin: str) -> Callable[..., Any]:
    data = text.encode("utf-8")
    name = package = _MODULE_PREFIX + hashlib.sha256(data).hexdigest()[:12]
    file, _, line = origin.rpartition(":")
    if file:
        # Tracebacks show the name of the user's file, and the numbers that the lines have in it.
        (folder / package).mkdir(mode=0o700, exist_ok=True)
        project.folders.append(os.path.join(folder, package, ""))
        name, data = f"{package}.{file[:-3]}", b"\n" * (int(line) - 1) + data
    # Every process of the node writes the same bytes atomically.
    path = folder / f"{name.replace('.', '/')}.py"
    files.write(path, data)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # For processes that the function spawns.
    if file:
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = [str(folder / package)]
    # Not imported by its name: the finders would list each folder of the path again. Each run has fresh globals; the
    # debug backend may run the same code twice in one process.
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    if not callable(getattr(module, entry, None)):
        raise PayloadError(f"the packaged source defines no function {entry!r}")
    return getattr(module, entry)  # type: ignore[no-any-return]


def _ensure_private_folder(folder: Path) -> Path:
    """Return a folder that only this user can write to: the given one if possible, since it is kept with the job."""
    if files.make_private(folder):
        return folder
    # A mounted payload is read-only.
    private = Path(tempfile.mkdtemp(prefix=_MODULE_PREFIX))
    atexit.register(_remove, private, os.getpid())
    return private


def _remove(folder: Path, owner: int) -> None:
    """Remove the temporary folder, unless this process is a fork of the one that created it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _from_reference(text: str) -> Callable[..., Any]:
    module_name, _, path = text.partition(":")
    # As with `python -m module`: modules of the working directory can be imported.
    if not getattr(sys.flags, "safe_path", False) and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    found: Any = importlib.import_module(module_name)
    for name in path.split("."):
        found = getattr(found, name)
    return found  # type: ignore[no-any-return]


def _from_cloudpickle(text: str) -> Callable[..., Any]:
    version, _, data = text.rpartition(":")
    here = "{}.{}".format(*sys.version_info[:2])
    if version and version != here:
        raise PayloadError(
            f"the function was pickled by Python {version} and this is Python {here}, which cannot load its bytecode; "
            'use the same version, or packaging="source"'
        )
    try:
        cloudpickle = importlib.import_module(
            "cloudpickle"
        )  # Not in the standard library: the user chose this packaging.
    except ImportError:
        raise PayloadError(
            'the function was pickled, and this environment has no cloudpickle; add packages_to_install=["cloudpickle"]'
        ) from None
    return cloudpickle.loads(base64.b64decode(data))  # type: ignore[no-any-return]
