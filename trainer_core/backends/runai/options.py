"""RunaiSpec and RunaiMasterSpec: options for fields that only a Run:ai workload has, and what they set in a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator

from trainer_core.model.option import BaseOption, section
from trainer_core.model.request import Extension, TrainJobRequest

if TYPE_CHECKING:
    from trainer_core.backends.runai.workload import TrainingWorkloadSpec

#: Fields that another option or call sets.
_SET_ELSEWHERE = {
    "active": "use the option Suspend",
    "name": "use the option Name",
    "name_prefix": "use the option Name, or let the orchestrator name the job",
    "usage": "a template is not a job: create it with RunaiBackend.create_template",
}


@dataclass(init=False)
class RunaiSpec(BaseOption):
    """Set fields of the Run:ai workload. They take precedence over the rest of the request.

    Fields have Python's or Run:ai's names: ``RunaiSpec(gpu=0.5, node_pools=["a100", "default"])``, or as plain data
    ``{"RunaiSpec": {"gpu": 0.5, "nodePools": "a100 default"}}``. Of several such options the last one that sets a field
    wins; items of itemized fields are merged. Only the backend ``runai`` accepts this option.

    Args:
        spec: Fields as a `TrainingWorkloadSpec` or a dict.
        **fields: Fields of `TrainingWorkloadSpec`; upstream ``spec`` of a TrainingWorkload.

    Raises:
        ValueError: An unknown field, an invalid value, a field that another option sets, or the backend does not accept
            the option.

    Example:
        ```python
        client.train(trainer=trainer, options=[RunaiSpec(gpu=0.5, node_pools=["a100", "default"])])
        ```
    """

    spec: dict[str, Any]
    home_backend: ClassVar[str] = "RunaiBackend"
    _part: ClassVar[str] = "spec"

    def __init__(self, spec: TrainingWorkloadSpec | Mapping[str, Any] | None = None, **fields: Any) -> None:
        from trainer_core.backends.runai.workload import normalize_fields  # Imported on use: it takes 50 ms.

        self.spec = {**normalize_fields(spec or {}), **normalize_fields(fields)}
        for name, remedy in _SET_ELSEWHERE.items():
            if name in self.spec:
                raise ValueError(f"{type(self).__name__}: {name}: {remedy}")

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        part = section(section(section(section(job_spec, "spec"), "extensions"), "runai"), self._part)
        for name, value in self.spec.items():
            old = part.get(name)
            part[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value


@dataclass(init=False)
class RunaiMasterSpec(RunaiSpec):
    """Set fields of the master of a DistributedWorkload, with MPI those of its launcher.

    They override the fields of `RunaiSpec`.

    Args:
        spec: Fields as a `TrainingWorkloadSpec` or a dict.
        **fields: Fields of `TrainingWorkloadSpec`.

    Raises:
        ValueError: An unknown field, an invalid value, a field that another option sets, or the backend does not accept
            the option.

    Example:
        ```python
        client.train(trainer=trainer, options=[RunaiSpec(gpu=1), RunaiMasterSpec(cpu=2)])
        ```
    """

    _part: ClassVar[str] = "master"

    def __init__(self, spec: TrainingWorkloadSpec | Mapping[str, Any] | None = None, **fields: Any) -> None:
        super().__init__(spec, **fields)


class RunaiFields(Extension):
    """Fields that RunaiSpec and RunaiMasterSpec set: of the workload, and of a master, which override those."""

    option: ClassVar[str] = "RunaiSpec"
    backend: ClassVar[str] = "runai"

    spec: dict[str, Any] = Field(default_factory=dict)
    master: dict[str, Any] = Field(default_factory=dict)

    @field_validator("spec", "master")
    @classmethod
    def _validate_fields(cls, value: dict[str, Any]) -> dict[str, Any]:
        from trainer_core.backends.runai.workload import TrainingWorkloadSpec  # Imported on use: it takes 50 ms.

        return TrainingWorkloadSpec(**value).to_dict()

    @property
    def sets_memory(self) -> bool:
        """Whether the memory of a node is set here, and not by the trainer."""
        return not {"memory", "memory_limit"}.isdisjoint([*self.spec, *self.master])


def get_runai_fields(request: TrainJobRequest) -> RunaiFields:
    """Return what the options set; nothing without them."""
    found: RunaiFields = request.work.extensions.get("runai") or RunaiFields()
    return found
