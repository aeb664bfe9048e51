"""WorkloadAdapter of the Run:ai backend: TrainingWorkloads, and DistributedWorkloads for several nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, partial

from trainer_core.backends.runai import parse, runtime_templates
from trainer_core.backends.runai.parse import JOB_LABEL, Phases
from trainer_core.config import RunaiBackendConfig
from trainer_core.k8s import resources
from trainer_core.k8s.job_adapter import WorkloadAdapter
from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.parsing import RawObject

#: Kinds of the objects that Run:ai creates for a workload, under the workload's name.
_CHILD_KINDS = ("RunaiJob", "PyTorchJob", "MPIJob")


def build_adapter(config: RunaiBackendConfig) -> WorkloadAdapter:
    """Return the adapter for a configuration. Equal phases give the same adapter, so that waiters share one watch."""
    phases = (config.succeeded_phases, config.failed_phases, config.stopped_phases)
    return _build_adapter_for_phases(Phases(*(frozenset(name.lower() for name in names) for names in phases)))


@cache
def _build_adapter_for_phases(phases: Phases) -> WorkloadAdapter:
    return WorkloadAdapter(
        pod_labels={resources.TRAINING_WORKLOADS: JOB_LABEL, resources.DISTRIBUTED_WORKLOADS: JOB_LABEL},
        parse_job=partial(parse.parse_job, phases=phases),
        build_suspend_patch=lambda _, suspend: {"spec": {"active": {"value": not suspend}}},
        build_event_name_patterns=_build_event_name_patterns,
        parse_pod=parse.parse_pod,
        is_job=_is_job,
    )


def _build_event_name_patterns(job: JobState) -> Mapping[str, re.Pattern[str]]:
    name = re.escape(job.name)
    return {
        resources.PODS.kind: re.compile(rf"{name}-(\d+-\d+|(master|worker|launcher)(-[a-z0-9]+)*)"),
        **dict.fromkeys(_CHILD_KINDS, re.compile(name)),
    }


def _is_job(raw: RawObject) -> bool:
    return not runtime_templates.is_template(raw)
