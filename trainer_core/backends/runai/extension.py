"""RunaiFields: what the options `RunaiSpec` and `RunaiMasterSpec` set in a request."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, field_validator

from trainer_core.backends.runai.workload import TrainingWorkloadSpec
from trainer_core.model.request import Extension, TrainJobRequest


class RunaiFields(Extension):
    """Fields that RunaiSpec and RunaiMasterSpec set: of the workload, and of a master, which override those."""

    option: ClassVar[str] = "RunaiSpec"
    backend: ClassVar[str] = "runai"

    spec: dict[str, Any] = Field(default_factory=dict)
    master: dict[str, Any] = Field(default_factory=dict)

    @field_validator("spec", "master")
    @classmethod
    def _validate_fields(cls, value: dict[str, Any]) -> dict[str, Any]:
        return TrainingWorkloadSpec(**value).to_dict()

    @property
    def sets_memory(self) -> bool:
        """Whether the memory of a node is set here, and not by the trainer."""
        return not {"memory", "memory_limit"}.isdisjoint([*self.spec, *self.master])


def get_runai_fields(request: TrainJobRequest) -> RunaiFields:
    """Return what the options set; nothing without them."""
    found: RunaiFields = request.work.extensions.get("runai") or RunaiFields()
    return found
