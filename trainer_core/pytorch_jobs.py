"""What is particular to a PyTorchJob of the Training Operator, as a part of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainer_core import checks

__all__ = [
    "CLEAN_POD_POLICIES",
    "RESTART_POLICIES",
    "PyTorchJob",
    "check_elastic_policy",
    "check_keys",
    "check_scheduling_policy",
]

#: What becomes of a node that fails, and which pods stay when the job has ended (specs.md C4).
RestartPolicy = Literal["Always", "OnFailure", "Never", "ExitCode"]
RESTART_POLICIES: tuple[str, ...] = get_args(RestartPolicy)
CLEAN_POD_POLICIES = ("Running", "All", "None")
_ELASTIC = (
    *("minReplicas", "maxReplicas", "maxRestarts", "metrics"),
    *("rdzvBackend", "rdzvConf", "rdzvHost", "rdzvId", "rdzvPort", "standalone"),
)
_SCHEDULING = ("minAvailable", "minResources", "priorityClass", "queue", "scheduleTimeoutSeconds")


class PyTorchJob(BaseModel):
    """What a `PyTorchJobSpec` says; dicts are in Kubernetes' spelling.

    Attributes:
        elastic_policy: How many nodes may come and go.
        restart_policy: What becomes of a node that fails; None for the backend's choice.
        run_policy: What a request has no words of its own for: backoffLimit, cleanPodPolicy, schedulingPolicy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    elastic_policy: dict[str, Any] = Field(default_factory=dict)
    restart_policy: RestartPolicy | None = None
    run_policy: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _the_operator_takes_it(self) -> PyTorchJob:
        check_elastic_policy("elastic_policy", self.elastic_policy)
        check_scheduling_policy("run_policy.schedulingPolicy", self.run_policy.get("schedulingPolicy") or {})
        check_keys("run_policy", self.run_policy, ("backoffLimit", "cleanPodPolicy", "schedulingPolicy"))
        checks.check_count("run_policy.backoffLimit", self.run_policy.get("backoffLimit"), minimum=0)
        if "cleanPodPolicy" in self.run_policy:
            checks.check_one_of("run_policy.cleanPodPolicy", self.run_policy["cleanPodPolicy"], CLEAN_POD_POLICIES)
        return self


def check_elastic_policy(what: str, policy: Mapping[str, Any]) -> None:
    """Refuse keys that the elasticPolicy of a PyTorchJob does not have, and counts that are none.

    Raises:
        ValueError: It is none.
    """
    if "nProcPerNode" in policy:
        raise ValueError(f"{what}.nProcPerNode is deprecated; give num_proc_per_node to the trainer")
    check_keys(what, policy, _ELASTIC)
    for name, least in (("minReplicas", 1), ("maxReplicas", 1), ("maxRestarts", 0)):
        checks.check_count(f"{what}.{name}", policy.get(name), minimum=least)
    if ("minReplicas" in policy) != ("maxReplicas" in policy):
        raise ValueError(f"{what} needs both minReplicas and maxReplicas, or neither")


def check_scheduling_policy(what: str, policy: Mapping[str, Any]) -> None:
    """Refuse keys that the schedulingPolicy of a PyTorchJob does not have.

    Raises:
        ValueError: It is none.
    """
    check_keys(what, policy, _SCHEDULING)


def check_keys(what: str, given: object, known: tuple[str, ...]) -> None:
    """Refuse what is no dict, and keys that are not known.

    Raises:
        ValueError: It is none, or has one.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{what} must be a dict in Kubernetes' spelling, got {type(given).__name__}")
    unknown = [f"{what}.{key}" for key in given if key not in known]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is not known; {what} has {', '.join(known)}")
