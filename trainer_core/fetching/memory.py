"""What a source held when it was last looked at: offline, that is what there is."""

from __future__ import annotations

import hashlib
import json
import os
from abc import abstractmethod
from pathlib import Path

from trainer_core.fetching.source import File, Snapshot, Source

__all__ = ["RememberedSource", "look"]


class RememberedSource(Source):
    """A source that may be used offline."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Everything that decides on what it would list."""

    @property
    @abstractmethod
    def is_offline(self) -> bool:
        """Whether somebody wants it to be used without the network."""


def look(source: Source, folder: Path) -> Snapshot:
    """Return what a source holds; offline, what it held when it was last looked at for this folder.

    Args:
        source: Any source; one that is not a `RememberedSource` is only looked at.
        folder: Where what is fetched lies; made where there is none.

    Raises:
        FetchError: As `Source.look` says.
    """
    if not isinstance(source, RememberedSource):
        return source.look()
    note = folder / f".{hashlib.sha256(source.key.encode()).hexdigest()[:32]}.look.json"
    known = _recalled(note) if source.is_offline else None
    if known is not None:
        return known
    snapshot = source.look()
    _write_down(note, snapshot)
    return snapshot


def _recalled(note: Path) -> Snapshot | None:
    try:
        data = json.loads(note.read_text(encoding="utf-8"))
        return Snapshot(data["identity"], tuple(File(*facts) for facts in data["files"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_down(note: Path, snapshot: Snapshot) -> None:
    note.parent.mkdir(parents=True, exist_ok=True)
    facts = [[file.path, file.size, file.tag] for file in snapshot.files]
    # Another process may look at the same moment: each writes a file of its own and puts it in place.
    staged = note.with_suffix(f".{os.getpid()}")
    staged.write_text(json.dumps({"identity": snapshot.identity, "files": facts}), encoding="utf-8")
    staged.replace(note)
