"""An option of the backend: what it sets in a request, and the model that checks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from trainer_core.model.option import BaseOption, section
from trainer_core.model.request import Extension


class FolderFields(Extension):
    """What `FolderSpec` sets in a request."""

    option: ClassVar[str] = "FolderSpec"
    backend: ClassVar[str] = "folder"

    nice: int = Field(default=0, ge=0, le=19)


@dataclass
class FolderSpec(BaseOption):
    """Run the process with a lower priority."""

    home_backend: ClassVar[str] = "FolderBackend"

    nice: int = 0

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        section(section(job_spec, "spec"), "extensions")["folder"] = {"nice": self.nice}
