"""Parsing of raw TrainJobs, and of Jobs of initialize-only requests, to JobState. Pure."""

from __future__ import annotations

import json
import math
from sys import intern

from trainer_core.k8s import initializer_job, job_state
from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.parsing import RawObject
from trainer_core.k8s.resources import JOBS, TRAINJOBS
from trainer_core.model.jobs import ObjectiveReport, Progress
from trainer_core.model.runtimes import RuntimeKind
from trainer_core.node.objective import OBJECTIVE_METRIC, RUNG_METRIC

_BACKEND = "kubernetes"


def parse_job(raw: RawObject) -> JobState:
    """Parse a raw TrainJob, or the raw batch/v1 Job of an initialize-only request."""
    spec = raw.get("spec") or {}
    # Items of a list lack a kind; only a TrainJob has a runtimeRef.
    is_job = raw.get("kind", "Job" if "runtimeRef" not in spec else "") == JOBS.kind
    return initializer_job.parse_job(raw, _BACKEND) if is_job else _parse_trainjob(raw, spec)


def _parse_trainjob(raw: RawObject, spec: RawObject) -> JobState:
    status = raw.get("status") or {}
    runtime, trainer = spec.get("runtimeRef") or {}, spec.get("trainer") or {}
    return job_state.build_job_state(
        raw,
        _BACKEND,
        TRAINJOBS,
        suspend=bool(spec.get("suspend")),
        replicated_jobs=tuple(map(job_state.parse_replicated_job, status.get("jobsStatus") or ())),
        progress=_parse_progress(status.get("trainerStatus")),
        runtime_name=intern(runtime.get("name") or ""),
        runtime_kind=intern(runtime.get("kind") or RuntimeKind.CLUSTER_TRAINING_RUNTIME.value),
        num_nodes=trainer.get("numNodes"),
        device=job_state.parse_device((trainer.get("resourcesPerNode") or {}).get("limits") or {}),
        initializers=_list_initializers(spec.get("initializer") or {}),
        conditions=job_state.parse_conditions(raw),
        active_deadline_seconds=spec.get("activeDeadlineSeconds"),
    )


def _parse_progress(raw: RawObject | None) -> Progress | None:
    if not raw:
        return None
    metrics = {
        metric["name"]: number
        for metric in raw.get("metrics") or ()
        if (number := _parse_number(metric["value"])) is not None
    }
    percent = raw.get("progressPercentage")
    return Progress(percent, None if percent is None else 100, metrics, objective=_parse_objective(raw))


def _parse_objective(raw: RawObject) -> ObjectiveReport | None:
    """Return the values of a search's objective, as `Objective.list_status_metrics` writes them."""
    texts = {metric["name"]: metric["value"] for metric in raw.get("metrics") or ()}
    if OBJECTIVE_METRIC not in texts:
        return None
    try:
        value, step, best = json.loads(texts[OBJECTIVE_METRIC])
        rungs = [
            [name.removeprefix(RUNG_METRIC), *json.loads(text)]
            for name, text in texts.items()
            if name.startswith(RUNG_METRIC)
        ]
    except (TypeError, ValueError):
        return None
    return ObjectiveReport.parse({"value": value, "step": step, "best": best, "rungs": rungs})


def _parse_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _list_initializers(raw: RawObject) -> tuple[str, ...]:
    return tuple(f"{role}-initializer" for role in ("dataset", "model") if raw.get(role))
