"""What a request says of a Run:ai workload: fields that no other job has. Quick to load."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = ["RunaiFields"]


class RunaiFields(BaseModel):
    """Fields of a Run:ai workload, by their names in `TrainingWorkloadSpec`.

    Attributes:
        spec: Of the workload; of several nodes, of all of them.
        master: Of the master of several nodes, over those of all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: dict[str, Any] = Field(default_factory=dict)
    master: dict[str, Any] = Field(default_factory=dict)

    @field_validator("spec", "master")
    @classmethod
    def _they_are_fields(cls, value: dict[str, Any]) -> dict[str, Any]:
        from trainer_core.runai.spec import TrainingWorkloadSpec  # Only who names such fields needs the model.

        return TrainingWorkloadSpec(**value).to_dict()
