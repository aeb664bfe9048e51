"""Fetch the files of a project that is too large for the arguments of a job."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from . import files, locks
from .project import ProjectError, decompress, get_folder, write_all

#: Seconds to wait for another process of this machine that fetches them.
_TIMEOUT = 600.0


class FetchError(ProjectError):
    """The files cannot be fetched or are damaged; another attempt of the job stores them again."""

    __module__ = "trainjob"


def unpack(project: Mapping[str, Any], parent: str) -> str:
    """Write the files of an object into a folder, unless another process of the node has done it; return the folder."""
    folder = get_folder(project, parent)
    with locks.locked_if_possible(Path(folder).parent, _TIMEOUT):
        # A folder is complete: it has got its name after its files.
        return folder if Path(folder).is_dir() else write_all(_fetch(project["uri"], project["digest"]), folder)


def _fetch(uri: str, digest: str) -> bytes:
    parts = urlsplit(uri)
    try:
        if parts.scheme == "file":
            return decompress(Path(unquote(parts.path)).read_bytes(), digest)
        return _fetch_once(parts.netloc, parts.path.lstrip("/"), digest)
    except OSError as error:
        raise FetchError(f"the files of code cannot be fetched from {uri}: {error}") from None
    except ProjectError as error:
        raise FetchError(f"{error}; submit the job again, which replaces {uri}") from None


def _fetch_once(bucket: str, key: str, digest: str) -> bytes:
    """Return the files of an object in a bucket, which is kept for the other jobs and processes of this machine."""
    cache = Path(tempfile.gettempdir(), f"trainjob-code-{os.geteuid()}")
    is_private = files.make_private(cache)
    with locks.locked_if_possible(cache, _TIMEOUT):
        kept = cache / digest
        if is_private and kept.is_file():
            with contextlib.suppress(ProjectError):  # Damaged, as by a crash of the machine.
                return decompress(kept.read_bytes(), digest)
        from .s3_client import Bucket  # Travels only with jobs that need it.

        data = Bucket(bucket).get(key)
        if data is None:
            raise FileNotFoundError("it does not exist; submit the job again")
        text = decompress(data, digest)
        if is_private:
            with contextlib.suppress(OSError):
                files.replace(kept, data)
        return text
