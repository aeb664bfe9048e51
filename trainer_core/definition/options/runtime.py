"""RuntimePatch: the option that changes a runtime for one TrainJob."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainer_core.model.option import BaseOption, section
from trainer_core.model.patches import (
    ContainerPatch as ContainerPatch,
    JobSetSpecPatch as JobSetSpecPatch,
    JobSetTemplatePatch as JobSetTemplatePatch,
    JobSpecPatch as JobSpecPatch,
    JobTemplatePatch as JobTemplatePatch,
    PodSpecPatch as PodSpecPatch,
    PodTemplatePatch as PodTemplatePatch,
    ReplicatedJobPatch as ReplicatedJobPatch,
    TrainingRuntimeSpecPatch as TrainingRuntimeSpecPatch,
    check_patch,
    merge_patches,
)
from trainer_core.model.request import PATCH_MANAGER


@dataclass
class RuntimePatch(BaseOption):
    """Change the runtime for this TrainJob only: pods, volumes, scheduling.

    Upstream field: ``spec.runtimePatches`` (Trainer 2.2 and later), ``spec.podTemplateOverrides`` (2.1),
    ``spec.podSpecOverrides`` (2.0). Several `RuntimePatch` options are merged; for equal fields the last one wins.

    Args:
        training_runtime_spec: The changes.

    Attributes:
        manager: Field manager of the patch; patches of other managers are not changed.

    Raises:
        ValueError: Not a patch, or the backend does not accept the option.

    Example:
        ```python
        node = ReplicatedJobPatch(
            "node",
            JobTemplatePatch(spec=JobSpecPatch(PodTemplatePatch(spec=PodSpecPatch(node_selector={"pool": "gpu"})))),
        )
        patch = TrainingRuntimeSpecPatch(JobSetTemplatePatch(spec=JobSetSpecPatch([node])))
        client.train(trainer=trainer, options=[RuntimePatch(patch)])
        ```
    """

    training_runtime_spec: TrainingRuntimeSpecPatch | None = None
    manager: str = field(default=PATCH_MANAGER, init=False)

    def __post_init__(self) -> None:
        check_patch("training_runtime_spec", self.training_runtime_spec, TrainingRuntimeSpecPatch)

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        patch: dict[str, Any] = {"manager": self.manager}
        if self.training_runtime_spec is not None:
            patch["trainingRuntimeSpec"] = self.training_runtime_spec.to_dict()
        patches = section(job_spec, "spec").setdefault("runtimePatches", [])
        # The server requires at most one patch per manager.
        for index, other in enumerate(patches):
            if other.get("manager") == self.manager:
                patches[index] = merge_patches(other, patch)
                return
        patches.append(patch)
