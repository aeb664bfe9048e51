"""Where the digits and their models lie, and which model is the promoted one.

    <registry>/versions/<version>/    each promoted model
    <registry>/current.json           which of them is in force: version, metric, path; replaced atomically
    <registry>/lock                   held while one is compared and promoted

The same files as those of the KFP component `promote`, so that both may share one registry.
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
    """Return the folder of the dataset: ``DIGITS_DATASET``, else one beside the TrainJobs."""
    return Path(os.environ.get("DIGITS_DATASET") or _home() / "digits" / "dataset")


def registry_folder() -> Path:
    """Return the folder of promoted models: ``DIGITS_REGISTRY``, else one beside the TrainJobs."""
    return Path(os.environ.get("DIGITS_REGISTRY") or _home() / "digits" / "registry")


def latest() -> dict[str, Any]:
    """Return what is promoted now; empty when nothing is."""
    try:
        return dict(json.loads((registry_folder() / "current.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}


def promote(result: Mapping[str, Any], version: str) -> dict[str, Any] | None:
    """Promote the model of a training result if it is more accurate than the promoted one.

    Args:
        result: What the training function returned.
        version: Name of the new version, that of its TrainJob; promoting it again changes nothing.

    Returns:
        The entry that is in force, or None if the promoted model is another and stays.
    """
    folder = registry_folder()
    with _locked(folder):
        before = latest()
        if before.get("version") == version:
            return before
        if before and result["accuracy"] <= before["metric"]:
            return None
        source = Path(unquote(urlsplit(result["artifacts"]["model"]).path))
        path = Path("versions", version, source.name)
        with _replacing(folder / path) as temporary:
            shutil.copyfile(source, temporary)
        metrics = {name: result[name] for name in ("accuracy", "loss", "epochs")}
        entry = {"version": version, "metric": result["accuracy"], "path": str(path), "metrics": metrics}
        with _replacing(folder / "current.json") as temporary:
            temporary.write_text(json.dumps(entry), encoding="utf-8")
    return entry


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Give a file to write, which then takes the target's place: whole or not at all."""
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
