"""RunaiFields: the section `runai` of a request. Does not import the model of the workload unless fields are set."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator


class RunaiFields(BaseModel):
    """Fields that RunaiSpec and RunaiMasterSpec set: of the workload, and of a master, which override those."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    spec: dict[str, Any] = Field(default_factory=dict)
    master: dict[str, Any] = Field(default_factory=dict)

    @field_validator("spec", "master")
    @classmethod
    def _validate_fields(cls, value: dict[str, Any]) -> dict[str, Any]:
        from trainer_core.model.backend_fields.runai_workload import (
            TrainingWorkloadSpec,  # Loading the model takes 50 ms.
        )

        return TrainingWorkloadSpec(**value).to_dict()
