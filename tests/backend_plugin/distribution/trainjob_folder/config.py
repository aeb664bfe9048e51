"""The configuration, which the entry point names. It loads nothing of the backend."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from trainer_core.model.config import BackendConfig


class FolderBackendConfig(BackendConfig):
    """Run TrainJobs as processes of the submitting one, and keep them in a folder."""

    backend: ClassVar[str] = "folder"
    implementation: ClassVar[str] = "trainjob_folder.backend:FolderBackend"
    namespace_setting: ClassVar[str] = "folder"
    connection_settings: ClassVar[frozenset[str]] = frozenset({"folder"})

    folder: Path = Path("~/trainjob-folder")
