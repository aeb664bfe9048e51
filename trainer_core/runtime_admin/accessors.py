"""Read access to the parts of a runtime manifest that may be incomplete. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.k8s.resources import CLUSTER_TRAINING_RUNTIMES
from trainer_core.k8s.runtimes import ANCESTOR_LABEL, DATASET_INITIALIZER, MODEL_INITIALIZER

API_VERSION = CLUSTER_TRAINING_RUNTIMES.api_version
#: Label that turns off the validation webhook for a runtime.
WEBHOOK = "trainer.kubeflow.org/webhook-validation"
INITIALIZERS = (DATASET_INITIALIZER, MODEL_INITIALIZER)
#: The volume that initializers and training nodes share.
VOLUME = "initializer"


def get_value(data: Any, *keys: str) -> Any:
    """Return the value at a path of keys, or None."""
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def get_mapping(data: Any, *keys: str) -> Mapping[str, Any]:
    """Return the mapping at a path of keys, or an empty one."""
    value = get_value(data, *keys)
    return value if isinstance(value, Mapping) else {}


def get_items(data: Any, *keys: str) -> list[Mapping[str, Any]]:
    """Return the mappings in the list at a path of keys, or an empty list."""
    value = get_value(data, *keys)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


@dataclass(frozen=True)
class ReplicatedJob:
    """A replicated job of a runtime (``spec.template.spec.replicatedJobs``)."""

    raw: Mapping[str, Any]
    path: str

    @property
    def name(self) -> str:
        """Name; empty if it is missing."""
        return str(self.raw.get("name") or "")

    @property
    def ancestor(self) -> str | None:
        """Value of the ancestor label: the part of the TrainJob that Trainer merges into this job."""
        label = get_value(self.raw, "template", "metadata", "labels", ANCESTOR_LABEL)
        return None if label is None else str(label)

    @property
    def job(self) -> Mapping[str, Any]:
        return get_mapping(self.raw, "template", "spec")

    @property
    def pod(self) -> Mapping[str, Any]:
        return get_mapping(self.job, "template", "spec")

    @property
    def pod_path(self) -> str:
        return f"{self.path}.template.spec.template.spec"

    @property
    def depends_on(self) -> list[Mapping[str, Any]]:
        """Its dependencies (``dependsOn``)."""
        return get_items(self.raw, "dependsOn")

    def container(self, name: str) -> Mapping[str, Any] | None:
        """Return the container with this name, or None."""
        return next((each for each in get_items(self.pod, "containers") if each.get("name") == name), None)

    def mounts(self, volume: str) -> bool:
        containers = [*get_items(self.pod, "containers"), *get_items(self.pod, "initContainers")]
        return any(mount.get("name") == volume for each in containers for mount in get_items(each, "volumeMounts"))

    def has_volume(self, volume: str) -> bool:
        return any(each.get("name") == volume for each in get_items(self.pod, "volumes"))


def list_replicated_jobs(runtime: Mapping[str, Any]) -> list[ReplicatedJob]:
    """Return the replicated jobs of a runtime, in order."""
    jobs = get_items(runtime, "spec", "template", "spec", "replicatedJobs")
    return [
        ReplicatedJob(each, f"spec.template.spec.replicatedJobs[{each.get('name', number)}]")
        for number, each in enumerate(jobs)
    ]
