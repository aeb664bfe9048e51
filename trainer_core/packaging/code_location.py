"""Where the files of a project travel: in the arguments of the job, or as an object at a place that the user names.

An object has the digest of the files as its name, so that equal files are stored once, and is complete as soon as it is
visible.
"""

from __future__ import annotations

import base64
import hashlib
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from trainer_core.base.errors import BackendUnavailableError, UnsupportedError
from trainer_core.base.text import format_size, shorten
from trainer_core.node import files
from trainer_core.node.project import ProjectError, decompress
from trainer_core.packaging.project import describe_size, read_files

# The supervisor of a local job removes old files with this module, and does without pydantic.
if TYPE_CHECKING:
    from trainer_core.model.request import Project, TrainJobRequest

#: Characters of packed files in arguments. With the function and the programs of the node they stay below the 1,000,000
#: characters of a container's arguments.
_MAX_ARCHIVE = 900_000
#: The same where there is a place: two pod templates with so many fit into a manifest.
_MAX_ARCHIVE_BESIDE_PLACE = 400_000
_SUFFIX = ".json.zlib"
#: Seconds without use after which an object that no job refers to is removed from a default folder.
_UNUSED_SECONDS = 86_400.0
#: Longest part of a place in a message.
_MAX_PLACE = 100
_REASONS = {
    "pvc": "it is reached by the nodes only, and the submitting process has to write into it",
    "file": "the nodes do not reach a folder of the submitting machine",
}


def resolve(request: TrainJobRequest, default: str | None, schemes: tuple[str, ...] = ()) -> TrainJobRequest:
    """Return a request in which files too large for the arguments have the URI of an object, which `store` writes."""
    project, trainer = request.project, request.work.trainer
    if project is None or trainer is None or project.uri is not None:
        return request
    place = trainer.code_uri or default
    if place is None:
        if len(project.archive) > _MAX_ARCHIVE:
            sizes = {path: len(data) for path, data in read_files(project.model_dump()).items()}
            raise UnsupportedError(
                f"code: {describe_size(sizes)}, {format_size(len(project.archive))} compressed; a job carries "
                f"{format_size(_MAX_ARCHIVE)}: give code_uri='s3://<bucket>/<path>', set code_uri for the backend, or "
                "name files in .trainjobignore"
            )
        return request
    check_scheme(place, schemes)
    if len(project.archive) <= _MAX_ARCHIVE_BESIDE_PLACE:
        return request
    return request.with_project(uri=_build_uri(place, project))


def store(request: TrainJobRequest) -> None:
    """Write the files of a resolved request to their object unless it is intact."""
    project = request.project
    if project is not None and project.uri is not None and project.archive:
        _write_object(project, project.uri)


def remove_stored(request: TrainJobRequest) -> TrainJobRequest:
    """Return a resolved request without the files that `store` writes."""
    has_object = request.project is not None and request.project.uri is not None
    return request.with_project(archive="") if has_object else request


def store_project(project: Project, place: str) -> Project:
    """Write a project's files to an object at a place unless it is intact; return the project without the files."""
    uri = _build_uri(place, project)
    _write_object(project, uri)
    return project.model_copy(update={"archive": "", "uri": uri})


def _build_uri(place: str, project: Project) -> str:
    return f"{place.rstrip('/')}/{project.digest}{_SUFFIX}"


def _write_object(project: Project, uri: str) -> None:
    parts, data = urlsplit(uri), base64.b64decode(project.archive)
    try:
        if parts.scheme == "file":
            _write_file(Path(unquote(parts.path)), data, project.digest)
        else:
            _upload(parts.netloc, parts.path.lstrip("/"), data, project.digest)
    except OSError as error:
        place = shorten(uri.removesuffix(f"{project.digest}{_SUFFIX}"), _MAX_PLACE)
        # The text of an error of the file system repeats the path.
        reason = error.strerror or str(error)
        raise BackendUnavailableError(
            f"code: the files cannot be written to {place}: {reason}; correct this or give another code_uri; no job "
            "was created"
        ) from error


def fetch(uri: str, digest: str) -> bytes:
    """Return an object with the compressed files of a project; raise ProjectError if its content has another digest."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        data = Path(unquote(parts.path)).read_bytes()
    else:
        from trainer_core.node.s3_client import Bucket  # It loads the modules of HTTP.

        data = Bucket(parts.netloc).get(parts.path.lstrip("/")) or b""
    decompress(data, digest)
    return data


def remove_unused(folder: Path, list_used: Callable[[], Collection[str | None]]) -> None:
    """Remove the objects in a folder that no job refers to and that were not used for a day, and half-written ones."""
    old = []
    for path in folder.glob("*"):
        with suppress(FileNotFoundError):  # Another process has removed it.
            if time.time() - path.stat().st_mtime > _UNUSED_SECONDS:
                old.append(path)
    used = list_used() if old else ()
    for path in old:
        if path.as_uri() not in used:
            path.unlink(missing_ok=True)


def try_bucket(uri: str) -> str | None:
    """Write a small object at a place in a bucket, as `store` does, and delete it."""
    from trainer_core.node.s3_client import Bucket  # It loads the modules of HTTP.

    parts = urlsplit(uri)
    key = f"{parts.path.strip('/')}/.trainjob-doctor-{uuid.uuid4().hex}".lstrip("/")
    _upload(parts.netloc, key, b"0")
    try:
        Bucket(parts.netloc).delete([key])
    except OSError:
        return f"s3://{parts.netloc}/{key}"
    return None


def check_scheme(place: str, schemes: tuple[str, ...]) -> None:
    """Check that a backend supports a place."""
    scheme = urlsplit(place).scheme
    if scheme not in (*schemes, "s3"):
        supported = " or ".join(f"{each}://" for each in (*schemes, "s3"))
        raise UnsupportedError(
            f"code_uri: {scheme}:// is not supported on this backend: {_REASONS[scheme]}; use {supported}"
        )


def _is_intact(data: bytes, digest: str) -> bool:
    try:
        decompress(data, digest)
    except ProjectError:
        return False
    return True


def _write_file(path: Path, data: bytes, digest: str) -> None:
    try:
        is_intact = path.is_file() and _is_intact(path.read_bytes(), digest)
    except PermissionError:  # It belongs to another user.
        return
    if is_intact:
        with suppress(OSError):  # It may belong to another user.
            path.touch()  # The time of its last use, by which unused ones are removed.
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, data)
    # As a copy of the project would be: readable for everyone who can enter the folder.
    path.chmod(0o644)


def _upload(name: str, key: str, data: bytes, digest: str = "") -> None:
    from trainer_core.node.s3_client import Bucket, S3Error  # It loads the modules of HTTP.

    bucket = Bucket(name)
    try:
        found = bucket.find(key)
        etag = found.etag if found else None
        # Written by another version of zlib, or encrypted, it has another ETag and is read.
        is_equal = etag == hashlib.md5(data, usedforsecurity=False).hexdigest()
        if is_equal or (etag is not None and _is_intact(bucket.get(key) or b"", digest)):
            return
    except S3Error as error:
        # Without the permission to read, S3 does not answer whether it exists. Objects of one key have one content.
        if error.status != 403:
            raise
        etag = ""
    if etag is not None:
        bucket.put(key, data)
        return
    try:
        bucket.create(key, data)
    except S3Error as error:
        # Another process has written it meanwhile, with another version of zlib.
        if error.status != 412:
            raise
