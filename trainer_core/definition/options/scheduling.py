"""Options for queues, priorities and gang scheduling. The cluster must have the objects that they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trainer_core.base import validation
from trainer_core.definition.options.runtime import RuntimePatch
from trainer_core.model.option import BaseOption, section
from trainer_core.model.patches import JobSetTemplatePatch, TrainingRuntimeSpecPatch
from trainer_core.model.request import CONTROLLERS, KUEUE_QUEUE, VOLCANO_QUEUE


@dataclass
class _KueueLabel(BaseOption):
    """The name of a Kueue object, written into a label of the TrainJob."""

    name: str
    _key: ClassVar[str]

    def __post_init__(self) -> None:
        validation.check_object_name(type(self).__name__, self.name)
        validation.check_labels(type(self).__name__, {"name": self.name})

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        section(section(job_spec, "metadata"), "labels")[self._key] = self.name


@dataclass
class QueueName(_KueueLabel):
    """Queue the TrainJob in Kueue. It is suspended until the queue has quota for it.

    Upstream field: the label ``kueue.x-k8s.io/queue-name`` of the TrainJob
    ([Kueue](https://kueue.sigs.k8s.io/docs/tasks/run/trainjobs/)).

    Args:
        name: A LocalQueue of the job's namespace.

    Raises:
        ValueError: Not a valid name, or the backend does not accept the option.

    Example:
        ```python
        client.train(trainer=trainer, options=[QueueName("nightly")])
        ```
    """

    _key: ClassVar[str] = KUEUE_QUEUE


@dataclass
class PriorityClass(_KueueLabel):
    """Set the priority of the TrainJob in Kueue. Use it with `QueueName`.

    Upstream field: the label ``kueue.x-k8s.io/priority-class`` of the TrainJob.

    Args:
        name: A WorkloadPriorityClass of the cluster.

    Raises:
        ValueError: Not a valid name, or the backend does not accept the option.

    Example:
        ```python
        client.train(trainer=trainer, options=[QueueName("nightly"), PriorityClass("high")])
        ```
    """

    _key: ClassVar[str] = "kueue.x-k8s.io/priority-class"


@dataclass
class ManagedBy(BaseOption):
    """Name the controller that reconciles the TrainJob; other controllers ignore it.

    Upstream field: ``spec.managedBy``.

    Args:
        controller: ``trainer.kubeflow.org/trainjob-controller``, the default, or ``kueue.x-k8s.io/multikueue``, which
            dispatches the job to another cluster.

    Raises:
        ValueError: Another controller, or the backend does not accept the option.

    Example:
        ```python
        client.train(trainer=trainer, options=[QueueName("global"), ManagedBy("kueue.x-k8s.io/multikueue")])
        ```
    """

    controller: str

    def __post_init__(self) -> None:
        if not validation.is_placeholder(self.controller):
            validation.check_one_of("ManagedBy", self.controller, CONTROLLERS)

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        section(job_spec, "spec")["managedBy"] = self.controller


@dataclass
class StartWithin(BaseOption):
    """Cancel the TrainJob if not all of its pods have a Kubernetes node after this time.

    The time runs from the creation of the TrainJob, from its resumption, or from the creation of a pod that replaces a
    lost one. Time in which an initializer runs, or in which a user has suspended the TrainJob, does not count; time in
    a queue of Kueue does. Who waits for the TrainJob cancels it, also with ``fail_fast=False``: the diagnosis has the
    category ``Scheduling``. On the local backend it limits the time in the queue of ``max_parallel``, and the TrainJob
    ends itself. No upstream field: it is an annotation of the TrainJob. The default is no limit.

    Args:
        limit: In seconds, or as text such as ``"90s"``, ``"20m"``, ``"6h"`` or ``"2d"``.

    Raises:
        ValueError: Not a duration, or the backend does not accept the option.

    Example:
        ```python
        client.train(trainer=trainer, options=[StartWithin("6h")])
        ```
    """

    limit: float | str

    def __post_init__(self) -> None:
        validation.check_duration("StartWithin limit", self.limit)

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        section(job_spec, "spec")["startWithin"] = self.limit


@dataclass
class GangScheduling(BaseOption):
    """Name the Volcano queue in which the pods of the TrainJob wait until all of them can start.

    Upstream field: the annotation ``scheduling.volcano.sh/queue-name`` of the JobSet. Gang scheduling itself is a
    policy of the runtime (``podGroupPolicy.volcano``); a TrainJob can only select the queue.

    Args:
        queue: A Queue of Volcano.

    Raises:
        ValueError: Not a valid name, or the backend does not accept the option.

    Example:
        ```python
        client.train(trainer=trainer, options=[GangScheduling("research")])
        ```
    """

    queue: str

    def __post_init__(self) -> None:
        validation.check_object_name("GangScheduling queue", self.queue)

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        metadata = {"annotations": {VOLCANO_QUEUE: self.queue}}
        RuntimePatch(TrainingRuntimeSpecPatch(JobSetTemplatePatch(metadata)))._apply(job_spec, trainer)
