"""Stamps of artifacts, by which a changed artifact is recognised. Standard library only."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote, urlsplit

#: Files up to this size together are known by their content, larger ones by their sizes and times.
_HASHED_BYTES = 64 * 2**20
#: Seconds within which the storage of an artifact must answer.
_SECONDS = 20.0
#: Seconds by which the clocks of a training and of its storage may differ.
_CLOCK_SECONDS = 60.0
_LENGTH = 16


class _Stamp(NamedTuple):
    #: Empty where only others can read.
    digest: str
    #: Seconds since 1970.
    modified: float


def read_stamps(artifacts: Mapping[str, str]) -> dict[str, str]:
    """Return the stamp of each artifact by name, without those that cannot be read here. Never raises."""
    answers = call_all({name: partial(_read, uri) for name, uri in artifacts.items()}, time.monotonic() + _SECONDS)
    return {name: each.digest for name, each in answers.items() if isinstance(each, _Stamp) and each.digest}


def find_change(uri: str, stamp: str | None, finished_at: str | None) -> str | None:
    """Return why an artifact is not the one that a training left; None if it is, or is in no storage known here.

    Without a stamp, of an earlier release or of a program in an image, an artifact that was written after the end of
    its TrainJob has changed.

    Raises:
        OSError: Its storage does not answer, or refuses.
    """
    now = call_all({"": partial(_read, uri)}, time.monotonic() + _SECONDS)[""]
    if isinstance(now, Exception):
        raise OSError(str(now))
    if now is None:
        return f"{uri} is missing"
    if not now.digest or not (stamp or finished_at):
        return None
    # Python 3.10 does not read the Z.
    end = datetime.fromisoformat((finished_at or "1970-01-01").replace("Z", "+00:00")).timestamp()
    is_same = now.digest == stamp if stamp else now.modified <= end + _CLOCK_SECONDS
    return None if is_same else f"{uri} was written again after the TrainJob had ended"


def call_all(calls: Mapping[str, Callable[[], Any]], end: float) -> dict[str, Any]:
    """Return what functions return or raise until a time; TimeoutError for one that has not."""
    answers: dict[str, Any] = {}

    def call(name: str) -> None:
        try:
            answers[name] = calls[name]()
        except Exception as error:  # noqa: BLE001 -- of any client library: what cannot be read is unknown
            answers[name] = error if str(error) else RuntimeError(type(error).__name__)

    # Daemons: storage that does not answer must not hold the end of the process.
    threads = [threading.Thread(target=call, args=(name,), daemon=True) for name in calls]
    seconds = max(0.0, end - time.monotonic())
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return {name: answers.get(name, TimeoutError(f"its storage has not answered in {seconds:.0f} s")) for name in calls}


def list_files(path: Path) -> dict[str, str]:
    """Return the files of a folder by relative path, also behind links, each folder once; or the file itself."""
    if not path.is_dir():
        return {path.name: str(path)}
    found, visited = {}, {os.path.realpath(path)}
    for folder, folders, names in os.walk(path, followlinks=True, onerror=_raise):
        # A link may lead to a parent folder.
        real = {name: os.path.realpath(os.path.join(folder, name)) for name in sorted(folders)}
        folders[:] = [name for name in real if real[name] not in visited]
        visited.update(real.values())
        # As text, and nothing is computed for each file: there may be tens of thousands.
        relative, whole = os.path.relpath(folder, path), os.path.join(folder, "")
        prefix = "" if relative == "." else f"{relative}/"
        found.update({f"{prefix}{name}": f"{whole}{name}" for name in names})
    return dict(sorted(found.items()))


def _raise(error: OSError) -> NoReturn:
    raise error


def _read(uri: str) -> _Stamp | None:
    """Return the stamp of an artifact; None if it is missing."""
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        return _read_objects(parts.netloc, parts.path.lstrip("/"))
    path = Path(unquote(parts.path) if parts.scheme else uri)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost") or not path.is_absolute():
        return _Stamp("", 0.0)
    if not path.exists():
        return None
    files = {name: (Path(each), os.stat(each)) for name, each in list_files(path).items() if os.path.isfile(each)}
    is_small = sum(state.st_size for _, state in files.values()) <= _HASHED_BYTES
    known = [
        (name, state.st_size, hashlib.sha256(each.read_bytes()).hexdigest() if is_small else state.st_mtime_ns)
        for name, (each, state) in files.items()
    ]
    return _Stamp(_hash(known), max((state.st_mtime for _, state in files.values()), default=0.0))


def _read_objects(bucket: str, key: str) -> _Stamp | None:
    from .s3_client import Bucket  # It loads the modules of HTTP.

    storage = Bucket(bucket)
    single = storage.find(key)
    objects = [*([single] if single else []), *storage.list_objects(f"{key.rstrip('/')}/")]
    known = [(each.key[len(key) :], each.etag) for each in objects]
    return _Stamp(_hash(known), max(each.modified for each in objects)) if objects else None


def _hash(known: Any) -> str:
    return hashlib.sha256(repr(known).encode("utf-8", "surrogateescape")).hexdigest()[:_LENGTH]
