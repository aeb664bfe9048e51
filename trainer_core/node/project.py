"""Unpack the files that travelled with a training function, and make them importable.

Small ones are in the payload. Large ones are an object in a bucket or a file, which the first process of a node reads.
All processes of a node share one folder, named after the digest of the files. It becomes the working directory, and
comes first in `sys.path` and PYTHONPATH: child processes import from it, too.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Mapping
from typing import Any

#: Folders of the user's files in this process, with a separator at the end.
folders: list[str] = []


class ProjectError(Exception):
    """The files are damaged, or cannot be fetched or written; the message is one line for the user."""

    __module__ = "trainjob"


def unpack(project: Mapping[str, Any], parent: str) -> str:
    return write_all(decompress(project["archive"], project["digest"]), get_folder(project, parent))


def get_folder(project: Mapping[str, Any], parent: str) -> str:
    return os.path.join(parent, "code-" + project["digest"][:12])


def decompress(data: bytes | str, digest: str) -> bytes:
    try:
        text = zlib.decompress(base64.b64decode(data) if isinstance(data, str) else data)
    except (ValueError, zlib.error):
        text = b""
    if hashlib.sha256(text).hexdigest() != digest:
        raise ProjectError("the files of code do not match their digest: they were changed on the way")
    return text


def write_all(text: bytes, folder: str) -> str:
    """Write uncompressed files into a folder unless it exists; return the folder."""
    if os.path.isdir(folder):
        return folder
    parent = os.path.dirname(folder)
    temporary = tempfile.mkdtemp(prefix=".", dir=parent)
    try:
        _write(json.loads(text.decode("utf-8")), temporary)
        # Atomic: other processes find all files or no folder.
        os.rename(temporary, folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not os.path.isdir(folder):
            raise ProjectError(f"the files of code cannot be written: {error}") from None
    return folder


def _write(content: dict[str, Any], folder: str) -> None:
    for name, data in content["files"].items():
        parts = name.split("/")
        if "" in parts or ".." in parts:
            raise ProjectError(f"the files of code have the path {name!r}, which leads out of their folder")
        path = os.path.join(folder, *parts)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        mode = 0o700 if name in content["executable"] else 0o600
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data.encode("utf-8") if isinstance(data, str) else base64.b64decode(data["base64"]))


def enter(folder: str, roots: list[str]) -> None:
    """Change to a folder of files and import from it."""
    folder = os.path.realpath(folder)  # As in the file names of modules that are imported from the working directory.
    places = [os.path.normpath(os.path.join(folder, root)) for root in roots]
    sys.path[:0] = [place for place in places if place not in sys.path]
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, inherited] if inherited else places)
    os.chdir(folder)
    folders.append(os.path.join(folder, ""))


def shorten(text: str) -> str:
    """Return a traceback with the paths that the files have in the user's project."""
    for folder in folders:
        text = text.replace(folder, "")
    return text
