"""Folders of the digits dataset and of its promoted models, and the promotion of a model.

    <registry>/versions/<version>/    each promoted model
    <registry>/current.json           current model: version, metric, path; replaced atomically
    <registry>/lock                   held during comparison and promotion

The KFP component `promote` uses the same files, so both can share a registry.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow.sdk import Asset

__all__ = ["DATASET", "MODEL", "dataset_folder", "latest", "promote", "registry_folder"]

DATASET = Asset(name="digits-dataset", uri="trainjob://digits/dataset")
MODEL = Asset(name="digits-model", uri="trainjob://digits/model")


def dataset_folder() -> Path:
    """Return the folder of the dataset: ``DIGITS_DATASET``, else a folder in the TrainJob state folder."""
    return Path(os.environ.get("DIGITS_DATASET") or _home() / "digits" / "dataset")


def registry_folder() -> Path:
    """Return the folder of promoted models: ``DIGITS_REGISTRY``, else a folder in the TrainJob state folder."""
    return Path(os.environ.get("DIGITS_REGISTRY") or _home() / "digits" / "registry")


def latest() -> dict[str, Any]:
    """Return the entry of the promoted model; empty if there is none."""
    try:
        return dict(json.loads((registry_folder() / "current.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}


def promote(result: Mapping[str, Any], version: str) -> dict[str, Any] | None:
    """Promote the model of a training result if it is more accurate than the promoted one.

    Args:
        result: Return value of the training function.
        version: Name of the new version, that of its TrainJob. Promoting the same version again has no effect.

    Returns:
        The entry of the current model, or None if the new model is not better.
    """
    folder = registry_folder()
    with _lock(folder):
        current = latest()
        if current.get("version") == version:
            return current
        if current and result["accuracy"] <= current["metric"]:
            return None
        source = Path(unquote(urlsplit(result["artifacts"]["model"]).path))
        path = Path("versions", version, source.name)
        with _replace_atomically(folder / path) as temporary:
            shutil.copyfile(source, temporary)
        metrics = {name: result[name] for name in ("accuracy", "loss", "epochs")}
        entry = {"version": version, "metric": result["accuracy"], "path": str(path), "metrics": metrics}
        with _replace_atomically(folder / "current.json") as temporary:
            temporary.write_text(json.dumps(entry), encoding="utf-8")
    return entry


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _replace_atomically(target: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces the target when the block succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _home() -> Path:
    return Path(os.environ.get("TRAINJOB_HOME") or "~/.trainjob").expanduser().absolute()
