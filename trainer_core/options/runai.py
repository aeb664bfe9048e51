"""RunaiSpec and RunaiMasterSpec: the options for what a Run:ai workload can be told and no other job can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trainer_core.options.base import BaseOption, section

if TYPE_CHECKING:
    from trainer_core.options.base import AnyTrainer
    from trainer_core.runai.spec import TrainingWorkloadSpec

__all__ = ["RunaiMasterSpec", "RunaiSpec"]

#: Fields that every request has words of its own for.
_ELSEWHERE = {
    "active": "use the option Suspend",
    "name": "use the option Name",
    "name_prefix": "use the option Name, or leave the naming to the orchestrator",
    "usage": "a template is no job: make it with RunaiBackend.create_template",
}


@dataclass(init=False)
class RunaiSpec(BaseOption):
    """Set fields of the Run:ai workload directly; they count over what the request says in its own words.

    Such as ``RunaiSpec(gpu=0.5, node_pools=["a100", "default"])``, or by Run:ai's names in plain data:
    ``{"RunaiSpec": {"gpu": 0.5, "nodePools": "a100 default"}}``. Of several such options the last one that sets a field
    counts; items of itemized fields add up.

    Args:
        spec: Fields as a `TrainingWorkloadSpec` or a dict.
        **fields: Fields of `TrainingWorkloadSpec`.

    Raises:
        ValueError: A field is not known or cannot be right, every request has another word for it, or the backend does
            not accept this option.
    """

    spec: dict[str, Any]
    _home: ClassVar[str] = "RunaiBackend"
    _part: ClassVar[str] = "spec"

    def __init__(self, spec: TrainingWorkloadSpec | Mapping[str, Any] | None = None, **fields: Any) -> None:
        from trainer_core.runai.spec import plain  # It takes 50 ms that only those who use it shall pay.

        self.spec = {**plain(spec or {}), **plain(fields)}
        for name, remedy in _ELSEWHERE.items():
            if name in self.spec:
                raise ValueError(f"{type(self).__name__}: {name}: {remedy}")

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        part = section(section(section(job_spec, "spec"), "runai"), self._part)
        for name, value in self.spec.items():
            before = part.get(name)
            part[name] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value


@dataclass(init=False)
class RunaiMasterSpec(RunaiSpec):
    """Set fields of the master of a DistributedWorkload (with MPI: of its launcher), over those of `RunaiSpec`.

    Args:
        spec: Fields as a `TrainingWorkloadSpec` or a dict.
        **fields: Fields of `TrainingWorkloadSpec`.

    Raises:
        ValueError: As for `RunaiSpec`.
    """

    _part: ClassVar[str] = "master"

    def __init__(self, spec: TrainingWorkloadSpec | Mapping[str, Any] | None = None, **fields: Any) -> None:
        super().__init__(spec, **fields)
