"""PyTorchJobSpec: the option for what a PyTorchJob of the Training Operator can be told and no other job can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trainer_core import checks
from trainer_core.options.base import BaseOption, section
from trainer_core.pytorch_jobs import (
    CLEAN_POD_POLICIES,
    RESTART_POLICIES,
    check_elastic_policy,
    check_scheduling_policy,
)

if TYPE_CHECKING:
    from trainer_core.options.base import AnyTrainer

__all__ = ["PyTorchJobSpec"]


@dataclass
class PyTorchJobSpec(BaseOption):
    """Set what is particular to a PyTorchJob; dicts are in Kubernetes' spelling.

    Args:
        elastic_policy: Lets nodes come and go while the job runs, such as
            ``{"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 10}``. The trainer's ``num_nodes`` are started, as
            workers all of them, each with the trainer's ``num_proc_per_node``.
        restart_policy: What becomes of a node that fails: ``Never`` fails the job, ``OnFailure`` and ``Always`` start
            it again, ``ExitCode`` does only after a signal. None for ``Never``, or for ``OnFailure`` where there is an
            elastic policy or a backoff limit.
        backoff_limit: How many restarts fail the job.
        clean_pod_policy: Which pods are deleted at the job's end: ``"Running"``, ``"None"`` of them, or ``"All"``,
            with which results and logs are lost. By default those that still run when the job has failed.
        scheduling_policy: For gang schedulers, such as ``{"queue": "research", "minAvailable": 2}``.

    Raises:
        ValueError: A value cannot be right, a key is not known, or the backend does not accept it.
    """

    _home: ClassVar[str] = "TrainingOperatorBackend"

    elastic_policy: dict[str, Any] | None = None
    restart_policy: str | None = None
    backoff_limit: int | None = None
    clean_pod_policy: str | None = None
    scheduling_policy: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_elastic_policy("elastic_policy", self.elastic_policy or {})
        check_scheduling_policy("scheduling_policy", self.scheduling_policy or {})
        checks.check_count("backoff_limit", self.backoff_limit, minimum=0)
        for name, known in (("restart_policy", RESTART_POLICIES), ("clean_pod_policy", CLEAN_POD_POLICIES)):
            value = getattr(self, name)
            if value is not None and not checks.is_placeholder(value):
                checks.check_one_of(name, value, known)

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        policy = {
            "backoffLimit": self.backoff_limit,
            "cleanPodPolicy": self.clean_pod_policy,
            "schedulingPolicy": self.scheduling_policy,
        }
        said = {
            "elastic_policy": self.elastic_policy,
            "restart_policy": self.restart_policy,
            "run_policy": {name: value for name, value in policy.items() if value is not None},
        }
        section(job_spec, "spec")["pytorchJob"] = {name: value for name, value in said.items() if value}
