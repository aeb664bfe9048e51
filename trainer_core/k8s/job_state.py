"""JobState: the parsed state of any kind of job, small enough that the informer caches one per job."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from sys import intern
from typing import Any

from trainer_core.base import resources
from trainer_core.k8s import labels
from trainer_core.k8s.parsing import RawObject, parse_seconds, parse_time, to_single_line
from trainer_core.k8s.pod_state import PodState
from trainer_core.k8s.resources import ApiResource
from trainer_core.lifecycle.restart_policy import AttemptRestarts
from trainer_core.model.jobs import COMPLETE, FAILED, SUSPENDED, AttemptMemory, Progress
from trainer_core.model.request import KUEUE_QUEUE, MULTIKUEUE
from trainer_core.model.runtimes import RuntimeKind

#: Reason of the Failed condition of a job that exceeded a deadline.
DEADLINE_EXCEEDED = "DeadlineExceeded"
#: Reason of the Failed condition of a job that was preempted and is not rescheduled.
PREEMPTED = "Preempted"
#: Reason of the Failed condition of a job that a user stopped.
STOPPED = "Stopped"
#: Annotations that are too large to cache.
_DROPPED_ANNOTATIONS = frozenset({labels.REQUEST, "kubectl.kubernetes.io/last-applied-configuration"})
_EPOCH = datetime.fromtimestamp(0, timezone.utc)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a job whose status is True."""

    #: `Suspended`, `Complete` or `Failed`.
    type: str
    reason: str
    message: str
    last_transition_time: datetime | None


@dataclass(frozen=True, slots=True)
class ReplicatedJobStatus:
    """Status of one replicated job of a JobSet."""

    name: str
    ready: int
    succeeded: int


@dataclass(frozen=True, slots=True)
class JobState:
    """State of a job object, without its request."""

    backend: str
    kind: str
    name: str
    namespace: str
    uid: str
    creation_timestamp: datetime
    suspend: bool
    #: When the job was cancelled through this library; None if it was not.
    cancelled_at: datetime | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    deletion_timestamp: datetime | None
    queue_name: str | None = None
    #: Whether Kueue's MultiKueue runs it in another cluster: the pods and their logs are there.
    runs_elsewhere: bool = False
    #: Conditions whose status is True.
    conditions: tuple[Condition, ...] = ()
    #: Status of each replicated job.
    replicated_jobs: tuple[ReplicatedJobStatus, ...] = ()
    #: Progress that training reported to the controller (`status.trainerStatus`).
    progress: Progress | None = None
    #: Name of the runtime; empty if the job has none.
    runtime_name: str = ""
    runtime_kind: str = RuntimeKind.CLUSTER_TRAINING_RUNTIME.value
    #: Number of nodes that the job requests; None for the runtime's default.
    num_nodes: int | None = None
    #: Device type and count that the job requests per node, as ``("gpu", "2")``.
    device: tuple[str, str] | None = None
    #: Initializer steps that the job itself names.
    initializers: tuple[str, ...] = ()
    #: For an initialize-only job, the ``pvc://`` URI of each role (dataset, model).
    fetched_uris: tuple[tuple[str, str], ...] = ()
    active_deadline_seconds: int | None = None
    #: Seconds within which all pods must have a node; None for no limit.
    start_within: float | None = None
    #: Memory of this attempt and of the next one, if that may have more.
    memory: AttemptMemory | None = None
    #: The restart rules of the training, and the restarts before this attempt.
    restarts: AttemptRestarts | None = None
    #: When the job was last resumed; None if it never was.
    resumed_at: datetime | None = None
    #: Whether the job is restarted until its controller ends it, however often it crashes.
    expects_restarts: bool = False
    #: Whether the controller sets Complete when the first node succeeds, while other nodes may still run.
    completes_with_first_node: bool = False

    def get_condition(self, type_: str) -> Condition | None:
        """Return the condition of a type if its status is True."""
        return next((condition for condition in self.conditions if condition.type == type_), None)

    @property
    def finished_at(self) -> datetime | None:
        """When the job completed, failed or was cancelled; None while it is active."""
        condition = self.get_condition(COMPLETE) or self.get_condition(FAILED)
        return condition.last_transition_time if condition else self.cancelled_at

    def select_pods(self, pods: Iterable[PodState]) -> list[PodState]:
        """Return the pods of this job, oldest first. Those of an earlier job of the name are older than the job."""
        own = (pod for pod in pods if not pod.creation_timestamp or pod.creation_timestamp >= self.creation_timestamp)
        return sorted(own, key=lambda pod: (pod.creation_timestamp or self.creation_timestamp, pod.name))


def build_job_state(
    raw: RawObject,
    backend: str,
    kind: ApiResource,
    *,
    suspend: bool,
    restart_limit: int | None = None,
    **fields: Any,
) -> JobState:
    """Build a JobState from the metadata of a raw job and the fields that its backend has parsed."""
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    job_labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return JobState(
        backend=intern(backend),
        kind=kind.kind,
        name=intern(metadata["name"]),
        namespace=intern(metadata.get("namespace") or ""),
        uid=metadata.get("uid") or "",
        creation_timestamp=parse_time(metadata.get("creationTimestamp")) or _EPOCH,
        suspend=suspend,
        cancelled_at=parse_time(annotations.get(labels.CANCELLED)),
        labels={intern(key): intern(value) for key, value in job_labels.items()},
        annotations={intern(key): value for key, value in annotations.items() if key not in _DROPPED_ANNOTATIONS},
        deletion_timestamp=parse_time(metadata.get("deletionTimestamp")),
        queue_name=job_labels.get(KUEUE_QUEUE),
        runs_elsewhere=MULTIKUEUE in (spec.get("managedBy"), (spec.get("runPolicy") or {}).get("managedBy")),
        start_within=parse_seconds(annotations.get(labels.START_WITHIN)),
        memory=_parse_memory(annotations.get(labels.MEMORY)),
        restarts=AttemptRestarts.parse_json(annotations.get(labels.RESTART_POLICY)),
        resumed_at=_get_resumption_time(raw),
        expects_restarts=restart_limit is not None or labels.RESTARTS in annotations,
        **fields,
    )


def _parse_memory(text: str | None) -> AttemptMemory | None:
    try:
        return AttemptMemory.parse(json.loads(text)) if text else None
    except (ValueError, RecursionError):
        return None


def _get_resumption_time(raw: RawObject) -> datetime | None:
    conditions = (raw.get("status") or {}).get("conditions") or ()
    resumed = (each for each in conditions if each.get("type") == SUSPENDED and each.get("status") == "False")
    return next((parse_time(each.get("lastTransitionTime")) for each in resumed), None)


def parse_condition(raw: RawObject) -> Condition:
    return Condition(
        type=intern(raw.get("type") or ""),
        reason=intern(raw.get("reason") or ""),
        message=to_single_line(raw.get("message")),
        last_transition_time=parse_time(raw.get("lastTransitionTime")),
    )


def parse_conditions(raw: RawObject) -> tuple[Condition, ...]:
    """Parse the conditions of a raw job whose status is True."""
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return tuple(parse_condition(condition) for condition in conditions if condition.get("status") == "True")


def parse_replicated_job(raw: RawObject) -> ReplicatedJobStatus:
    """Parse an entry of a JobSet's `status.replicatedJobsStatus`, or the status of a Job."""
    return ReplicatedJobStatus(intern(raw.get("name") or ""), raw.get("ready") or 0, raw.get("succeeded") or 0)


def parse_device(limits: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the device type and count of resource limits; None if they name no device or are invalid."""
    try:
        return resources.detect_device(limits)
    except ValueError:
        return None
