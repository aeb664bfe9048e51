"""How the jobs of this backend are spelled: PyTorchJobs, and Jobs that only initialize. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainer_core.backends.training_operator.facts import JOB_NAME, read, read_pod
from trainer_core.cluster import events, kinds
from trainer_core.cluster.dialect import Dialect
from trainer_core.cluster.jobfacts import JobFacts
from trainer_core.cluster.pods import JOB_LABEL

__all__ = ["DIALECT"]


def _forms(job: JobFacts) -> Mapping[str, re.Pattern[str]]:
    if job.kind == kinds.JOBS.kind:
        return events.jobset_forms(job.name)
    return {kinds.PODS.kind: re.compile(rf"{re.escape(job.name)}-(master|worker)-\d+")}


def _suspension(job: JobFacts, suspend: bool) -> dict[str, Any]:
    said = {"suspend": suspend}
    return {"spec": said if job.kind == kinds.JOBS.kind else {"runPolicy": said}}


DIALECT = Dialect(
    pod_labels={kinds.PYTORCH_JOBS: JOB_NAME, kinds.JOBS: JOB_LABEL},
    read=read,
    suspension=_suspension,
    forms=_forms,
    read_pod=read_pod,
    shared=frozenset({kinds.JOBS}),
    foreground=frozenset({kinds.PYTORCH_JOBS, kinds.JOBS}),
)
