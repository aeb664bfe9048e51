"""Dialect: how the jobs of one backend are spelled on a cluster, so that all that reads them is written once. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.cluster import pods
from trainer_core.cluster.jobfacts import JobFacts
from trainer_core.cluster.kinds import Kind
from trainer_core.cluster.pods import PodFacts
from trainer_core.cluster.raw import Raw

__all__ = ["Dialect"]


def _every(raw: Raw) -> bool:
    del raw
    return True


@dataclass(frozen=True)
class Dialect:
    """How jobs are spelled.

    Attributes:
        pod_labels: The kinds that a job can be of, the usual one first; each with the label of a pod that says the name
            of its job.
        read: Job as the server sends it → what is known of it.
        suspension: Job, and whether it shall be suspended → the merge patch that says so.
        forms: Job → the names of what is made for it, by kind of object: events of these are the job's events.
        read_pod: Pod as the server sends it → what is known of it.
        shared: Kinds that others make objects of as well; only ours are jobs.
        foreground: Kinds whose objects are deleted in the foreground.
        is_job: Whether an object of these kinds is a job; others, such as templates, are left alone.
        parts: Kinds of which an object of the same name is made for each job of the usual kind.
    """

    pod_labels: Mapping[Kind, str]
    read: Callable[[Raw], JobFacts]
    suspension: Callable[[JobFacts, bool], dict[str, Any]]
    forms: Callable[[JobFacts], Mapping[str, re.Pattern[str]]]
    read_pod: Callable[[Raw], PodFacts] = pods.read
    shared: frozenset[Kind] = frozenset()
    foreground: frozenset[Kind] = frozenset()
    is_job: Callable[[Raw], bool] = _every
    parts: tuple[Kind, ...] = ()

    @property
    def usual(self) -> Kind:
        """The kind that most jobs are of."""
        return next(iter(self.pod_labels))

    def kind(self, job: JobFacts) -> Kind:
        """Return the kind of a job."""
        return next(kind for kind in self.pod_labels if kind.kind == job.kind)

    def selector(self, job: JobFacts) -> str:
        """Return the label selector of a job's pods."""
        return f"{self.pod_labels[self.kind(job)]}={job.name}"
