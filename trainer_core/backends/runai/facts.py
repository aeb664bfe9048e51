"""A raw workload of Run:ai, and a raw pod of one → what is known of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from trainer_core.cluster import jobfacts, kinds, pods
from trainer_core.cluster.jobfacts import DEADLINE_EXCEEDED, PREEMPTED, STOPPED, Condition, JobFacts, RoleStatus
from trainer_core.cluster.pods import LAUNCHER, NODE, PodFacts
from trainer_core.cluster.raw import Raw, one_line, time_of
from trainer_core.observation import COMPLETE, FAILED, SUSPENDED
from trainer_core.runai import wire

__all__ = ["JOB", "ROLE", "Phases", "read", "read_pod"]

#: Labels that we have Run:ai put on the pods: their workload, and what they are in it.
JOB = "trainjob-workflows/job"
ROLE = "trainjob-workflows/role"
_BACKEND = "runai"
_RUNNING = "running"
_PREEMPTED = "preempted"
_TIMED_OUT = "timedout"
#: The number of a pod among its like, in the labels of those who make it.
_INDICES = ("training.kubeflow.org/replica-index", "batch.kubernetes.io/job-completion-index")
_LAST_NUMBER = re.compile(r"-(\d+)$")


class Phases(NamedTuple):
    """What the phases of a workload mean; those that are named nowhere mean that it goes on."""

    succeeded: frozenset[str]
    failed: frozenset[str]
    stopped: frozenset[str]


def read(raw: Raw, phases: Phases) -> JobFacts:
    """Return what is known of a raw TrainingWorkload or DistributedWorkload."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    distributed = raw.get("kind", "") == kinds.DISTRIBUTED_WORKLOADS.kind or "jobType" in spec
    active = _value(spec, "active", True)
    phase = str(status.get("phase") or "").lower()
    return jobfacts.of(
        raw,
        _BACKEND,
        kinds.DISTRIBUTED_WORKLOADS if distributed else kinds.TRAINING_WORKLOADS,
        suspend=active is False,
        conditions=_conditions(phase, spec, status, phases),
        roles=(RoleStatus(NODE, int(phase == _RUNNING), 0),),
        num_nodes=_nodes(spec) if distributed else 1,
        device=_device(spec),
        led=distributed,
    )


def read_pod(raw: Raw) -> PodFacts:
    """Return what is known of a raw pod of a workload."""
    labels = raw["metadata"].get("labels") or {}
    return pods.read(raw, job=labels.get(JOB), step=_step(raw["metadata"]["name"], labels))


def _step(name: str, labels: Mapping[str, str]) -> str:
    role = labels.get(ROLE)
    if role == LAUNCHER:
        return LAUNCHER
    if role not in ("node", "worker"):
        return f"{NODE}-0"
    told = next((str(labels[key]) for key in _INDICES if str(labels.get(key, "")).isdecimal()), "")
    found = _LAST_NUMBER.search(name)
    index = int(told or (found[1] if found else 0))
    return f"{NODE}-{index if role == 'node' else index + 1}"


def _conditions(phase: str, spec: Raw, status: Raw, phases: Phases) -> tuple[Condition, ...]:
    said = _said(status)
    time = time_of(status.get("completedAt") or status.get("completionTime")) or _latest(status)
    if phase in phases.succeeded:
        return (Condition(COMPLETE, "", said, time),)
    if phase in phases.failed:
        reason = DEADLINE_EXCEEDED if phase == _TIMED_OUT else ""
        return (Condition(FAILED, reason, said or ("Run:ai ended it after its time" if reason else ""), time),)
    if phase in phases.stopped:
        if _value(spec, "active", True) is False:
            return (Condition(SUSPENDED, "", said, time),)
        return (Condition(FAILED, STOPPED, said or "it was stopped in Run:ai", time),)
    if phase == _PREEMPTED and _value(spec, "terminateAfterPreemption", False) is True:
        return (Condition(FAILED, PREEMPTED, said or "it was preempted: others needed its place", time),)
    return ()


def _said(status: Raw) -> str:
    told = [status.get(key) for key in ("phaseMessage", "message")]
    told += [one.get("message") for one in status.get("conditions") or () if one.get("status") == "True"]
    return one_line(next((text for text in told if text), ""))


def _latest(status: Raw) -> Any:
    times = [time_of(one.get("lastTransitionTime")) for one in status.get("conditions") or ()]
    return max((time for time in times if time), default=None)


def _nodes(spec: Raw) -> int:
    workers = _value(spec, "workers", 0)
    count = int(workers) if str(workers).isdecimal() else 0
    return count if spec.get("jobType") == "MPIJob" else count + 1


def _device(spec: Raw) -> tuple[str, str] | None:
    for name, device in (("gpu", "gpu"), ("gpuDevices", "gpu"), ("migProfile", "mig-"), ("cpu", "cpu")):
        value = _value(spec, name, None)
        if value in (None, "", 0, "0"):
            continue
        return (f"mig-{value}", "1") if device == "mig-" else (device, str(value))
    return None


def _value(spec: Raw, name: str, default: Any) -> Any:
    try:
        return wire.unwrap(spec[name])
    except (KeyError, ValueError):
        return default
