"""Kinds of objects on a cluster, and the paths under which a server has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

__all__ = [
    "ACCESS_REVIEWS",
    "CLAIMS",
    "CLUSTER_TRAINING_RUNTIMES",
    "CONFIG_MAPS",
    "CRDS",
    "DISTRIBUTED_WORKLOADS",
    "EVENTS",
    "EVENTS_V1",
    "JOBS",
    "JOBSETS",
    "PODS",
    "PYTORCH_JOBS",
    "SECRETS",
    "TRAINING_RUNTIMES",
    "TRAINING_WORKLOADS",
    "TRAINJOBS",
    "WORKFLOWS",
    "Kind",
    "of",
]


@dataclass(frozen=True)
class Kind:
    """A kind of object.

    Attributes:
        group: API group; empty for the core.
        version: Version of the API.
        plural: Its name in paths.
        kind: Its name in objects.
        namespaced: Whether its objects live in a namespace.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """What an object says as ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, part: str | None = None) -> str:
        """Return the path of an object, of a part of it (``log``, ``status``), or of all objects of the kind.

        Args:
            namespace: Where it lives; None for all namespaces. Not used for kinds without one.
            name: The object; None for the collection.
            part: A subresource of the object.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{quote(namespace, safe='')}" if self.namespaced and namespace else ""
        return "/".join([f"{root}{place}/{self.plural}", *[quote(piece, safe="") for piece in (name, part) if piece]])


TRAINJOBS = Kind("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
TRAINING_RUNTIMES = Kind("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime")
CLUSTER_TRAINING_RUNTIMES = Kind(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False
)
JOBSETS = Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
#: Of the Training Operator, which came before Trainer.
PYTORCH_JOBS = Kind("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
JOBS = Kind("batch", "v1", "jobs", "Job")
TRAINING_WORKLOADS = Kind("run.ai", "v2alpha1", "trainingworkloads", "TrainingWorkload")
DISTRIBUTED_WORKLOADS = Kind("run.ai", "v2alpha1", "distributedworkloads", "DistributedWorkload")
PODS = Kind("", "v1", "pods", "Pod")
EVENTS = Kind("", "v1", "events", "Event")
EVENTS_V1 = Kind("events.k8s.io", "v1", "events", "Event")
SECRETS = Kind("", "v1", "secrets", "Secret")
CLAIMS = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
CRDS = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
#: Of Argo: what Kubeflow Pipelines makes of each run.
WORKFLOWS = Kind("argoproj.io", "v1alpha1", "workflows", "Workflow")
ACCESS_REVIEWS = Kind(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)


def of(raw: Mapping[str, Any]) -> Kind:
    """Return the kind of an object, of those named here.

    Raises:
        KeyError: It is none of these.
    """
    return _BY_NAME[raw["apiVersion"], raw["kind"]]


_BY_NAME = {(kind.api_version, kind.kind): kind for kind in tuple(vars().values()) if isinstance(kind, Kind)}
