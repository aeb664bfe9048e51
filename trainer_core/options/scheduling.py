"""Options that say who starts a job, and when: queues, priorities, gangs. The cluster must have what they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer_core import checks
from trainer_core.options.base import BaseOption, section
from trainer_core.options.patches import JobSetTemplatePatch, TrainingRuntimeSpecPatch
from trainer_core.options.runtime import RuntimePatch
from trainer_core.request import CONTROLLERS

if TYPE_CHECKING:
    from trainer_core.options.base import AnyTrainer

__all__ = ["GangScheduling", "ManagedBy", "PriorityClass", "QueueName"]

#: What Kueue and Volcano read (specs.md A7, A9).
_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
_KUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"
_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"


@dataclass
class QueueName(BaseOption):
    """Let Kueue start the job when its queue has room. Until then it is suspended.

    Args:
        name: A LocalQueue of the job's namespace.

    Raises:
        ValueError: It cannot be the name of a queue, or the backend does not accept it.
    """

    name: str

    def __post_init__(self) -> None:
        _check_label_name("QueueName", self.name)

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        section(section(job_spec, "metadata"), "labels")[_KUEUE_QUEUE] = self.name


@dataclass
class PriorityClass(BaseOption):
    """Say how early Kueue starts the job, and whom it may displace for it. Goes with `QueueName`.

    Args:
        name: A WorkloadPriorityClass of the cluster.

    Raises:
        ValueError: It cannot be the name of one, or the backend does not accept it.
    """

    name: str

    def __post_init__(self) -> None:
        _check_label_name("PriorityClass", self.name)

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        section(section(job_spec, "metadata"), "labels")[_KUEUE_PRIORITY] = self.name


@dataclass
class ManagedBy(BaseOption):
    """Name the controller that sees to the job; every other leaves it alone.

    Args:
        controller: ``trainer.kubeflow.org/trainjob-controller``, as by default, or ``kueue.x-k8s.io/multikueue``, which
            sends it to another cluster.

    Raises:
        ValueError: Another controller, or the backend does not accept it.
    """

    controller: str

    def __post_init__(self) -> None:
        if not checks.is_placeholder(self.controller):
            checks.check_one_of("ManagedBy", self.controller, CONTROLLERS)

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        section(job_spec, "spec")["managedBy"] = self.controller


@dataclass
class GangScheduling(BaseOption):
    """Name the Volcano queue in which the pods of the job wait until all of them can start.

    That they start together is the runtime's own policy (``podGroupPolicy.volcano``); a job can say no more than where.

    Args:
        queue: A Queue of Volcano.

    Raises:
        ValueError: It cannot be the name of a queue, or the backend does not accept it.
    """

    queue: str

    def __post_init__(self) -> None:
        checks.check_object_name("GangScheduling queue", self.queue)

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        metadata = {"annotations": {_VOLCANO_QUEUE: self.queue}}
        RuntimePatch(TrainingRuntimeSpecPatch(JobSetTemplatePatch(metadata)))._apply(job_spec, trainer)


def _check_label_name(what: str, name: object) -> None:
    """The name travels as the value of a label."""
    checks.check_object_name(what, name)
    checks.check_labels(what, {"name": name})
