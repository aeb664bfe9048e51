"""Parsing of raw Run:ai workloads and their pods to JobState and PodState. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from trainer_core.backends.runai import workload as runai_workload
from trainer_core.k8s import job_state, pod_state
from trainer_core.k8s.job_state import DEADLINE_EXCEEDED, PREEMPTED, STOPPED, Condition, JobState, ReplicatedJobStatus
from trainer_core.k8s.parsing import RawObject, parse_time, to_single_line
from trainer_core.k8s.pod_state import LAUNCHER, PodState
from trainer_core.k8s.resources import ApiResource
from trainer_core.k8s.runtimes import NODE
from trainer_core.model.jobs import COMPLETE, FAILED, SUSPENDED

TRAINING_WORKLOADS = ApiResource("run.ai", "v2alpha1", "trainingworkloads", "TrainingWorkload")
DISTRIBUTED_WORKLOADS = ApiResource("run.ai", "v2alpha1", "distributedworkloads", "DistributedWorkload")
#: Labels that Run:ai copies from ``spec.labels`` of a workload to its pods: name of the job, and role of the pod.
JOB_LABEL = "trainjob-workflows/job"
ROLE_LABEL = "trainjob-workflows/role"
_BACKEND = "runai"
_RUNNING = "running"
_PREEMPTED = "preempted"
_TIMED_OUT = "timedout"
#: Labels with the index of a pod: of the Training Operator, and of an indexed Job.
_INDEX_LABELS = ("training.kubeflow.org/replica-index", "batch.kubernetes.io/job-completion-index")
_INDEX_SUFFIX = re.compile(r"-(\d+)$")


class Phases(NamedTuple):
    """Phases of a workload in lower case, by their meaning. A workload in any other phase is still running."""

    succeeded: frozenset[str]
    failed: frozenset[str]
    #: The workload was stopped: suspended if ``spec.active`` is false, otherwise failed.
    stopped: frozenset[str]


def parse_job(raw: RawObject, phases: Phases) -> JobState:
    """Parse a raw TrainingWorkload or DistributedWorkload."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    # Items of a list lack a kind; only a DistributedWorkload has a jobType.
    distributed = raw.get("kind", "") == DISTRIBUTED_WORKLOADS.kind or "jobType" in spec
    phase = str(status.get("phase") or "").lower()
    return job_state.build_job_state(
        raw,
        _BACKEND,
        DISTRIBUTED_WORKLOADS if distributed else TRAINING_WORKLOADS,
        suspend=_get_value(spec, "active", True) is False,
        restart_limit=_get_value(spec, "backoffLimit", None),
        conditions=_parse_conditions(phase, spec, status, phases),
        replicated_jobs=(ReplicatedJobStatus(NODE, int(phase == _RUNNING), 0),),
        num_nodes=_count_nodes(spec) if distributed else 1,
        device=_parse_device(spec),
        completes_with_first_node=distributed,
    )


def parse_pod(raw: RawObject) -> PodState:
    labels = raw["metadata"].get("labels") or {}
    return pod_state.parse_pod(raw, job=labels.get(JOB_LABEL), step=_get_step(raw["metadata"]["name"], labels))


def _get_step(name: str, labels: Mapping[str, str]) -> str:
    role = labels.get(ROLE_LABEL)
    if role == LAUNCHER:
        return LAUNCHER
    if role not in ("node", "worker"):
        return f"{NODE}-0"
    label = next((str(labels[key]) for key in _INDEX_LABELS if str(labels.get(key, "")).isdecimal()), "")
    suffix = _INDEX_SUFFIX.search(name)
    index = int(label or (suffix[1] if suffix else 0))
    # The master of a PyTorchJob is node 0; an MPIJob has no master among its nodes.
    return f"{NODE}-{index if role == 'node' else index + 1}"


def _parse_conditions(phase: str, spec: RawObject, status: RawObject, phases: Phases) -> tuple[Condition, ...]:
    message = _get_message(status)
    completed = status.get("completedAt") or status.get("completionTime")
    time = parse_time(completed) or _get_last_transition_time(status)
    if phase in phases.succeeded:
        return (Condition(COMPLETE, "", message, time),)
    if phase in phases.failed:
        if phase == _TIMED_OUT:
            return (Condition(FAILED, DEADLINE_EXCEEDED, message or "it exceeded its deadline in Run:ai", time),)
        return (Condition(FAILED, "", message, time),)
    if phase in phases.stopped:
        if _get_value(spec, "active", True) is False:
            return (Condition(SUSPENDED, "", message, time),)
        return (Condition(FAILED, STOPPED, message or "it was stopped in Run:ai", time),)
    if phase == _PREEMPTED and _get_value(spec, "terminateAfterPreemption", False) is True:
        return (Condition(FAILED, PREEMPTED, message or "it was preempted by another workload", time),)
    return ()


def _get_message(status: RawObject) -> str:
    messages = [status.get(key) for key in ("phaseMessage", "message")]
    conditions = status.get("conditions") or ()
    messages += [condition.get("message") for condition in conditions if condition.get("status") == "True"]
    return to_single_line(next((message for message in messages if message), ""))


def _get_last_transition_time(status: RawObject) -> datetime | None:
    times = [parse_time(condition.get("lastTransitionTime")) for condition in status.get("conditions") or ()]
    return max((time for time in times if time), default=None)


def _count_nodes(spec: RawObject) -> int:
    workers = _get_value(spec, "workers", 0)
    count = int(workers) if str(workers).isdecimal() else 0
    return count if spec.get("jobType") == "MPIJob" else count + 1


def _parse_device(spec: RawObject) -> tuple[str, str] | None:
    for field, device in (("gpu", "gpu"), ("gpuDevices", "gpu"), ("migProfile", "mig-"), ("cpu", "cpu")):
        value = _get_value(spec, field, None)
        if value in (None, "", 0, "0"):
            continue
        return (f"mig-{value}", "1") if device == "mig-" else (device, str(value))
    return None


def _get_value(spec: RawObject, field: str, default: Any) -> Any:
    """Return the unwrapped value of a field; `default` if it is absent or in another format."""
    try:
        return runai_workload.unwrap(spec[field])
    except (KeyError, ValueError):
        return default
