"""DistributedConfig: the option that configures the nodes of a distributed job, compatible with Kale's class.

Its attributes are objects of the Kubernetes Python client, whose import takes half a second. The client is imported
only if such objects are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainer_core.base import resources, validation
from trainer_core.base.secrets import redact
from trainer_core.definition.options import kubernetes_models
from trainer_core.model.option import BaseOption, section
from trainer_core.model.request import MULTIKUEUE
from trainer_core.model.run_policy import CLEAN_POD_POLICIES, check_keys, check_scheduling_policy

if TYPE_CHECKING:
    from kubernetes.client import V1Affinity, V1EnvFromSource, V1EnvVar, V1Toleration

else:
    # Tools that evaluate the annotations at runtime find these names without the client.
    V1Affinity = V1EnvFromSource = V1EnvVar = V1Toleration = Any

#: Fields that are lists of Kubernetes objects, with the class of their items.
_LIST_FIELDS = {"env": "V1EnvVar", "env_from": "V1EnvFromSource", "tolerations": "V1Toleration"}
#: Keys of a RunPolicy.
_RUN_POLICY_KEYS = (
    *("activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "managedBy"),
    *("schedulingPolicy", "suspend", "ttlSecondsAfterFinished"),
)
#: Keys of a RunPolicy that are fields of every request.
_REQUEST_KEYS = ("activeDeadlineSeconds", "suspend", "ttlSecondsAfterFinished")
#: Minimum of each integer key.
_MINIMUMS = {"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 1, "backoffLimit": 0}
_TRAINING_OPERATOR = "kubeflow.org/training-operator"


@dataclass
class DistributedConfig(BaseOption):
    """Configure all nodes of a distributed job, with the arguments of ``kale.distributed.DistributedConfig``.

    Instead of an object of the Kubernetes client, a dict with the field names of the Kubernetes API is accepted, as in
    ``{"name": "MY_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}``. A list may contain both. The
    attributes are objects in either case.

    Args:
        env: Environment variables in addition to those of the trainer (`spec.containers[].env`).
        env_from: ConfigMaps and Secrets whose keys become environment variables (`spec.containers[].envFrom`). Only a
            PyTorchJob has it.
        requests: Resource requests of each node, as quantities by resource name.
        limits: Resource limits of each node, as quantities by resource name.
        annotations: Annotations of the pods.
        labels: Labels of the pods.
        node_selector: Labels that a Kubernetes node must have (`spec.nodeSelector`).
        affinity: Affinity of the pods (`spec.affinity`).
        tolerations: Tolerations of the pods (`spec.tolerations`).
        run_policy: RunPolicy of the job, as a dict or as an object such as ``V1RunPolicy``. Keys:
            ``activeDeadlineSeconds``, ``backoffLimit``, ``cleanPodPolicy``, ``managedBy``, ``schedulingPolicy``,
            ``suspend`` and ``ttlSecondsAfterFinished``; see
            https://pkg.go.dev/github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1#RunPolicy.

    Raises:
        ValueError: A value has the wrong type or an unknown key, or the backend does not support the option.
        BackendUnavailableError: Objects of the Kubernetes client are used, and the extra `kubernetes` is not installed.

    Example:
        ```python
        config = DistributedConfig(limits={"nvidia.com/gpu": 1}, node_selector={"pool": "gpu"})
        client.train(trainer=trainer, options=[config])
        ```
    """

    env: list[V1EnvVar] = field(default_factory=list)
    env_from: list[V1EnvFromSource] = field(default_factory=list)
    requests: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    node_selector: dict[str, str] = field(default_factory=dict)
    affinity: V1Affinity = None
    tolerations: list[V1Toleration] = field(default_factory=list)
    run_policy: Any = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            validation.check_size(name, value)
        for name, kind in _LIST_FIELDS.items():
            setattr(self, name, kubernetes_models.create_models(name, getattr(self, name), kind))
        if self.affinity is not None:
            self.affinity = kubernetes_models.create_model("affinity", self.affinity, "V1Affinity")
        for name in ("requests", "limits"):
            _check_dict(name, getattr(self, name))
            resources.check_resources(name, getattr(self, name))
        for name in ("annotations", "labels", "node_selector"):
            _check_dict(name, getattr(self, name))
            check = validation.check_annotations if name == "annotations" else validation.check_labels
            check(name, getattr(self, name))
        self._get_run_policy()

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes that are set as JSON data; nested objects have field names of the Kubernetes API."""
        values = {name: kubernetes_models.to_plain_data(value) for name, value in vars(self).items()}
        return {name: value for name, value in values.items() if value not in (None, [], {})}

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        # Lists may have been changed since the last check.
        self.__post_init__()
        spec, data, policy = section(job_spec, "spec"), self.to_dict(), self._get_run_policy()
        spec.update({name: policy.pop(name) for name in _REQUEST_KEYS if name in policy})
        if policy.pop("managedBy", None) == MULTIKUEUE:
            spec["managedBy"] = MULTIKUEUE
        data.pop("run_policy", None)
        spec["distributed"] = {**data, "run_policy": policy} if policy else data

    def _get_run_policy(self) -> dict[str, Any]:
        """Return the run policy as plain data, after checking it."""
        policy = kubernetes_models.to_plain_data(self.run_policy)
        if policy is None:
            return {}
        if not isinstance(policy, Mapping):
            raise ValueError(f"run_policy must be a dict or an object such as V1RunPolicy, got {type(policy).__name__}")
        check_keys("run_policy", policy, _RUN_POLICY_KEYS)
        for name, minimum in _MINIMUMS.items():
            validation.check_count(f"run_policy.{name}", policy.get(name), minimum)
        if not isinstance(policy.get("suspend", False), (bool, str)):
            raise ValueError(f"run_policy.suspend must be true or false, got {redact(policy['suspend'])}")
        for name, known in (("cleanPodPolicy", CLEAN_POD_POLICIES), ("managedBy", (_TRAINING_OPERATOR, MULTIKUEUE))):
            if name in policy and not validation.is_placeholder(policy[name]):
                validation.check_one_of(f"run_policy.{name}", policy[name], known)
        check_scheduling_policy("run_policy.schedulingPolicy", policy.get("schedulingPolicy", {}))
        return dict(policy)


def _check_dict(what: str, value: object) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a dict, got {type(value).__name__}")
