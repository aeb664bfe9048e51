"""Stores the last listing of a source, so that files fetched before can be used offline."""

from __future__ import annotations

import hashlib
import json
import os
from abc import abstractmethod
from pathlib import Path

from trainer_core.fetch.source import Snapshot, Source, SourceFile


class CacheableSource(Source):
    """A source whose listing is stored for use offline."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Key of the listing: everything that selects files, such as repository, revision and patterns."""

    @property
    @abstractmethod
    def is_offline(self) -> bool:
        """Whether the user has disabled access to the network."""


def list_source(source: Source, folder: Path) -> Snapshot:
    """Return the files of a source; offline, the listing that was stored in the folder by the last call."""
    if not isinstance(source, CacheableSource):
        return source.list_files()
    # The name of the file is part of the cache's format: caches outlive upgrades.
    path = folder / f".{hashlib.sha256(source.key.encode()).hexdigest()[:32]}.look.json"
    stored = _read_listing(path) if source.is_offline else None
    if stored is not None:
        return stored
    snapshot = source.list_files()
    _write_listing(path, snapshot)
    return snapshot


def _read_listing(path: Path) -> Snapshot | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Snapshot(data["identity"], tuple(SourceFile(*fields) for fields in data["files"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_listing(path: Path, snapshot: Snapshot) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [[file.path, file.size, file.tag] for file in snapshot.files]
    # Other processes may write the same listing: each process writes a temporary file and renames it.
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps({"identity": snapshot.identity, "files": files}), encoding="utf-8")
    temporary.replace(path)
