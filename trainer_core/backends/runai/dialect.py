"""How the jobs of this backend are spelled: TrainingWorkloads, and DistributedWorkloads for several nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from trainer_core.backends.runai import blueprints, facts
from trainer_core.backends.runai.facts import JOB, Phases
from trainer_core.cluster import kinds
from trainer_core.cluster.dialect import Dialect
from trainer_core.cluster.jobfacts import JobFacts
from trainer_core.cluster.raw import Raw
from trainer_core.configs import RunaiBackendConfig

__all__ = ["dialect_of"]

#: The kinds that Run:ai makes of a workload.
_MADE = ("RunaiJob", "PyTorchJob", "MPIJob")


def dialect_of(config: RunaiBackendConfig) -> Dialect:
    """Return how workloads are spelled; the same object for the same phases, so that all who wait share a watch."""
    given = (config.succeeded_phases, config.failed_phases, config.stopped_phases)
    return _dialect(Phases(*(frozenset(phase.lower() for phase in phases) for phases in given)))


@cache
def _dialect(phases: Phases) -> Dialect:
    return Dialect(
        pod_labels={kinds.TRAINING_WORKLOADS: JOB, kinds.DISTRIBUTED_WORKLOADS: JOB},
        read=partial(facts.read, phases=phases),
        suspension=_suspension,
        forms=_forms,
        read_pod=facts.read_pod,
        is_job=_is_job,
    )


def _suspension(job: JobFacts, suspend: bool) -> dict[str, Any]:
    del job
    return {"spec": {"active": {"value": not suspend}}}


def _forms(job: JobFacts) -> Mapping[str, re.Pattern[str]]:
    name = re.escape(job.name)
    return {
        kinds.PODS.kind: re.compile(rf"{name}-(\d+-\d+|(master|worker|launcher)(-[a-z0-9]+)*)"),
        **dict.fromkeys(_MADE, re.compile(name)),
    }


def _is_job(raw: Raw) -> bool:
    return not blueprints.is_template(raw)
