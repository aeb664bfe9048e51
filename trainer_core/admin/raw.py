"""Parts of a runtime as it stands in YAML, however incomplete it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.cluster.kinds import CLUSTER_TRAINING_RUNTIMES
from trainer_core.cluster.runtimes import ANCESTOR, DATASET_INITIALIZER, MODEL_INITIALIZER

__all__ = [
    "API_VERSION",
    "INITIALIZERS",
    "VOLUME",
    "WEBHOOK",
    "ReplicatedJob",
    "at",
    "items",
    "mapping",
    "replicated_jobs",
]

API_VERSION = CLUSTER_TRAINING_RUNTIMES.api_version
#: Label of a runtime that the server shall not check.
WEBHOOK = "trainer.kubeflow.org/webhook-validation"
INITIALIZERS = (DATASET_INITIALIZER, MODEL_INITIALIZER)
#: The volume that initializers share with training nodes.
VOLUME = "initializer"


def at(data: Any, *keys: str) -> Any:
    """Return what lies at a path of keys, or None."""
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def mapping(data: Any, *keys: str) -> Mapping[str, Any]:
    """Return the mapping at a path; an empty one where there is none."""
    found = at(data, *keys)
    return found if isinstance(found, Mapping) else {}


def items(data: Any, *keys: str) -> list[Mapping[str, Any]]:
    """Return the mappings in the list at a path; none where there is no list."""
    found = at(data, *keys)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


@dataclass(frozen=True)
class ReplicatedJob:
    """One replicated job of a runtime.

    Attributes:
        raw: As it stands in the runtime.
        path: Where it stands.
    """

    raw: Mapping[str, Any]
    path: str

    @property
    def name(self) -> str:
        """Its name; empty where it has none."""
        return str(self.raw.get("name") or "")

    @property
    def ancestor(self) -> str | None:
        """The part of a TrainJob that is put into it."""
        label = at(self.raw, "template", "metadata", "labels", ANCESTOR)
        return None if label is None else str(label)

    @property
    def job(self) -> Mapping[str, Any]:
        """The spec of its Job."""
        return mapping(self.raw, "template", "spec")

    @property
    def pod(self) -> Mapping[str, Any]:
        """The spec of its pods."""
        return mapping(self.job, "template", "spec")

    @property
    def pod_path(self) -> str:
        """Where the spec of its pods stands."""
        return f"{self.path}.template.spec.template.spec"

    @property
    def depends_on(self) -> list[Mapping[str, Any]]:
        """What it waits for."""
        return items(self.raw, "dependsOn")

    def container(self, name: str) -> Mapping[str, Any] | None:
        """Return its container of that name."""
        return next((each for each in items(self.pod, "containers") if each.get("name") == name), None)

    def mounts(self, volume: str) -> bool:
        """Say whether one of its containers mounts a volume."""
        containers = [*items(self.pod, "containers"), *items(self.pod, "initContainers")]
        return any(mount.get("name") == volume for each in containers for mount in items(each, "volumeMounts"))

    def has_volume(self, volume: str) -> bool:
        """Say whether its pods bring a volume of that name."""
        return any(each.get("name") == volume for each in items(self.pod, "volumes"))


def replicated_jobs(runtime: Mapping[str, Any]) -> list[ReplicatedJob]:
    """Return the replicated jobs of a runtime, in order."""
    found = items(runtime, "spec", "template", "spec", "replicatedJobs")
    return [
        ReplicatedJob(each, f"spec.template.spec.replicatedJobs[{each.get('name', number)}]")
        for number, each in enumerate(found)
    ]
