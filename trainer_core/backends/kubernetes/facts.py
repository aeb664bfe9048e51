"""A raw TrainJob, or Job that only initializes → what is known of it. Pure."""

from __future__ import annotations

import math
from sys import intern
from typing import Any

from trainer_core.cluster import jobfacts
from trainer_core.cluster.jobfacts import JobFacts, RoleStatus
from trainer_core.cluster.kinds import JOBS, TRAINJOBS
from trainer_core.cluster.pods import DATASET_INITIALIZER, MODEL_INITIALIZER
from trainer_core.cluster.raw import Raw
from trainer_core.observation import Progress
from trainer_core.runtimes import RuntimeKind

__all__ = ["read"]

_BACKEND = "kubernetes"
_INITIALIZERS = (DATASET_INITIALIZER, MODEL_INITIALIZER)


def read(raw: Raw) -> JobFacts:
    """Return what is known of a raw TrainJob, or of the raw batch/v1 Job of a request that only initializes."""
    spec = raw.get("spec") or {}
    # Items of a list of Jobs do not say what they are.
    is_job = raw.get("kind", "Job" if "runtimeRef" not in spec else "") == JOBS.kind
    return _job(raw, spec) if is_job else _trainjob(raw, spec)


def _job(raw: Raw, spec: Raw) -> JobFacts:
    return jobfacts.of(
        raw,
        _BACKEND,
        JOBS,
        suspend=bool(spec.get("suspend")),
        roles=(_role({**(raw.get("status") or {}), "name": ""}),),
        num_nodes=0,
        initializers=_job_initializers(spec),
        fetched=_fetched(spec),
        **_common(raw, spec),
    )


def _trainjob(raw: Raw, spec: Raw) -> JobFacts:
    status = raw.get("status") or {}
    runtime, trainer = spec.get("runtimeRef") or {}, spec.get("trainer") or {}
    return jobfacts.of(
        raw,
        _BACKEND,
        TRAINJOBS,
        suspend=bool(spec.get("suspend")),
        roles=tuple(map(_role, status.get("jobsStatus") or ())),
        progress=_progress(status.get("trainerStatus")),
        runtime=intern(runtime.get("name") or ""),
        runtime_kind=intern(runtime.get("kind") or RuntimeKind.CLUSTER_TRAINING_RUNTIME.value),
        num_nodes=trainer.get("numNodes"),
        device=jobfacts.device((trainer.get("resourcesPerNode") or {}).get("limits") or {}),
        initializers=_initializers(spec.get("initializer") or {}),
        **_common(raw, spec),
    )


def _common(raw: Raw, spec: Raw) -> dict[str, Any]:
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return {
        "conditions": tuple(jobfacts.condition(one) for one in conditions if one.get("status") == "True"),
        "deadline": spec.get("activeDeadlineSeconds"),
    }


def _role(raw: Raw) -> RoleStatus:
    return RoleStatus(intern(raw["name"]), raw.get("ready") or 0, raw.get("succeeded") or 0)


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


def _pod_spec(spec: Raw) -> dict[str, Any]:
    return dict((spec.get("template") or {}).get("spec") or {})


def _job_initializers(spec: Raw) -> tuple[str, ...]:
    pod = _pod_spec(spec)
    names = {one["name"] for key in ("initContainers", "containers") for one in pod.get(key) or ()}
    return tuple(one for one in _INITIALIZERS if one in names)


def _fetched(spec: Raw) -> tuple[tuple[str, str], ...]:
    volumes = _pod_spec(spec).get("volumes") or ()
    claim = next((one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one), "")
    roles = (one.removesuffix("-initializer") for one in _job_initializers(spec))
    return tuple((role, f"pvc://{claim}/{role}") for role in roles) if claim else ()
