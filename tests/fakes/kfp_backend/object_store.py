"""The object store: buckets are folders. Uploads and downloads follow KFP's `objectstore` package."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_BUCKET = re.compile(r"(^[a-z][a-z0-9]+:///?)([^/?]+)(/[^?]*)?(\?.+)?$")
_SCHEMES = ("gs://", "s3://", "minio://", "mem://")
_FOLDERS = {"gs://": "/gcs/", "minio://": "/minio/", "s3://": "/s3/"}


class ObjectStoreError(Exception):
    """A URI or a file cannot be used."""


@dataclass(frozen=True)
class BucketConfig:
    """A bucket, and the prefix that all keys have."""

    scheme: str
    name: str
    #: Empty, or ending in ``/``.
    prefix: str = ""

    @classmethod
    def parse(cls, uri: str) -> BucketConfig:
        found = _BUCKET.match(uri)
        if not found:
            raise ObjectStoreError(f'parse bucket config failed: unrecognized pipeline root format: "{uri}"')
        scheme, name, path, _ = found.groups()
        if scheme not in _SCHEMES:
            raise ObjectStoreError(f'parse bucket config failed: unsupported Cloud bucket: "{uri}"')
        prefix = (path or "").removeprefix("/")
        return cls(scheme, name, prefix if not prefix or prefix.endswith("/") else f"{prefix}/")

    @classmethod
    def parse_artifact(cls, uri: str) -> BucketConfig:
        """Read the bucket of an artifact that is not below the pipeline root; it has no prefix."""
        config = cls.parse(uri)
        return cls(config.scheme, config.name)

    @property
    def prefixed_bucket(self) -> str:
        """The URI that the URI of each artifact starts with."""
        return self.scheme + str(PurePosixPath(self.name, self.prefix))

    def key(self, uri: str) -> str:
        """Return the key of an artifact, below the prefix."""
        if not uri.startswith(self.prefixed_bucket):
            raise ObjectStoreError(f'URI "{uri}" does not have expected bucket prefix "{self.prefixed_bucket}"')
        key = uri.removeprefix(self.prefixed_bucket).lstrip("/")
        if not key:
            raise ObjectStoreError(f'URI "{uri}" has empty key given prefixed bucket "{self.prefixed_bucket}"')
        return key


class ObjectStore:
    """All buckets, each a folder.

    Args:
        folder: Holds ``<scheme>/<bucket>/<key>``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, uri: str) -> Path:
        """Return the file or folder of an object's URI."""
        scheme, _, rest = uri.partition("://")
        return self._folder / scheme / rest

    def upload(self, source: Path, config: BucketConfig, key: str, follow: Callable[[Path], Path]) -> None:
        """Upload a file, or what is in a folder (UploadBlob): empty folders are lost, and so are modes.

        Args:
            source: Where it is on this machine.
            config: Bucket and prefix.
            key: Below the prefix.
            follow: Returns what a link in a container leads to.

        Raises:
            FileNotFoundError: There is no such file, or a link in the folder is broken; what came before is uploaded.
            IsADirectoryError: A link in the folder leads to a folder.
        """
        source = follow(source)
        source.stat()
        if not source.is_dir():
            self._upload_file(source, config, key)
            return
        for entry in sorted(source.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                self.upload(entry, config, f"{key}/{entry.name}", follow)
            else:
                self._upload_file(follow(entry), config, f"{key}/{entry.name}")

    def download(self, config: BucketConfig, key: str, target: Path) -> None:
        """Download an object, or all below a key (DownloadBlob); where there is none, nothing happens."""
        source = self.path(config.prefixed_bucket) / key
        files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
        for file in files:
            local = target / file.relative_to(source)
            local.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, local)

    def _upload_file(self, source: Path, config: BucketConfig, key: str) -> None:
        with source.open("rb") as stream:
            target = self.path(config.prefixed_bucket) / key
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as written:
                shutil.copyfileobj(stream, written)


def local_path(uri: str) -> str:
    """Return where the launcher keeps the content of a URI in the step's container (LocalPathForURI)."""
    for scheme, folder in _FOLDERS.items():
        if uri.startswith(scheme):
            return folder + uri.removeprefix(scheme)
    if uri.startswith("oci://"):
        return f"/oci/{uri.removeprefix('oci://').replace('/', '_')}/models"
    raise ObjectStoreError(f"failed to generate local path for URI {uri}: unsupported storage scheme")
