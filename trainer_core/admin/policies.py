"""How a PyTorchJob lives and is scheduled → where Trainer, JobSet and Job say the same. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer_core.options.scheduling import VOLCANO_QUEUE

__all__ = ["Life", "of"]

_MULTIKUEUE = "kueue.x-k8s.io/multikueue"
#: Exit codes after which the operator starts a node again, where exit codes decide.
_RETRYABLE = [130, 137, 138, 143]
_POLICY = "spec.runPolicy"
_SCHEDULING = f"{_POLICY}.schedulingPolicy"


@dataclass
class Life:
    """Where it is said now.

    Attributes:
        trainjob: In the spec of the TrainJob.
        runtime: In the spec of the runtime.
        template: In the metadata of the runtime's template.
        job: In the spec of the runtime's Job.
        pod: In the spec of its pods.
        notes: Path, message, and whether it is lost, of what cannot be said there or is said otherwise.
    """

    trainjob: dict[str, Any] = field(default_factory=dict)
    runtime: dict[str, Any] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    pod: dict[str, Any] = field(default_factory=dict)
    notes: list[tuple[str, str, bool]] = field(default_factory=list)


def of(spec: Mapping[str, Any], restart: str | None, nodes: int) -> Life:
    """Return where Trainer says how a PyTorchJob lives.

    Args:
        spec: Of the PyTorchJob.
        restart: The restart policy of its replicas; None for the operator's default.
        nodes: How many there are.
    """
    life, policy = Life(), spec.get("runPolicy") or {}
    for name in ("activeDeadlineSeconds", "suspend"):
        if policy.get(name):
            life.trainjob[name] = policy[name]
    if policy.get("managedBy") == _MULTIKUEUE:
        life.trainjob["managedBy"] = _MULTIKUEUE
    _ending(life, policy)
    _restarts(life, restart or "OnFailure", policy.get("backoffLimit"))
    _scheduling(life, policy.get("schedulingPolicy") or {}, nodes)
    return life


def _ending(life: Life, policy: Mapping[str, Any]) -> None:
    if policy.get("ttlSecondsAfterFinished") is not None:
        text = "a TrainJob has no time to live; delete it, or submit it with the option DeleteAfter and `trainjob reap`"
        life.notes.append((f"{_POLICY}.ttlSecondsAfterFinished", text, True))
    if policy.get("cleanPodPolicy") == "All":
        text = "pods that have ended stay until their TrainJob is deleted; delete it"
        life.notes.append((f"{_POLICY}.cleanPodPolicy", text, True))


def _restarts(life: Life, restart: str, limit: int | None) -> None:
    path = "spec.pytorchReplicaSpecs.*.restartPolicy"
    if limit is not None:
        life.job["backoffLimit"] = limit
        text = "counts the restarts of the runtime's Job now"
        life.notes.append((f"{_POLICY}.backoffLimit", text, False))
    if restart == "Never":
        life.pod["restartPolicy"] = "Never"
        life.job["backoffLimit"] = 0
    elif restart == "ExitCode":
        life.pod["restartPolicy"] = "Never"
        codes = {"containerName": "node", "operator": "NotIn", "values": list(_RETRYABLE)}
        life.job["podFailurePolicy"] = {"rules": [{"action": "FailJob", "onExitCodes": codes}]}
        life.notes.append((path, "ExitCode is a podFailurePolicy of the runtime's Job now", False))
    elif restart == "Always":
        life.notes.append((path, "Always is OnFailure now: what ends well is not started again", True))
    if limit is None and restart != "Never":
        text = f"{restart} without a backoffLimit restarts for ever with the operator, and six times with Trainer"
        life.notes.append((path, text, False))


def _scheduling(life: Life, policy: Mapping[str, Any], nodes: int) -> None:
    queue, timeout = policy.get("queue"), policy.get("scheduleTimeoutSeconds")
    if queue:
        life.runtime["podGroupPolicy"] = {"volcano": {}}
        life.template["annotations"] = {VOLCANO_QUEUE: queue}
        life.notes.append((f"{_SCHEDULING}.queue", "is taken for a queue of Volcano; for Kueue use its label", False))
    elif timeout:
        life.runtime["podGroupPolicy"] = {"coscheduling": {"scheduleTimeoutSeconds": timeout}}
    elif policy:
        life.runtime["podGroupPolicy"] = {"coscheduling": {}}
    if queue and timeout:
        text = "Volcano has no time limit for finding places"
        life.notes.append((f"{_SCHEDULING}.scheduleTimeoutSeconds", text, True))
    if policy.get("priorityClass"):
        life.pod["priorityClassName"] = policy["priorityClass"]
    if policy.get("minAvailable") not in (None, nodes):
        text = f"all {nodes} nodes start together; fewer cannot be asked for"
        life.notes.append((f"{_SCHEDULING}.minAvailable", text, True))
    if policy.get("minResources"):
        life.notes.append((f"{_SCHEDULING}.minResources", "is the sum of what the nodes ask for", True))
