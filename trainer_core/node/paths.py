"""Folders of a training function: its data and its output."""

from __future__ import annotations

import os
from pathlib import Path

from . import env


def dataset_path() -> Path:
    """Return the folder with the dataset that the initializer fetched, or that ``TRAINJOB_DATASET_PATH`` names.

    Raises:
        FileNotFoundError: The variable is not set, and this process is no job, or one that another tool created without
            such a folder.

    Example:
        ```python
        from trainer_core import dataset_path

        rows = (dataset_path() / "train.csv").read_text().splitlines()
        ```
    """
    return _get_folder("dataset", env.DATASET_PATH)


def model_path() -> Path:
    """Return the folder with the pre-trained model that the initializer fetched, or that ``TRAINJOB_MODEL_PATH`` names.

    Raises:
        FileNotFoundError: The variable is not set, and this process is no job, or one that another tool created without
            such a folder.

    Example:
        ```python
        from trainer_core import model_path

        config = (model_path() / "config.json").read_text()
        ```
    """
    return _get_folder("model", env.MODEL_PATH)


def output_path() -> Path:
    """Return the folder for files that the training leaves, created if necessary: outside of a job ``./output``.

    Raises:
        OSError: The folder cannot be created.

    Example:
        ```python
        from trainer_core import output_path

        (output_path() / "model.txt").write_text("weights")
        ```
    """
    path = Path(env.setting(env.OUTPUT_PATH) or "output").absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


def _get_folder(what: str, name: str) -> Path:
    path = env.setting(name)
    # A TrainJob that another tool created may have no initializer, or its data elsewhere.
    is_certain = any(map(os.environ.get, (name, env.NAME, env.PAYLOAD)))
    if not path or not (is_certain or os.path.exists(path)):
        raise FileNotFoundError(
            f"{what}_path(): no initializer has fetched the {what} here; set {name} to a folder, such as "
            f"{name}=./{what} python train.py"
        )
    return Path(path)
