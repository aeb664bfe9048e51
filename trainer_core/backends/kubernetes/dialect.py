"""How the jobs of this backend are spelled: TrainJobs, and Jobs that only initialize. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainer_core.backends.kubernetes.facts import read
from trainer_core.cluster import events, kinds
from trainer_core.cluster.dialect import Dialect
from trainer_core.cluster.jobfacts import JobFacts
from trainer_core.cluster.pods import JOB_LABEL, JOBSET_LABEL

__all__ = ["DIALECT"]


def _forms(job: JobFacts) -> Mapping[str, re.Pattern[str]]:
    return events.jobset_forms(job.name, [role.name for role in job.roles])


DIALECT = Dialect(
    pod_labels={kinds.TRAINJOBS: JOBSET_LABEL, kinds.JOBS: JOB_LABEL},
    read=read,
    suspension=lambda _, suspend: {"spec": {"suspend": suspend}},
    forms=_forms,
    shared=frozenset({kinds.JOBS}),
    # Not TrainJobs: up to 2.3, Trainer makes the JobSet of a TrainJob anew when it is deleted, also of one that is
    # being deleted and only waits for it. The Job controller knows better.
    foreground=frozenset({kinds.JOBS}),
    parts=(kinds.JOBSETS,),
)
