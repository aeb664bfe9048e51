"""Where a training function finds its data and leaves its files."""

from __future__ import annotations

from pathlib import Path

from . import contract

__all__ = ["dataset_path", "model_path", "output_path"]


def dataset_path() -> Path:
    """Return the folder in which the initializer left the dataset."""
    return Path(contract.setting(contract.DATASET_PATH))


def model_path() -> Path:
    """Return the folder in which the initializer left the pre-trained model."""
    return Path(contract.setting(contract.MODEL_PATH))


def output_path() -> Path:
    """Return the folder for what the training leaves behind, and make sure that it exists.

    Raises:
        OSError: It cannot be created; better now than after hours of training.
    """
    path = Path(contract.setting(contract.OUTPUT_PATH))
    path.mkdir(parents=True, exist_ok=True)
    return path
