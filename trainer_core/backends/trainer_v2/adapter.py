"""WorkloadAdapter of the Kubernetes backend: TrainJobs, and Jobs of initialize-only requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainer_core.backends.trainer_v2.parse import parse_job
from trainer_core.k8s import events, resources
from trainer_core.k8s.job_adapter import WorkloadAdapter
from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.pod_state import JOB_LABEL, JOBSET_LABEL


def _build_event_name_patterns(job: JobState) -> Mapping[str, re.Pattern[str]]:
    return events.build_jobset_name_patterns(job.name, [each.name for each in job.replicated_jobs])


ADAPTER = WorkloadAdapter(
    pod_labels={resources.TRAINJOBS: JOBSET_LABEL, resources.JOBS: JOB_LABEL},
    parse_job=parse_job,
    build_suspend_patch=lambda _, suspend: {"spec": {"suspend": suspend}},
    build_event_name_patterns=_build_event_name_patterns,
    shared_resources=frozenset({resources.JOBS}),
    # TrainJobs are not deleted in the foreground: up to 2.3, the Trainer controller recreates the JobSet of a TrainJob
    # that is being deleted and waits for its JobSet.
    foreground_resources=frozenset({resources.JOBS}),
    owned_resources=(resources.JOBSETS,),
)
