"""A raw PyTorchJob, and a raw pod of one → what is known of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from sys import intern
from typing import Any

from trainer_core.backends.training_operator.template import MAIN
from trainer_core.cluster import initialize, jobfacts, kinds, pods
from trainer_core.cluster.jobfacts import DEADLINE_EXCEEDED, Condition, JobFacts, RoleStatus
from trainer_core.cluster.pods import DATASET_INITIALIZER, MODEL_INITIALIZER, NODE, PodFacts
from trainer_core.cluster.raw import Raw
from trainer_core.observation import COMPLETE, FAILED, SUSPENDED

__all__ = ["JOB_NAME", "read", "read_pod"]

#: Labels of a pod: its PyTorchJob, and which of its masters or workers it is.
JOB_NAME = "training.kubeflow.org/job-name"
_REPLICA_INDEX = "training.kubeflow.org/replica-index"
_BACKEND = "training-operator"
#: What ends a job or halts it, in the words of all backends. Failed counts first: a job can be both for a moment.
_CONDITIONS = {"Failed": FAILED, "Succeeded": COMPLETE, "Suspended": SUSPENDED}
#: What the operator says of a job that ran for too long: the reason is that of every failure.
_TOO_LONG = "active longer than specified deadline"
#: What the operator tells a node of its place; a job without a master has none, and its workers are counted.
_RANKS = ("PET_NODE_RANK", "RANK")


def read(raw: Raw) -> JobFacts:
    """Return what is known of a raw PyTorchJob, or of the raw Job of a request that only initializes."""
    if raw.get("kind") == kinds.JOBS.kind:
        return initialize.read(raw, _BACKEND)
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    policy, replicas = spec.get("runPolicy") or {}, spec.get("pytorchReplicaSpecs") or {}
    pod = _pod_spec(replicas)
    nodes = sum(int(replica.get("replicas", 1)) for replica in replicas.values())
    return jobfacts.of(
        raw,
        _BACKEND,
        kinds.PYTORCH_JOBS,
        suspend=bool(policy.get("suspend")),
        conditions=tuple(_conditions(status.get("conditions") or ())),
        roles=(_role(status.get("replicaStatuses") or {}, nodes),),
        num_nodes=nodes,
        device=_device(pod),
        initializers=_initializers(pod),
        deadline=policy.get("activeDeadlineSeconds"),
        led=True,
    )


def read_pod(raw: Raw) -> PodFacts:
    """Return what is known of a raw pod of a PyTorchJob, or of a Job."""
    labels = raw["metadata"].get("labels") or {}
    if JOB_NAME not in labels:
        return pods.read(raw)
    return pods.read(raw, main=MAIN, job=labels[JOB_NAME], step=f"{NODE}-{_rank(raw, labels)}")


def _rank(raw: Raw, labels: Mapping[str, str]) -> int:
    told = {entry["name"]: str(entry.get("value")) for one in _mains(raw["spec"]) for entry in one.get("env") or ()}
    found = (*(told.get(name, "") for name in _RANKS), str(labels.get(_REPLICA_INDEX, "")))
    return next((int(text) for text in found if text.isdecimal()), 0)


def _conditions(raws: Any) -> Iterator[Condition]:
    true = {one.get("type"): jobfacts.condition(one) for one in raws if one.get("status") == "True"}
    for theirs, ours in _CONDITIONS.items():
        if theirs in true:
            found = true[theirs]
            late = ours == FAILED and _TOO_LONG in found.message
            yield replace(found, type=ours, reason=DEADLINE_EXCEEDED if late else found.reason)
        if theirs == "Failed" and theirs in true:
            return


def _role(raw: Raw, nodes: int) -> RoleStatus:
    """All nodes together: they are one part of a job, which is ready once every one of them runs."""
    active = sum(one.get("active") or 0 for one in raw.values())
    succeeded = sum(one.get("succeeded") or 0 for one in raw.values())
    return RoleStatus(NODE, int(0 < nodes <= active + succeeded), int(0 < nodes <= succeeded))


def _pod_spec(replicas: Raw) -> Raw:
    """The pods of the replicas are alike, where we have made them."""
    replica: Raw = next(iter(replicas.values()), {})
    found: Raw = (replica.get("template") or {}).get("spec") or {}
    return found


def _mains(pod: Raw) -> Iterator[Raw]:
    return (one for one in pod.get("containers") or () if one.get("name") == MAIN)


def _device(pod: Raw) -> tuple[str, str] | None:
    main = next(_mains(pod), {})
    return jobfacts.device((main.get("resources") or {}).get("limits") or {})


def _initializers(pod: Raw) -> tuple[str, ...]:
    names = {one.get("name") for one in pod.get("initContainers") or ()}
    return tuple(intern(one) for one in (DATASET_INITIALIZER, MODEL_INITIALIZER) if one in names)
