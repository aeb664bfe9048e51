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


def _accept_every_object(raw: RawObject) -> bool:
    del raw
    return True


@dataclass(frozen=True)
class WorkloadAdapter:
    """How the jobs of one backend are stored in the cluster."""

    #: The resources of jobs, the primary one first; each with the label of a pod that names its job.
    pod_labels: Mapping[ApiResource, str]
    #: Job object → its state.
    parse_job: Callable[[RawObject], JobState]
    #: Job, and whether to suspend it → merge patch.
    build_suspend_patch: Callable[[JobState, bool], dict[str, Any]]
    #: Job → patterns of the names of its child objects by kind; their events are the job's.
    build_event_name_patterns: Callable[[JobState], Mapping[str, re.Pattern[str]]]
    #: Pod object → its state.
    parse_pod: Callable[[RawObject], PodState] = pod_state.parse_pod
    #: Resources whose objects other tools create as well; only those with our label are jobs.
    shared_resources: frozenset[ApiResource] = frozenset()
    #: Resources whose objects are deleted with ``propagationPolicy: Foreground``.
    foreground_resources: frozenset[ApiResource] = frozenset()
    #: Whether an object of these resources is a job; others, such as templates, are ignored.
    is_job: Callable[[RawObject], bool] = _accept_every_object
    #: Resources of which the controller creates an object with the name of each job.
    owned_resources: tuple[ApiResource, ...] = ()

    @property
    def primary_resource(self) -> ApiResource:
        return next(iter(self.pod_labels))

    def get_resource(self, job: JobState) -> ApiResource:
        return next(resource for resource in self.pod_labels if resource.kind == job.kind)

    def build_pod_selector(self, job: JobState) -> str:
        """Return the label selector of a job's pods."""
        return f"{self.pod_labels[self.get_resource(job)]}={job.name}"
