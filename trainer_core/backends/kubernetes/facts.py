"""A raw TrainJob, or Job that only initializes → what is known of it. Pure."""

from __future__ import annotations

import math
from sys import intern

from trainer_core.cluster import initialize, jobfacts
from trainer_core.cluster.jobfacts import JobFacts
from trainer_core.cluster.kinds import JOBS, TRAINJOBS
from trainer_core.cluster.raw import Raw
from trainer_core.observation import Progress
from trainer_core.runtimes import RuntimeKind

__all__ = ["read"]

_BACKEND = "kubernetes"


def read(raw: Raw) -> JobFacts:
    """Return what is known of a raw TrainJob, or of the raw batch/v1 Job of a request that only initializes."""
    spec = raw.get("spec") or {}
    # Items of a list of Jobs do not say what they are.
    is_job = raw.get("kind", "Job" if "runtimeRef" not in spec else "") == JOBS.kind
    return initialize.read(raw, _BACKEND) if is_job else _trainjob(raw, spec)


def _trainjob(raw: Raw, spec: Raw) -> JobFacts:
    status = raw.get("status") or {}
    runtime, trainer = spec.get("runtimeRef") or {}, spec.get("trainer") or {}
    return jobfacts.of(
        raw,
        _BACKEND,
        TRAINJOBS,
        suspend=bool(spec.get("suspend")),
        roles=tuple(map(jobfacts.role, status.get("jobsStatus") or ())),
        progress=_progress(status.get("trainerStatus")),
        runtime=intern(runtime.get("name") or ""),
        runtime_kind=intern(runtime.get("kind") or RuntimeKind.CLUSTER_TRAINING_RUNTIME.value),
        num_nodes=trainer.get("numNodes"),
        device=jobfacts.device((trainer.get("resourcesPerNode") or {}).get("limits") or {}),
        initializers=_initializers(spec.get("initializer") or {}),
        conditions=jobfacts.conditions(raw),
        deadline=spec.get("activeDeadlineSeconds"),
    )


def _progress(raw: Raw | None) -> Progress | None:
    if not raw:
        return None
    metrics = {one["name"]: number for one in raw.get("metrics") or () if (number := _number(one["value"])) is not None}
    percent = raw.get("progressPercentage")
    return Progress(percent, None if percent is None else 100, metrics)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _initializers(raw: Raw) -> tuple[str, ...]:
    return tuple(f"{role}-initializer" for role in ("dataset", "model") if raw.get(role))
