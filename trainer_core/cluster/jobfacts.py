"""What is known of a job of a cluster, whatever kind it is of: small, because it is kept for every job waited for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from sys import intern
from typing import Any

from trainer_core import resources
from trainer_core.cluster import marks
from trainer_core.cluster.kinds import Kind
from trainer_core.cluster.pods import PodFacts
from trainer_core.cluster.raw import Raw, one_line, time_of
from trainer_core.observation import Progress
from trainer_core.options.scheduling import KUEUE_QUEUE
from trainer_core.runtimes import RuntimeKind

__all__ = [
    "DEADLINE_EXCEEDED",
    "PREEMPTED",
    "STOPPED",
    "Condition",
    "JobFacts",
    "RoleStatus",
    "condition",
    "conditions",
    "device",
    "of",
    "role",
]

#: The reason of a job that has failed because it ran for too long.
DEADLINE_EXCEEDED = "DeadlineExceeded"
#: Reasons of a job that has failed because others needed its place, or somebody ended it, and will not go on.
PREEMPTED = "Preempted"
STOPPED = "Stopped"
#: Annotations that are large or nobody's business.
_UNSEEN = frozenset({marks.REQUEST, "kubectl.kubernetes.io/last-applied-configuration"})
_BEGINNING = datetime.fromtimestamp(0, timezone.utc)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that is true of a job: Suspended, Complete or Failed; since when, and why."""

    type: str
    reason: str
    message: str
    time: datetime | None


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """How far the parts of a job of one name are: how many of them are ready, and how many have succeeded."""

    name: str
    ready: int
    succeeded: int


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is known of a job, without its request.

    Attributes:
        backend: The backend it is a job of.
        kind: What its object says to be, such as ``TrainJob``.
        name: Its name.
        namespace: Where it is.
        uid: Its identity.
        created: When it was created.
        suspend: It is told to be suspended.
        cancelled: When somebody cancelled it.
        labels: Its labels.
        annotations: Its annotations, without those that are large.
        deleted: When it shall be gone.
        queue: The queue of Kueue that it waits in, or has waited in.
        conditions: Those that are true of it.
        roles: How far its parts are.
        progress: What training reported to the controller.
        runtime: Name of its runtime; empty where it has none.
        runtime_kind: Scope of its runtime.
        num_nodes: How many nodes it asks for; None for the runtime's number.
        device: What it asks for its nodes to compute on, and how many of it.
        initializers: The initializer steps that it names itself.
        fetched: Where a job that only initializes puts what it fetches, by role.
        deadline: Seconds that it may run.
        led: Its controller calls it complete as soon as its first node is; others may go on for a while.
    """

    backend: str
    kind: str
    name: str
    namespace: str
    uid: str
    created: datetime
    suspend: bool
    cancelled: datetime | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    deleted: datetime | None
    queue: str | None = None
    conditions: tuple[Condition, ...] = ()
    roles: tuple[RoleStatus, ...] = ()
    progress: Progress | None = None
    runtime: str = ""
    runtime_kind: str = RuntimeKind.CLUSTER_TRAINING_RUNTIME.value
    num_nodes: int | None = None
    device: tuple[str, str] | None = None
    initializers: tuple[str, ...] = ()
    fetched: tuple[tuple[str, str], ...] = ()
    deadline: int | None = None
    led: bool = False

    def condition(self, kind: str) -> Condition | None:
        """Return a condition that is true of it."""
        return next((one for one in self.conditions if one.type == kind), None)

    def own(self, pods: Iterable[PodFacts]) -> list[PodFacts]:
        """Return those of the pods of its name that are its own, oldest first: pods of an earlier job may linger."""
        found = (pod for pod in pods if not pod.created or pod.created >= self.created)
        return sorted(found, key=lambda pod: (pod.created or self.created, pod.name))


def of(raw: Raw, backend: str, kind: Kind, *, suspend: bool, **known: Any) -> JobFacts:
    """Return what the metadata of a raw job say, with what its backend has read in the rest of it.

    Args:
        raw: The job as the server sends it.
        backend: The backend's name.
        kind: The job's kind.
        suspend: It is told to be suspended.
        **known: Further attributes of `JobFacts`.
    """
    metadata = raw["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return JobFacts(
        backend=intern(backend),
        kind=kind.kind,
        name=intern(metadata["name"]),
        namespace=intern(metadata.get("namespace") or ""),
        uid=metadata.get("uid") or "",
        created=time_of(metadata.get("creationTimestamp")) or _BEGINNING,
        suspend=suspend,
        cancelled=time_of(annotations.get(marks.CANCELLED)),
        labels={intern(key): intern(value) for key, value in labels.items()},
        annotations={intern(key): value for key, value in annotations.items() if key not in _UNSEEN},
        deleted=time_of(metadata.get("deletionTimestamp")),
        queue=labels.get(KUEUE_QUEUE),
        **known,
    )


def condition(raw: Raw) -> Condition:
    """Return a condition as Kubernetes writes it."""
    return Condition(
        type=intern(raw.get("type") or ""),
        reason=intern(raw.get("reason") or ""),
        message=one_line(raw.get("message")),
        time=time_of(raw.get("lastTransitionTime")),
    )


def conditions(raw: Raw) -> tuple[Condition, ...]:
    """Return the conditions that are true of a raw job."""
    found = (raw.get("status") or {}).get("conditions") or ()
    return tuple(condition(one) for one in found if one.get("status") == "True")


def role(raw: Raw) -> RoleStatus:
    """Return how far a part of a job is, as JobSet and Job write it."""
    return RoleStatus(intern(raw.get("name") or ""), raw.get("ready") or 0, raw.get("succeeded") or 0)


def device(limits: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what resources are to compute on, and how many of it; None where they do not say."""
    try:
        return resources.device(limits)
    except ValueError:
        return None
