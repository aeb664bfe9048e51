"""Workspace: the option for the volume claim into which `initialize` fetches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trainer_core.base import resources, validation
from trainer_core.base.secrets import redact
from trainer_core.model.option import BaseOption, section
from trainer_core.model.request import ACCESS_MODES


@dataclass
class Workspace(BaseOption):
    """Set the volume claim into which `initialize` fetches.

    Later jobs mount it as ``pvc://<claim>/dataset`` or ``pvc://<claim>/model``. An existing claim is used unchanged. A
    missing claim is created, and is kept when the job is deleted.

    Args:
        claim: Name of the PersistentVolumeClaim. The default is the job's name.
        size: Size of a new claim, as a Kubernetes quantity (``spec.resources.requests.storage``).
        storage_class: Storage class of a new claim. The default is the cluster's default class.
        access_mode: Access mode of a new claim: ``ReadWriteOnce`` (one node), ``ReadWriteMany`` or
            ``ReadWriteOncePod``.

    Raises:
        ValueError: An invalid value, or the backend does not accept the option.

    Example:
        ```python
        client.initialize(initializer, options=[Workspace(claim="digits", size="20Gi")])
        ```
    """

    claim: str | None = None
    size: str = "10Gi"
    storage_class: str | None = None
    access_mode: str = "ReadWriteOnce"

    def __post_init__(self) -> None:
        for name in ("claim", "storage_class"):
            if getattr(self, name) is not None:
                validation.check_object_name(f"Workspace {name}", getattr(self, name))
        if not validation.is_placeholder(self.size) and resources.parse_quantity(self.size) <= 0:
            raise ValueError(f"Workspace size must be greater than 0, got {redact(self.size)}")
        if not validation.is_placeholder(self.access_mode):
            validation.check_one_of("Workspace access_mode", self.access_mode, ACCESS_MODES)

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        settings = {name: value for name, value in asdict(self).items() if value is not None}
        section(job_spec, "spec")["workspace"] = settings
