"""A raw pod → what is known of a step: small, because it is kept for every job that is waited for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from sys import intern
from typing import Any

from trainer_core import resources
from trainer_core.cluster.raw import Raw, one_line, time_of
from trainer_core.cluster.runtimes import DATASET_INITIALIZER, MODEL_INITIALIZER, NODE

__all__ = [
    "DATASET_INITIALIZER",
    "JOBSET_LABEL",
    "JOB_LABEL",
    "LAUNCHER",
    "MODEL_INITIALIZER",
    "NODE",
    "ContainerFacts",
    "Ended",
    "PodFacts",
    "by_step",
    "job_of",
    "read",
]

#: Replicated Job of what launches the nodes of an MPI job.
LAUNCHER = "launcher"
#: Labels by which the pods of a TrainJob, and those of a plain Job, are found.
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
JOB_LABEL = "batch.kubernetes.io/job-name"

_ROLE_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
_INDEX = "batch.kubernetes.io/job-completion-index"
_INITIALIZERS = (DATASET_INITIALIZER, MODEL_INITIALIZER)
#: The volume that Trainer gives to each pod of an MPI job, launcher and nodes (specs.md A7).
_MPI_VOLUME = "mpi-ssh-auth"
_MESSAGE_LIMIT = 300
_MAX_SIGNAL = 64
#: Nothing is wrong with a container that waits for these.
_ON_ITS_WAY = frozenset({"", "ContainerCreating", "PodInitializing"})


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run of a container ended.

    Attributes:
        exit_code: Its exit code, negative for a signal.
        reason: Kubernetes' word for it: Completed, Error, OOMKilled, StartError, …
        message: Its termination message, whole.
        started: When that run started.
        finished: When it ended.
    """

    exit_code: int
    reason: str = ""
    message: str = ""
    started: datetime | None = None
    finished: datetime | None = None

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than well."""
        return self.exit_code != 0


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """What is known of a container.

    Attributes:
        name: Its name.
        image: Its image, as the pod asks for it.
        waiting: Why it does not run yet, or not again, in Kubernetes' word; empty where it does not wait.
        message: The same, for a person.
        running: Since when it runs.
        ended: How it ended.
        last: How its run before this one ended.
        restarts: How often it was started again.
    """

    name: str
    image: str = ""
    waiting: str = ""
    message: str = ""
    running: datetime | None = None
    ended: Ended | None = None
    last: Ended | None = None
    restarts: int = 0

    @property
    def last_end(self) -> Ended | None:
        """How it ended when it last did."""
        return self.ended or self.last

    @property
    def crashes(self) -> int:
        """How often it has ended badly, as far as the pod tells."""
        seen = self.last_end
        if seen is None or not seen.failed:
            return 0
        # While it runs, the restart after its last end is counted already.
        return self.restarts if self.running else self.restarts + 1

    @property
    def in_trouble(self) -> bool:
        """Whether anything is wrong with it, or was."""
        return self.waiting not in _ON_ITS_WAY or self.crashes > 0


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What is known of a pod.

    Attributes:
        name: Its name.
        uid: Its identity.
        job: The TrainJob or Job it belongs to.
        step: The step it is.
        phase: Pending, Running, Succeeded, Failed or Unknown.
        created: When it was created.
        main: The container that does the step's work.
        others: Other containers that something is wrong with, and all initializers that have no pod of their own.
        role: The replicated Job it comes from; empty where there is no JobSet.
        node: The machine it was put on.
        assigned: When that machine took it.
        unscheduled: Why it has no machine, in Kubernetes' word: Unschedulable or SchedulingGated.
        unscheduled_message: The same, for a person.
        disruption: Why it has to leave its machine, such as PreemptionByScheduler.
        disruption_message: The same, for a person.
        reason: Why it is in its phase, such as Evicted.
        message: The same, for a person.
        deleted: When it shall be gone.
        device: What it computes on, and how many of it.
    """

    name: str
    uid: str
    job: str
    step: str
    phase: str
    created: datetime | None
    main: ContainerFacts
    others: tuple[ContainerFacts, ...] = ()
    role: str = ""
    node: str | None = None
    assigned: datetime | None = None
    unscheduled: str = ""
    unscheduled_message: str = ""
    disruption: str = ""
    disruption_message: str = ""
    reason: str = ""
    message: str = ""
    deleted: datetime | None = None
    device: tuple[str, str] | None = None

    @property
    def started(self) -> datetime | None:
        """When its work began."""
        return self.began(self.main)

    def began(self, container: ContainerFacts) -> datetime | None:
        """Return when a container of it started for the first time, as far as is known."""
        if container.restarts:
            return self.assigned
        return container.running or (container.ended.started if container.ended else None)

    @property
    def parts(self) -> Iterator[tuple[str, ContainerFacts]]:
        """The steps it is, with the container of each: one, and each initializer that has no pod of its own.

        Where every node has initializers, those of the first stand for all.
        """
        yield self.step, self.main
        if self.main.name == self.step or (not self.role and self.step == f"{NODE}-0"):
            yield from ((one.name, one) for one in self.others if one.name in _INITIALIZERS)


def job_of(raw: Raw) -> str:
    """Return the name of the TrainJob or Job that a raw pod belongs to; empty where it belongs to none."""
    labels = raw["metadata"].get("labels") or {}
    return str(labels.get(JOBSET_LABEL) or labels.get(JOB_LABEL) or labels.get("job-name") or "")


def read(raw: Raw, main: str = NODE, job: str | None = None, step: str | None = None) -> PodFacts:
    """Return what is known of a raw pod.

    Args:
        raw: The pod as the server sends it.
        main: The container that does its work, where there is one of that name.
        job: The job it belongs to; None for what the labels of Kubernetes' own controllers say.
        step: The step it is; None likewise.
    """
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels = metadata.get("labels") or {}
    does, others = _containers(spec, status, main, in_jobset=JOBSET_LABEL in labels)
    scheduled = _condition(status, "PodScheduled", "False")
    disrupted = _condition(status, "DisruptionTarget", "True") or _silent(status)
    return PodFacts(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        job=intern(job or job_of(raw)),
        step=intern(step or _step(metadata, spec, does.name)),
        phase=intern(status.get("phase") or "Pending"),
        created=time_of(metadata.get("creationTimestamp")),
        main=does,
        others=others,
        role=intern(str(labels.get(_ROLE_LABEL, ""))),
        node=intern(spec["nodeName"]) if spec.get("nodeName") else None,
        assigned=time_of(status.get("startTime")),
        unscheduled=intern(scheduled.get("reason") or ""),
        unscheduled_message=intern(one_line(scheduled.get("message"))),
        disruption=intern(disrupted.get("reason") or ""),
        disruption_message=one_line(disrupted.get("message"), _MESSAGE_LIMIT),
        reason=intern(status.get("reason") or ""),
        message=one_line(status.get("message"), _MESSAGE_LIMIT),
        deleted=time_of(metadata.get("deletionTimestamp")),
        device=_device(spec, does.name),
    )


def by_step(pods: Iterable[PodFacts]) -> dict[str, list[PodFacts]]:
    """Return the pods of each step, oldest first: initializers, then nodes by number, then others."""
    found: dict[str, list[PodFacts]] = {}
    for pod in sorted(pods, key=_age):
        for step, _ in pod.parts:
            found.setdefault(step, []).append(pod)
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def _age(pod: PodFacts) -> tuple[float, str]:
    return pod.created.timestamp() if pod.created else 0.0, pod.name


def _order(step: str) -> tuple[int, int, str]:
    if step in _INITIALIZERS:
        return _INITIALIZERS.index(step), 0, step
    kind, _, number = step.rpartition("-")
    return (2 if kind == NODE else 3, int(number) if number.isdecimal() else 0, step)


def _step(metadata: Raw, spec: Raw, container: str) -> str:
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    role = labels.get(_ROLE_LABEL)
    if role is None or container in _INITIALIZERS:
        return container
    if role == LAUNCHER:
        return f"{NODE}-0"
    text = str(labels.get(_INDEX) or annotations.get(_INDEX) or "")
    index = int(text) if text.isdecimal() else 0
    if container != NODE:
        return f"{role}-{index}"
    behind_launcher = role == NODE and any(volume.get("name") == _MPI_VOLUME for volume in spec.get("volumes") or ())
    return f"{NODE}-{index + 1 if behind_launcher else index}"


def _containers(
    spec: Raw, status: Raw, main: str, in_jobset: bool
) -> tuple[ContainerFacts, tuple[ContainerFacts, ...]]:
    """The container that does the work, and others worth knowing of."""
    images = {one["name"]: one.get("image") or "" for one in _all(spec, "containers", "initContainers")}
    states = {one["name"]: one for one in _all(status, "containerStatuses", "initContainerStatuses")}
    known = [_container(name, image, states.get(name) or {}) for name, image in images.items()]
    wanted = (main, *_INITIALIZERS)
    first = min(known, key=lambda one: wanted.index(one.name) if one.name in wanted else len(wanted))
    rest = (one for one in known if one is not first)
    return first, tuple(one for one in rest if one.in_trouble or (not in_jobset and one.name in _INITIALIZERS))


def _all(part: Raw, *keys: str) -> list[dict[str, Any]]:
    return [one for key in keys for one in part.get(key) or ()]


def _container(name: str, image: str, status: Raw) -> ContainerFacts:
    state = status.get("state") or {}
    waiting, running = state.get("waiting") or {}, state.get("running")
    return ContainerFacts(
        name=intern(name),
        image=intern(image),
        waiting=intern(waiting.get("reason") or ""),
        message=one_line(waiting.get("message"), _MESSAGE_LIMIT),
        running=time_of(running.get("startedAt")) if running else None,
        ended=_ended(state.get("terminated")),
        last=_ended((status.get("lastState") or {}).get("terminated")),
        restarts=status.get("restartCount") or 0,
    )


def _ended(raw: Raw | None) -> Ended | None:
    if not raw:
        return None
    return Ended(
        exit_code=_exit_code(raw),
        reason=intern(raw.get("reason") or ""),
        message=raw.get("message") or "",
        started=time_of(raw.get("startedAt")),
        finished=time_of(raw.get("finishedAt")),
    )


def _exit_code(raw: Raw) -> int:
    """A container's shell or runtime adds 128 to the signal that ended it; `subprocess` says it with a minus."""
    code, signal = int(raw.get("exitCode") or 0), raw.get("signal")
    if signal:
        return -int(signal)
    return 128 - code if 128 < code <= 128 + _MAX_SIGNAL else code


def _device(spec: Raw, name: str) -> tuple[str, str] | None:
    named: Iterator[Raw] = (one for one in spec.get("containers") or () if one["name"] == name)
    limits = (next(named, {}).get("resources") or {}).get("limits")
    try:
        found = resources.device(limits or {})
    except ValueError:
        return None  # Resources that we would not ask for; Kubernetes knows better.
    return (intern(found[0]), intern(found[1])) if found else None


def _silent(status: Raw) -> Raw:
    """A machine that does not answer: its pods are marked as not ready by others, its containers are not."""
    marked = _condition(status, "ContainersReady", "True") and _condition(status, "Ready", "False")
    return {"reason": "NodeNotReady"} if marked and marked.get("reason") != "ReadinessGatesNotReady" else {}


def _condition(status: Raw, kind: str, value: str) -> Raw:
    found = (one for one in status.get("conditions") or () if one.get("type") == kind and one.get("status") == value)
    return next(found, {})
