"""PyTorchJobSpec: the option for settings that only a PyTorchJob has, and what it sets in a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from trainer_core.base import validation
from trainer_core.model.option import BaseOption, section
from trainer_core.model.request import Extension, TrainJobRequest
from trainer_core.model.run_policy import CLEAN_POD_POLICIES, check_keys, check_scheduling_policy

#: ``restartPolicy`` of a replica, and keys of the elasticPolicy of a PyTorchJob (kubeflow.org/v1).
_ReplicaRestart = Literal["Always", "OnFailure", "Never", "ExitCode"]
_ELASTIC = (
    *("minReplicas", "maxReplicas", "maxRestarts", "metrics"),
    *("rdzvBackend", "rdzvConf", "rdzvHost", "rdzvId", "rdzvPort", "standalone"),
)


@dataclass
class PyTorchJobSpec(BaseOption):
    """Set fields that only a PyTorchJob has. Dicts use Kubernetes' field names.

    Upstream: [PyTorchJob](https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/) of
    ``kubeflow.org/v1``. Only the backend ``training-operator`` accepts this option.

    Args:
        elastic_policy: ``spec.elasticPolicy``, such as ``{"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 10}``. The
            job starts with the trainer's ``num_nodes`` nodes, all of them workers, each with ``num_proc_per_node``
            processes.
        restart_policy: ``restartPolicy`` of the replicas: ``Never`` fails the job when a node fails, ``OnFailure`` and
            ``Always`` restart the node, ``ExitCode`` restarts it only after a signal. The default is ``Never``, or
            ``OnFailure`` with an elastic policy or a backoff limit.
        backoff_limit: ``spec.runPolicy.backoffLimit``: number of restarts that fails the job. The default is no limit.
        clean_pod_policy: ``spec.runPolicy.cleanPodPolicy``: which pods are deleted at the end of the job:
            ``"Running"``, ``"None"`` or ``"All"``, which deletes results and logs. By default the running pods of a
            failed job.
        scheduling_policy: ``spec.runPolicy.schedulingPolicy``, such as ``{"queue": "research", "minAvailable": 2}``.

    Raises:
        ValueError: An invalid value, an unknown key, or the backend does not accept the option.

    Example:
        ```python
        client.train(trainer=trainer, options=[PyTorchJobSpec(restart_policy="OnFailure", backoff_limit=3)])
        ```
    """

    home_backend: ClassVar[str] = "TrainingOperatorBackend"

    elastic_policy: dict[str, Any] | None = None
    restart_policy: str | None = None
    backoff_limit: int | None = None
    clean_pod_policy: str | None = None
    scheduling_policy: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _check_elastic_policy("elastic_policy", self.elastic_policy or {})
        check_scheduling_policy("scheduling_policy", self.scheduling_policy or {})
        validation.check_count("backoff_limit", self.backoff_limit, minimum=0)
        for name, known in (("restart_policy", get_args(_ReplicaRestart)), ("clean_pod_policy", CLEAN_POD_POLICIES)):
            value = getattr(self, name)
            if value is not None and not validation.is_placeholder(value):
                validation.check_one_of(name, value, known)

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        policy = {
            "backoffLimit": self.backoff_limit,
            "cleanPodPolicy": self.clean_pod_policy,
            "schedulingPolicy": self.scheduling_policy,
        }
        fields = {
            "elastic_policy": self.elastic_policy,
            "restart_policy": self.restart_policy,
            "run_policy": {name: value for name, value in policy.items() if value is not None},
        }
        extensions = section(section(job_spec, "spec"), "extensions")
        extensions["pytorch_job"] = {name: value for name, value in fields.items() if value}


class PyTorchJob(Extension):
    """The fields that `PyTorchJobSpec` sets. Dicts use Kubernetes' field names."""

    option: ClassVar[str] = "PyTorchJobSpec"
    backend: ClassVar[str] = "training-operator"

    elastic_policy: dict[str, Any] = Field(default_factory=dict)
    restart_policy: _ReplicaRestart | None = None
    run_policy: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_policies(self) -> PyTorchJob:
        _check_elastic_policy("elastic_policy", self.elastic_policy)
        check_scheduling_policy("run_policy.schedulingPolicy", self.run_policy.get("schedulingPolicy") or {})
        check_keys("run_policy", self.run_policy, ("backoffLimit", "cleanPodPolicy", "schedulingPolicy"))
        validation.check_count("run_policy.backoffLimit", self.run_policy.get("backoffLimit"), minimum=0)
        if "cleanPodPolicy" in self.run_policy:
            validation.check_one_of("run_policy.cleanPodPolicy", self.run_policy["cleanPodPolicy"], CLEAN_POD_POLICIES)
        return self


def get_pytorch_job(request: TrainJobRequest) -> PyTorchJob:
    """Return what `PyTorchJobSpec` sets; nothing without it."""
    found: PyTorchJob = request.work.extensions.get("pytorch_job") or PyTorchJob()
    return found


def _check_elastic_policy(what: str, policy: Any) -> None:
    if isinstance(policy, Mapping) and "nProcPerNode" in policy:
        raise ValueError(f"{what}.nProcPerNode is deprecated; give num_proc_per_node to the trainer")
    check_keys(what, policy, _ELASTIC)
    for name, least in (("minReplicas", 1), ("maxReplicas", 1), ("maxRestarts", 0)):
        validation.check_count(f"{what}.{name}", policy.get(name), minimum=least)
    if ("minReplicas" in policy) != ("maxReplicas" in policy):
        raise ValueError(f"{what} needs both minReplicas and maxReplicas, or neither")
