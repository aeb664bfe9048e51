"""DistributedConfig: what Kale's distributed jobs are configured with, as an option.

The parts that are objects of Kubernetes are objects of its client here. Only who gives some loads the client, which
takes half a second; hence this is no part of `trainer_core.options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainer_core import checks, client_objects, resources
from trainer_core.options.base import BaseOption, section
from trainer_core.pytorch_jobs import CLEAN_POD_POLICIES, check_keys, check_scheduling_policy

if TYPE_CHECKING:
    from kubernetes.client import V1Affinity, V1EnvFromSource, V1EnvVar, V1Toleration

    from trainer_core.options.base import AnyTrainer
else:
    # Whoever reads the annotations finds names that mean something, without the client.
    V1Affinity = V1EnvFromSource = V1EnvVar = V1Toleration = Any

__all__ = ["DistributedConfig"]

#: The fields that are lists of objects of Kubernetes, by their class.
_LISTS = {"env": "V1EnvVar", "env_from": "V1EnvFromSource", "tolerations": "V1Toleration"}
_POLICY = (
    *("activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "managedBy"),
    *("schedulingPolicy", "suspend", "ttlSecondsAfterFinished"),
)
#: What a run policy says in words that every request has.
_SAME_WORDS = ("activeDeadlineSeconds", "suspend", "ttlSecondsAfterFinished")
#: The least that a number may be.
_COUNTS = {"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 1, "backoffLimit": 0}
_OWN_CONTROLLER = "kubeflow.org/training-operator"
_MULTIKUEUE = "kueue.x-k8s.io/multikueue"


@dataclass
class DistributedConfig(BaseOption):
    """Configure every node of a distributed job alike, as ``kale.distributed.DistributedConfig`` does.

    Wherever an object of Kubernetes is expected, a dict in Kubernetes' spelling serves as well
    (``{"name": "MY_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}``), and a list may mix both; the
    attributes hold objects in either case.

    Args:
        env: Environment variables beside those of the trainer.
        env_from: Sources of whole sets of environment variables.
        requests: Quantities by resource name that each node is to have.
        limits: Quantities by resource name that no node may exceed.
        annotations: Of the pods.
        labels: Of the pods.
        node_selector: Labels that a machine must have.
        affinity: Which machines the pods like, and which other pods beside them.
        tolerations: Which taints of machines the pods bear.
        run_policy: How the job lives, as a dict in Kubernetes' spelling or an object such as ``V1RunPolicy``.

    Raises:
        ValueError: A value is not of its kind or has a key that Kubernetes does not know, or the backend does not
            accept it.
        BackendUnavailableError: Objects of Kubernetes were given, and its client is not installed.
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
        for name, kind in _LISTS.items():
            setattr(self, name, client_objects.listed(name, getattr(self, name), kind))
        if self.affinity is not None:
            self.affinity = client_objects.made("affinity", self.affinity, "V1Affinity")
        for name in ("requests", "limits"):
            _check_dict(name, getattr(self, name))
            resources.check_resources(name, getattr(self, name))
        for name in ("annotations", "labels", "node_selector"):
            _check_dict(name, getattr(self, name))
            check = checks.check_annotations if name == "annotations" else checks.check_labels
            check(name, getattr(self, name))
        self._policy()

    def to_dict(self) -> dict[str, Any]:
        """Return what is set as plain JSON data, by attribute; what lies deeper is in Kubernetes' spelling."""
        found = {name: client_objects.plain(value) for name, value in vars(self).items()}
        return {name: value for name, value in found.items() if value not in (None, [], {})}

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        # Lists may have got entries since.
        self.__post_init__()
        spec, data, policy = section(job_spec, "spec"), self.to_dict(), self._policy()
        spec.update({name: policy.pop(name) for name in _SAME_WORDS if name in policy})
        if policy.pop("managedBy", None) == _MULTIKUEUE:
            spec["managedBy"] = _MULTIKUEUE
        data.pop("run_policy", None)
        spec["distributed"] = {**data, **({"run_policy": policy} if policy else {})}

    def _policy(self) -> dict[str, Any]:
        """The run policy as plain data, checked."""
        policy = client_objects.plain(self.run_policy)
        if policy is None:
            return {}
        if not isinstance(policy, Mapping):
            raise ValueError(f"run_policy must be a dict or an object such as V1RunPolicy, got {type(policy).__name__}")
        check_keys("run_policy", policy, _POLICY)
        for name, least in _COUNTS.items():
            checks.check_count(f"run_policy.{name}", policy.get(name), least)
        if not isinstance(policy.get("suspend", False), (bool, str)):
            raise ValueError(f"run_policy.suspend must be true or false, got {policy['suspend']!r}")
        for name, known in (("cleanPodPolicy", CLEAN_POD_POLICIES), ("managedBy", (_OWN_CONTROLLER, _MULTIKUEUE))):
            if name in policy and not checks.is_placeholder(policy[name]):
                checks.check_one_of(f"run_policy.{name}", policy[name], known)
        check_scheduling_policy("run_policy.schedulingPolicy", policy.get("schedulingPolicy", {}))
        return dict(policy)


def _check_dict(what: str, value: object) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a dict, got {type(value).__name__}")
