"""Rules for the run policy of a job of Kubeflow: elastic training, scheduling, restarts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from trainer_core.base import validation

#: ``restartPolicy`` and ``cleanPodPolicy`` of a PyTorchJob (kubeflow.org/v1).
RestartPolicy = Literal["Always", "OnFailure", "Never", "ExitCode"]
RESTART_POLICIES: tuple[str, ...] = get_args(RestartPolicy)
CLEAN_POD_POLICIES = ("Running", "All", "None")
_ELASTIC = (
    *("minReplicas", "maxReplicas", "maxRestarts", "metrics"),
    *("rdzvBackend", "rdzvConf", "rdzvHost", "rdzvId", "rdzvPort", "standalone"),
)
_SCHEDULING = ("minAvailable", "minResources", "priorityClass", "queue", "scheduleTimeoutSeconds")


def check_elastic_policy(what: str, policy: Any) -> None:
    """Refuse unknown keys and invalid counts in the elasticPolicy of a PyTorchJob."""
    if isinstance(policy, Mapping) and "nProcPerNode" in policy:
        raise ValueError(f"{what}.nProcPerNode is deprecated; give num_proc_per_node to the trainer")
    check_keys(what, policy, _ELASTIC)
    for name, least in (("minReplicas", 1), ("maxReplicas", 1), ("maxRestarts", 0)):
        validation.check_count(f"{what}.{name}", policy.get(name), minimum=least)
    if ("minReplicas" in policy) != ("maxReplicas" in policy):
        raise ValueError(f"{what} needs both minReplicas and maxReplicas, or neither")


def check_scheduling_policy(what: str, policy: Mapping[str, Any]) -> None:
    """Refuse unknown keys in the schedulingPolicy of a PyTorchJob."""
    check_keys(what, policy, _SCHEDULING)


def check_keys(what: str, value: object, known: tuple[str, ...]) -> None:
    """Refuse a value that is not a dict, and unknown keys."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be a dict with Kubernetes' field names, got {type(value).__name__}")
    unknown = [key for key in value if key not in known]
    if unknown:
        raise ValueError(f"{what}.{validation.list_names(unknown)} is unknown; {what} has {', '.join(known)}")
