"""Folders of the digits dataset and of its promoted models, and the promotion of a model.

The KFP component `promote` and `trainjob promote` use the same registry, so all can share a folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import Asset

from trainer_core.tracking.model_registry import Candidate, FolderRegistry

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
    """Return what is recorded of the promoted model; empty if there is none."""
    return FolderRegistry(registry_folder()).read_entry()


def promote(result: Mapping[str, Any], version: str) -> dict[str, Any] | None:
    """Promote the model of a training result if it is more accurate than the promoted one.

    Args:
        result: Return value of the training function.
        version: Name of the new version, that of its TrainJob. Promoting the same version again has no effect.

    Returns:
        The entry of the current model, or None if the new model is not better.
    """
    metrics = {name: result[name] for name in ("accuracy", "loss", "epochs")}
    candidate = Candidate(version, result["artifacts"]["model"], "accuracy", result["accuracy"], metrics)
    promotion = FolderRegistry(registry_folder()).promote_candidate(candidate, model="")
    return latest() if promotion.promoted else None


def _home() -> Path:
    return Path(os.environ.get("TRAINJOB_HOME") or "~/.trainjob").expanduser().absolute()
