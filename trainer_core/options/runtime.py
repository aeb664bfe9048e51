"""RuntimePatch: the option that changes a runtime for one job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainer_core.options.base import BaseOption, section
from trainer_core.options.patches import TrainingRuntimeSpecPatch, check_patch, merged

if TYPE_CHECKING:
    from trainer_core.options.base import AnyTrainer

__all__ = ["RuntimePatch"]


@dataclass
class RuntimePatch(BaseOption):
    """Change the runtime for this job alone: pods, volumes, placement.

    Several of them become one; where they disagree, the last one counts.

    Args:
        training_runtime_spec: What to change.

    Attributes:
        manager: Who patches; other managers' patches are left alone.

    Raises:
        ValueError: Not a patch, or the backend does not accept it.
    """

    training_runtime_spec: TrainingRuntimeSpecPatch | None = None
    manager: str = field(default="trainer.kubeflow.org/kubeflow-sdk", init=False)

    def __post_init__(self) -> None:
        check_patch("training_runtime_spec", self.training_runtime_spec, TrainingRuntimeSpecPatch)

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        patch: dict[str, Any] = {"manager": self.manager}
        if self.training_runtime_spec is not None:
            patch["trainingRuntimeSpec"] = self.training_runtime_spec.to_dict()
        patches = section(job_spec, "spec").setdefault("runtimePatches", [])
        # The server keys patches by manager and refuses two of one.
        for index, other in enumerate(patches):
            if other.get("manager") == self.manager:
                patches[index] = merged(other, patch)
                return
        patches.append(patch)
