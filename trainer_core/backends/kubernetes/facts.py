"""A raw TrainJob → what is known of it: small, because it is kept for every job that is waited for. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from sys import intern
from typing import Any

from trainer_core import resources
from trainer_core.cluster import marks
from trainer_core.cluster.kinds import JOBS, TRAINJOBS
from trainer_core.cluster.pods import DATASET_INITIALIZER, MODEL_INITIALIZER, PodFacts
from trainer_core.cluster.raw import Raw, one_line, time_of
from trainer_core.observation import Progress
from trainer_core.runtimes import RuntimeKind

__all__ = ["Condition", "JobFacts", "RoleStatus", "read"]

#: Annotations that are large or nobody's business.
_UNSEEN = frozenset({marks.REQUEST, "kubectl.kubernetes.io/last-applied-configuration"})
_INITIALIZERS = (DATASET_INITIALIZER, MODEL_INITIALIZER)
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
    """How far the replicated Jobs of one name are; the counts are of Jobs, so 0 or 1."""

    name: str
    ready: int
    succeeded: int


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is known of a TrainJob, or of the Job of a request that only initializes; without its request.

    Attributes:
        kind: ``TrainJob`` or ``Job``.
        name: Its name.
        namespace: Where it is.
        uid: Its identity.
        resource_version: Its state, as the server counts them.
        created: When it was created.
        conditions: Those that are true of it.
        roles: How far its replicated Jobs are.
        progress: What training reported to Trainer.
        suspend: It is told to be suspended.
        cancelled: When somebody cancelled it.
        queue: The queue of Kueue that it waits in, or has waited in.
        runtime: Name of its runtime; empty for a Job.
        runtime_kind: Scope of its runtime.
        num_nodes: How many nodes it asks for; None for the runtime's number.
        device: What it asks for its nodes to compute on, and how many of it.
        initializers: The initializer steps that it names itself.
        fetched: Where a Job that only initializes puts what it fetches, by role.
        deadline: Seconds that it may run.
        labels: Its labels.
        annotations: Its annotations, without those that are large.
        deleted: When it shall be gone.
    """

    kind: str
    name: str
    namespace: str
    uid: str
    # Each little change of a job has another; who waits is woken by what the change says.
    resource_version: str = field(compare=False)
    created: datetime
    conditions: tuple[Condition, ...]
    roles: tuple[RoleStatus, ...]
    progress: Progress | None
    suspend: bool
    cancelled: datetime | None
    queue: str | None
    runtime: str
    runtime_kind: str
    num_nodes: int | None
    device: tuple[str, str] | None
    initializers: tuple[str, ...]
    fetched: tuple[tuple[str, str], ...]
    deadline: int | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    deleted: datetime | None

    def condition(self, kind: str) -> Condition | None:
        """Return a condition that is true of it."""
        return next((one for one in self.conditions if one.type == kind), None)

    def own(self, pods: Iterable[PodFacts]) -> list[PodFacts]:
        """Return those of the pods of its name that are its own, oldest first: pods of an earlier job may linger."""
        found = (pod for pod in pods if not pod.created or pod.created >= self.created)
        return sorted(found, key=lambda pod: (pod.created or self.created, pod.name))


def read(raw: Raw) -> JobFacts:
    """Return what is known of a raw TrainJob, or of the raw batch/v1 Job of a request that only initializes."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    # Items of a list of Jobs do not say what they are.
    is_job = raw.get("kind", "Job" if "runtimeRef" not in spec else "") == JOBS.kind
    runtime, trainer = spec.get("runtimeRef") or {}, spec.get("trainer") or {}
    return JobFacts(
        kind=JOBS.kind if is_job else TRAINJOBS.kind,
        name=intern(metadata["name"]),
        namespace=intern(metadata.get("namespace") or ""),
        uid=metadata.get("uid") or "",
        resource_version=metadata.get("resourceVersion") or "",
        created=time_of(metadata.get("creationTimestamp")) or _BEGINNING,
        conditions=tuple(_condition(one) for one in status.get("conditions") or () if one.get("status") == "True"),
        roles=(_role({**status, "name": ""}),) if is_job else tuple(map(_role, status.get("jobsStatus") or ())),
        progress=_progress(status.get("trainerStatus")),
        suspend=bool(spec.get("suspend")),
        cancelled=time_of(annotations.get(marks.CANCELLED)),
        queue=labels.get(marks.KUEUE_QUEUE),
        runtime=intern(runtime.get("name") or ""),
        runtime_kind=intern(runtime.get("kind") or RuntimeKind.CLUSTER_TRAINING_RUNTIME.value),
        num_nodes=0 if is_job else trainer.get("numNodes"),
        device=_device(trainer.get("resourcesPerNode") or {}),
        initializers=_job_initializers(spec) if is_job else _initializers(spec.get("initializer") or {}),
        fetched=_fetched(spec) if is_job else (),
        deadline=spec.get("activeDeadlineSeconds"),
        labels={intern(key): intern(value) for key, value in labels.items()},
        annotations={intern(key): value for key, value in annotations.items() if key not in _UNSEEN},
        deleted=time_of(metadata.get("deletionTimestamp")),
    )


def _condition(raw: Raw) -> Condition:
    return Condition(
        type=intern(raw.get("type") or ""),
        reason=intern(raw.get("reason") or ""),
        message=one_line(raw.get("message")),
        time=time_of(raw.get("lastTransitionTime")),
    )


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


def _device(raw: Raw) -> tuple[str, str] | None:
    try:
        return resources.device(raw.get("limits") or {})
    except ValueError:
        return None


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
