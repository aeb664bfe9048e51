"""API resources of a Kubernetes cluster and their URL paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

#: The resources of all modules that were loaded, those of a backend among them.
_BY_NAME: dict[tuple[str, str], ApiResource] = {}


@dataclass(frozen=True)
class ApiResource:
    """A resource of the API server, as in `kubectl api-resources`."""

    #: API group; empty for the core group.
    group: str
    version: str
    #: Name in URL paths.
    plural: str
    kind: str
    #: Whether its objects belong to a namespace.
    namespaced: bool = True

    def __post_init__(self) -> None:
        _BY_NAME[self.api_version, self.kind] = self

    @property
    def api_version(self) -> str:
        """``apiVersion`` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def build_path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of an object, of its subresource, or of all objects."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{quote(namespace, safe='')}" if self.namespaced and namespace else ""
        parts = [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join([f"{root}{scope}/{self.plural}", *parts])


TRAINJOBS = ApiResource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
TRAINING_RUNTIMES = ApiResource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime")
CLUSTER_TRAINING_RUNTIMES = ApiResource(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False
)
JOBSETS = ApiResource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
JOBS = ApiResource("batch", "v1", "jobs", "Job")
PODS = ApiResource("", "v1", "pods", "Pod")
EVENTS = ApiResource("", "v1", "events", "Event")
EVENTS_V1 = ApiResource("events.k8s.io", "v1", "events", "Event")
SECRETS = ApiResource("", "v1", "secrets", "Secret")
VOLUME_CLAIMS = ApiResource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
#: Access modes of claims that the pods of one node, or one pod, can mount.
SINGLE_NODE_MODES = frozenset({"ReadWriteOnce", "ReadWriteOncePod"})
CONFIG_MAPS = ApiResource("", "v1", "configmaps", "ConfigMap")
CRDS = ApiResource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
#: Of Argo Workflows: Kubeflow Pipelines creates one for each run.
WORKFLOWS = ApiResource("argoproj.io", "v1alpha1", "workflows", "Workflow")
ACCESS_REVIEWS = ApiResource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)


def get_resource_of_object(raw: Mapping[str, Any]) -> ApiResource:
    """Return the resource of an object, by its ``apiVersion`` and ``kind``."""
    return _BY_NAME[raw["apiVersion"], raw["kind"]]
