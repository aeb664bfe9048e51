"""Keys and file helpers for the tests of fetch."""

from __future__ import annotations

from pathlib import Path

#: Made-up keys; tests check that they do not appear in output.
KEYS = {"access_key_id": "AKIAMADEUP", "secret_access_key": "a-secret-key"}


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def list_complete_files(cache: Path) -> list[Path]:
    """Return the complete files of unfinished fetches."""
    return [path for path in cache.glob(".*.part/*") if path.is_file() and not path.stat().st_mode & 0o222]


def list_entries(cache: Path) -> list[Path]:
    """Return the folders that a cache offers to jobs."""
    return [path for path in cache.glob("*") if not path.name.startswith(".")]
