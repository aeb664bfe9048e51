"""Folders of a training function: its data and its output."""

from __future__ import annotations

from pathlib import Path

from . import env


def dataset_path() -> Path:
    """Return the folder with the dataset that the initializer fetched.

    Example:
        ```python
        from trainer_core import dataset_path

        rows = (dataset_path() / "train.csv").read_text().splitlines()
        ```
    """
    return Path(env.setting(env.DATASET_PATH))


def model_path() -> Path:
    """Return the folder with the pre-trained model that the initializer fetched.

    Example:
        ```python
        from trainer_core import model_path

        config = (model_path() / "config.json").read_text()
        ```
    """
    return Path(env.setting(env.MODEL_PATH))


def output_path() -> Path:
    """Return the folder for files that the training leaves, created if necessary.

    Raises:
        OSError: The folder cannot be created.

    Example:
        ```python
        from trainer_core import output_path

        (output_path() / "model.txt").write_text("weights")
        ```
    """
    path = Path(env.setting(env.OUTPUT_PATH))
    path.mkdir(parents=True, exist_ok=True)
    return path
