"""WorkloadAdapter of the Training Operator backend: PyTorchJobs, and Jobs of initialize-only requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainer_core.backends.training_operator.parse import JOB_NAME_LABEL, parse_job, parse_pod
from trainer_core.k8s import events, resources
from trainer_core.k8s.job_adapter import WorkloadAdapter
from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.pod_state import JOB_LABEL


def _build_event_name_patterns(job: JobState) -> Mapping[str, re.Pattern[str]]:
    if job.kind == resources.JOBS.kind:
        return events.build_jobset_name_patterns(job.name)
    return {resources.PODS.kind: re.compile(rf"{re.escape(job.name)}-(master|worker)-\d+")}


def _build_suspend_patch(job: JobState, suspend: bool) -> dict[str, Any]:
    fields = {"suspend": suspend}
    return {"spec": fields if job.kind == resources.JOBS.kind else {"runPolicy": fields}}


ADAPTER = WorkloadAdapter(
    pod_labels={resources.PYTORCH_JOBS: JOB_NAME_LABEL, resources.JOBS: JOB_LABEL},
    parse_job=parse_job,
    build_suspend_patch=_build_suspend_patch,
    build_event_name_patterns=_build_event_name_patterns,
    parse_pod=parse_pod,
    shared_resources=frozenset({resources.JOBS}),
    foreground_resources=frozenset({resources.PYTORCH_JOBS, resources.JOBS}),
)
