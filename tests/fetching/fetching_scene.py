"""What the tests of fetching say again and again."""

from __future__ import annotations

from pathlib import Path

#: Keys that are no secret, to see that they do not leak.
KEYS = {"access_key_id": "AKIAMADEUP", "secret_access_key": "a-secret-key"}


def contents(folder: Path) -> dict[str, bytes]:
    """Bytes by path of what lies in a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def whole(cache: Path) -> list[Path]:
    """What is whole already of what is being fetched."""
    return [path for path in cache.glob(".*.part/*") if path.is_file() and not path.stat().st_mode & 0o222]


def entries(cache: Path) -> list[Path]:
    """What a cache holds for its readers."""
    return [path for path in cache.glob("*") if not path.name.startswith(".")]
