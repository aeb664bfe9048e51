"""Options that say who starts a job, and when: queues, priorities, gangs. The cluster must have what they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trainer_core import checks
from trainer_core.options.base import BaseOption, section
from trainer_core.options.patches import JobSetTemplatePatch, TrainingRuntimeSpecPatch
from trainer_core.options.runtime import RuntimePatch
from trainer_core.request import CONTROLLERS

if TYPE_CHECKING:
    from trainer_core.options.base import AnyTrainer

__all__ = ["KUEUE_QUEUE", "VOLCANO_QUEUE", "GangScheduling", "ManagedBy", "PriorityClass", "QueueName"]

#: What Kueue and Volcano read (specs.md A7, A9).
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"


@dataclass
class _KueueLabel(BaseOption):
    """The name of something of Kueue's, which travels as the value of a label."""

    name: str
    _key: ClassVar[str]

    def __post_init__(self) -> None:
        checks.check_object_name(type(self).__name__, self.name)
        checks.check_labels(type(self).__name__, {"name": self.name})

    def _apply(self, job_spec: dict[str, Any], trainer: AnyTrainer) -> None:
        section(section(job_spec, "metadata"), "labels")[self._key] = self.name


@dataclass
class QueueName(_KueueLabel):
    """Let Kueue start the job when its queue has room. Until then it is suspended.

    Args:
        name: A LocalQueue of the job's namespace.

    Raises:
        ValueError: It cannot be the name of a queue, or the backend does not accept it.
    """

    _key: ClassVar[str] = KUEUE_QUEUE


@dataclass
class PriorityClass(_KueueLabel):
    """Say how early Kueue starts the job, and whom it may displace for it. Goes with `QueueName`.

    Args:
        name: A WorkloadPriorityClass of the cluster.

    Raises:
        ValueError: It cannot be the name of one, or the backend does not accept it.
    """

    _key: ClassVar[str] = "kueue.x-k8s.io/priority-class"


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
        metadata = {"annotations": {VOLCANO_QUEUE: self.queue}}
        RuntimePatch(TrainingRuntimeSpecPatch(JobSetTemplatePatch(metadata)))._apply(job_spec, trainer)
