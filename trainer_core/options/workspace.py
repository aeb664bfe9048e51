"""Workspace: the option that says where `initialize` leaves what it fetched."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trainer_core import checks, resources
from trainer_core.options.base import BaseOption, section
from trainer_core.request import ACCESS_MODES

if TYPE_CHECKING:
    from trainer_core.options.base import AnyTrainer

__all__ = ["Workspace"]


@dataclass
class Workspace(BaseOption):
    """Say into which volume claim `initialize` fetches. Later jobs mount it as ``pvc://<claim>/dataset`` or ``/model``.

    One that is there is used as it is; one that is not is made, and stays when the job is deleted.

    Args:
        claim: Name of the PersistentVolumeClaim; None for the job's name.
        size: How much a new one holds, as a Kubernetes quantity.
        storage_class: What provides a new one; None for the cluster's default.
        access_mode: Who can mount a new one at a time: ``ReadWriteOnce`` (one machine), ``ReadWriteMany`` or
            ``ReadWriteOncePod``.

    Raises:
        ValueError: A value cannot be right, or the backend does not accept it.
    """

    claim: str | None = None
    size: str = "10Gi"
    storage_class: str | None = None
    access_mode: str = "ReadWriteOnce"

    def __post_init__(self) -> None:
        for name in ("claim", "storage_class"):
            if getattr(self, name) is not None:
                checks.check_object_name(f"Workspace {name}", getattr(self, name))
        if not checks.is_placeholder(self.size) and resources.parse_quantity(self.size) <= 0:
            raise ValueError(f"Workspace size must be more than nothing, got {self.size!r}")
        if not checks.is_placeholder(self.access_mode):
            checks.check_one_of("Workspace access_mode", self.access_mode, ACCESS_MODES)

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        section(job_spec, "spec")["workspace"] = given
