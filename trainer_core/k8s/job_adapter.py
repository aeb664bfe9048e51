"""WorkloadAdapter: the differences between the job resources of the Kubernetes backends. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.k8s import pod_state
from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.parsing import RawObject
from trainer_core.k8s.pod_state import PodState
from trainer_core.k8s.resources import ApiResource

__all__ = ["WorkloadAdapter"]


def _accept_every_object(raw: RawObject) -> bool:
    del raw
    return True


@dataclass(frozen=True)
class WorkloadAdapter:
    """How the jobs of one backend are stored in the cluster.

    Attributes:
        pod_labels: The resources of jobs, the primary one first; each with the label of a pod that names its job.
        parse_job: Job object → its state.
        build_suspend_patch: Job, and whether to suspend it → merge patch.
        build_event_name_patterns: Job → patterns of the names of its child objects by kind; their events are the job's.
        parse_pod: Pod object → its state.
        shared_resources: Resources whose objects other tools create as well; only those with our label are jobs.
        foreground_resources: Resources whose objects are deleted with ``propagationPolicy: Foreground``.
        is_job: Whether an object of these resources is a job; others, such as templates, are ignored.
        owned_resources: Resources of which the controller creates an object with the name of each job.
    """

    pod_labels: Mapping[ApiResource, str]
    parse_job: Callable[[RawObject], JobState]
    build_suspend_patch: Callable[[JobState, bool], dict[str, Any]]
    build_event_name_patterns: Callable[[JobState], Mapping[str, re.Pattern[str]]]
    parse_pod: Callable[[RawObject], PodState] = pod_state.parse_pod
    shared_resources: frozenset[ApiResource] = frozenset()
    foreground_resources: frozenset[ApiResource] = frozenset()
    is_job: Callable[[RawObject], bool] = _accept_every_object
    owned_resources: tuple[ApiResource, ...] = ()

    @property
    def primary_resource(self) -> ApiResource:
        """The resource of most jobs."""
        return next(iter(self.pod_labels))

    def get_resource(self, job: JobState) -> ApiResource:
        """Return the resource of a job."""
        return next(resource for resource in self.pod_labels if resource.kind == job.kind)

    def build_pod_selector(self, job: JobState) -> str:
        """Return the label selector of a job's pods."""
        return f"{self.pod_labels[self.get_resource(job)]}={job.name}"
