"""Lists the objects below a prefix of a bucket and downloads them with concurrent requests."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import obstore
from obstore.exceptions import BaseError

from trainer_core.fetch.parallel import run_parallel
from trainer_core.fetch.s3.credentials import Connection, connect
from trainer_core.fetch.s3.download import LARGE_FILE_SIZE, SCRATCH, WORKERS, ObjectDownloader
from trainer_core.fetch.s3.errors import convert_error
from trainer_core.fetch.settings import FetchSettings
from trainer_core.fetch.source import (
    FetchError,
    FetchProgress,
    Snapshot,
    Source,
    SourceFile,
    is_ignored,
    list_incomplete,
)

_URI = re.compile(r"s3://(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?")
_RETRIES = 8


def create_source(settings: FetchSettings) -> S3Source:
    return S3Source(settings)


class S3Source(Source):
    """The objects below a prefix, or a single object."""

    def __init__(self, settings: FetchSettings, retries: int = _RETRIES) -> None:
        match = _URI.fullmatch(settings.uri)
        if match is None:
            raise FetchError(f"{settings.uri} does not name a bucket; write s3://bucket/prefix")
        self._settings = settings
        self._bucket = match["bucket"]
        self._prefix = (match["prefix"] or "").strip("/")
        self._retries = retries

    def list_files(self) -> Snapshot:
        """List the objects below the prefix; if there is none, the prefix may be the key of an object."""
        uri, connection = f"s3://{self._bucket}/{self._prefix}", self._connection
        try:
            objects = [meta for page in obstore.list(connection.store, self._prefix or None) for meta in page]
            single = not objects and self._prefix
            # Not by HEAD, whose answer has no body: the code of a refusal is in it.
            objects = [obstore.get(connection.store, self._prefix).meta] if single else self._drop_markers(objects)
            if not objects:
                raise FileNotFoundError
        except FileNotFoundError:
            raise FetchError(f"{uri} has no objects; check bucket and prefix in storage_uri") from None
        except BaseError as error:
            raise convert_error(error, uri, connection.signer) from error
        root = self._prefix.rpartition("/")[0] if single else self._prefix
        files = tuple(self._build_files(objects, f"{root}/" if root else ""))
        if not files:
            raise FetchError(
                f"{uri}: none of its {len(objects)} objects is selected; check ignore_patterns and the prefix"
            )
        identity = f"s3://{self._bucket}/{root}\n{self._settings.endpoint or ''}"
        return Snapshot(identity, files, by_content=all(file.tag for file in files))

    def fetch_files(self, folder: Path, snapshot: Snapshot, progress: FetchProgress) -> None:
        """Download large files one after the other, in pieces; then the other files, several at a time."""
        root = snapshot.identity.partition("\n")[0].removeprefix(f"s3://{self._bucket}/")
        missing = list_incomplete(folder, snapshot.files)
        progress.advance(snapshot.size - sum(file.size for file in missing), len(snapshot.files) - len(missing))
        for parent in {(folder / file.path).parent for file in missing}:
            parent.mkdir(parents=True, exist_ok=True)
        downloader = ObjectDownloader(self._connection, self._bucket, folder, progress)
        keyed = [(f"{root}/{file.path}" if root else file.path, file) for file in missing]
        for key, file in keyed:
            if file.size > LARGE_FILE_SIZE:
                downloader.download_pieces(key, file)
        others = ((key, file) for key, file in keyed if file.size <= LARGE_FILE_SIZE)
        run_parallel(lambda item: downloader.download(*item), others, WORKERS)
        shutil.rmtree(folder / SCRATCH, ignore_errors=True)

    @cached_property
    def _connection(self) -> Connection:
        return connect(self._settings, self._bucket, self._retries)

    def _build_files(self, objects: Sequence[Any], root: str) -> Iterator[SourceFile]:
        """Yield the files among the objects."""
        for meta in objects:
            key = meta["path"]
            path = key.removeprefix(root)
            if not is_ignored(path, self._settings.ignore, key):
                yield SourceFile(path, meta["size"], (meta["e_tag"] or "").strip('"'))

    def _drop_markers(self, objects: Sequence[Any]) -> list[Any]:
        """Return the objects without the empty ones that consoles create as folders.

        obstore leaves out the slash at the end of their keys. So without the slash no object has the key.
        """
        empty = {meta["path"] for meta in objects if not meta["size"]}
        markers = empty & {str(parent) for meta in objects if empty for parent in PurePosixPath(meta["path"]).parents}
        markers |= empty & {meta["path"] for meta in objects if meta["size"]}

        def check(key: str) -> None:
            try:
                obstore.get(self._connection.store, key)
            except FileNotFoundError:
                markers.add(key)

        run_parallel(check, empty - markers, WORKERS)
        return list({meta["path"]: meta for meta in objects if meta["size"] or meta["path"] not in markers}.values())
