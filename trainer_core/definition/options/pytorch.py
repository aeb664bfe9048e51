"""PyTorchJobSpec: the option for settings that only a PyTorchJob of the Training Operator has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trainer_core.base import validation
from trainer_core.definition.options.base import AnyTrainer, BaseOption, section
from trainer_core.model.run_policy import (
    CLEAN_POD_POLICIES,
    RESTART_POLICIES,
    check_elastic_policy,
    check_scheduling_policy,
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
        check_elastic_policy("elastic_policy", self.elastic_policy or {})
        check_scheduling_policy("scheduling_policy", self.scheduling_policy or {})
        validation.check_count("backoff_limit", self.backoff_limit, minimum=0)
        for name, known in (("restart_policy", RESTART_POLICIES), ("clean_pod_policy", CLEAN_POD_POLICIES)):
            value = getattr(self, name)
            if value is not None and not validation.is_placeholder(value):
                validation.check_one_of(name, value, known)

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
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
