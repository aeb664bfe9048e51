"""The real CustomResourceDefinitions and stock runtimes, where they lie beside the checkout."""

from __future__ import annotations

import gzip
import os
from functools import cache
from pathlib import Path
from typing import Any

import yaml

__all__ = ["definitions", "folder", "stock_runtimes"]

_TRAINER = {
    "2.0": "older-trainer-crds/v2.0.1",
    "2.1": "older-trainer-crds/v2.1.0",
    "2.2": "older-trainer-crds/v2.2.1",
    "2.3": "trainer-v2.3.0/crds",
}
_OTHERS = ("jobset-v0.12.0", "training-operator-v1.9/crds")


def folder() -> Path:
    """Return where the files are, or would be: ``TRAINJOB_CRD_DIR``, else ``../shared/crds`` beside the checkout."""
    here = Path(__file__).resolve().parents[4] / "shared" / "crds"
    return Path(os.environ.get("TRAINJOB_CRD_DIR") or here)


def definitions(trainer: str) -> tuple[dict[str, Any], ...]:
    """Return the definitions of a release of Trainer, of JobSet and of what else is there; nothing without files.

    Raises:
        LookupError: No such release is known.
    """
    if trainer not in _TRAINER:
        raise LookupError(f"no Trainer {trainer}: there are {', '.join(_TRAINER)}")
    return _definitions(folder(), trainer)


@cache
def _definitions(root: Path, trainer: str) -> tuple[dict[str, Any], ...]:
    places = [root / place for place in (_TRAINER[trainer], *_OTHERS)]
    files = [path for place in places for path in sorted(place.glob("*.yaml*"))]
    return tuple(raw for raw in map(_read, files) if raw.get("kind") == "CustomResourceDefinition")


def stock_runtimes() -> list[dict[str, Any]]:
    """Return the runtimes that come with Trainer 2.3.0."""
    return [_read(path) for path in sorted((folder() / "trainer-v2.3.0" / "runtimes").glob("*.yaml"))]


def _read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(gzip.decompress(data) if path.suffix == ".gz" else data, Loader=loader)  # noqa: S506 -- a safe one
