"""A prefix of a bucket: listed, then fetched by many requests at once, each object checked against its etag."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import obstore
from obstore.exceptions import BaseError

from trainer_core.fetching import parallel
from trainer_core.fetching.s3 import errors
from trainer_core.fetching.s3.access import Access, connect
from trainer_core.fetching.s3.download import LARGE, SCRATCH, WORKERS, Download
from trainer_core.fetching.settings import Settings
from trainer_core.fetching.source import FetchError, File, Report, Snapshot, Source, is_ignored, remaining

__all__ = ["S3Source", "source"]

_URI = re.compile(r"s3://(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?")
_RETRIES = 8


def source(settings: Settings) -> S3Source:
    """Return the source that an ``s3://`` URI names.

    Raises:
        FetchError: It names no bucket.
    """
    return S3Source(settings)


class S3Source(Source):
    """The objects below a prefix, or a single one.

    Args:
        settings: URI, ignored patterns, endpoint, region, credentials.
        retries: How often to repeat a request that failed for reasons that may pass.
    """

    def __init__(self, settings: Settings, retries: int = _RETRIES) -> None:
        match = _URI.fullmatch(settings.uri)
        if match is None:
            raise FetchError(f"{settings.uri} names no bucket; write s3://bucket/prefix")
        self._settings = settings
        self._bucket = match["bucket"]
        self._prefix = (match["prefix"] or "").strip("/")
        self._retries = retries

    def look(self) -> Snapshot:
        """List the objects; where there is none below the prefix, it may be an object itself."""
        place, access = f"s3://{self._bucket}/{self._prefix}", self._access
        try:
            found = [meta for page in obstore.list(access.store, self._prefix or None) for meta in page]
            single = not found and self._prefix
            if single:
                found = [obstore.head(access.store, self._prefix)]
        except FileNotFoundError:
            raise FetchError(f"{place}: there is nothing; check bucket and prefix in storage_uri") from None
        except BaseError as error:
            raise errors.explained(error, place, access.signer) from error
        root = self._prefix.rpartition("/")[0] if single else self._prefix
        files = tuple(self._wanted(found, f"{root}/" if root else ""))
        if not files:
            raise FetchError(f"{place}: it is empty, or ignore_patterns leave nothing of its {len(found)} objects")
        return Snapshot(f"s3://{self._bucket}/{root}\n{self._settings.endpoint or ''}", files)

    def fill(self, folder: Path, snapshot: Snapshot, report: Report) -> None:
        """Fetch large files one after the other, by pieces; then the others, many at once."""
        root = snapshot.identity.partition("\n")[0].removeprefix(f"s3://{self._bucket}/")
        missing = remaining(folder, snapshot.files)
        report.advance(snapshot.size - sum(file.size for file in missing), len(snapshot.files) - len(missing))
        for parent in {(folder / file.path).parent for file in missing}:
            parent.mkdir(parents=True, exist_ok=True)
        download = Download(self._access, self._bucket, folder, report)
        keyed = [(f"{root}/{file.path}" if root else file.path, file) for file in missing]
        for key, file in keyed:
            if file.size > LARGE:
                download.in_pieces(key, file)
        others = ((key, file) for key, file in keyed if file.size <= LARGE)
        parallel.each(lambda both: download.whole(*both), others, WORKERS)
        shutil.rmtree(folder / SCRATCH, ignore_errors=True)

    @cached_property
    def _access(self) -> Access:
        return connect(self._settings, self._bucket, self._retries)

    def _wanted(self, found: Sequence[Any], root: str) -> Iterator[File]:
        """The files among the objects: without those that only stand for a folder, as consoles make them."""
        empty = {meta["path"] for meta in found if not meta["size"]}
        ups = (PurePosixPath(meta["path"]).parents for meta in found if empty)
        folders = empty & {str(up) for parents in ups for up in parents}
        for meta in found:
            key = meta["path"]
            path = key.removeprefix(root)
            if key not in folders and not is_ignored(path, self._settings.ignore, key):
                yield File(path, meta["size"], (meta["e_tag"] or "").strip('"'))
