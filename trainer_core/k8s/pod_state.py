"""PodState: the parsed state of a pod and its step, small enough that the informer caches one per pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from sys import intern
from typing import Any

from trainer_core.base import resources
from trainer_core.k8s.parsing import RawObject, parse_time, to_single_line
from trainer_core.k8s.runtimes import DATASET_INITIALIZER, MODEL_INITIALIZER, NODE

#: Name of the replicated job that runs mpirun in an MPI job.
LAUNCHER = "launcher"
#: Pod label with the name of the JobSet, which is the name of the TrainJob.
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
#: Pod label with the name of a plain Job.
JOB_LABEL = "batch.kubernetes.io/job-name"

_REPLICATED_JOB_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_INITIALIZERS = (DATASET_INITIALIZER, MODEL_INITIALIZER)
#: Volume that Trainer's MPI plugin adds to the launcher pod and to the node pods.
_MPI_VOLUME = "mpi-ssh-auth"
_MAX_MESSAGE_LENGTH = 300
_MAX_SIGNAL = 64
#: Waiting reasons of a container that starts normally.
_NORMAL_WAITING_REASONS = frozenset({"", "ContainerCreating", "PodInitializing"})


@dataclass(frozen=True, slots=True)
class ContainerTermination:
    """A terminated run of a container (`ContainerStateTerminated`)."""

    #: Exit code; negative signal number if a signal terminated the container.
    exit_code: int
    reason: str = ""
    #: Complete termination message.
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def failed(self) -> bool:
        """Whether the exit code is not 0."""
        return self.exit_code != 0


@dataclass(frozen=True, slots=True)
class ContainerState:
    """State of a container."""

    name: str
    #: Image in the pod spec.
    image: str = ""
    #: `state.waiting.reason`; empty if the container is not waiting.
    waiting_reason: str = ""
    waiting_message: str = ""
    running_since: datetime | None = None
    terminated: ContainerTermination | None = None
    #: `lastState.terminated`: the run before the current one.
    last_terminated: ContainerTermination | None = None
    #: Number of restarts.
    restart_count: int = 0

    @property
    def latest_termination(self) -> ContainerTermination | None:
        """The most recent terminated run."""
        return self.terminated or self.last_terminated

    @property
    def crash_count(self) -> int:
        """Number of failed runs that the pod status shows."""
        latest = self.latest_termination
        if latest is None or not latest.failed:
            return 0
        # In a running container, the restart after the latest termination is already counted.
        return self.restart_count if self.running_since else self.restart_count + 1

    @property
    def has_problem(self) -> bool:
        """Whether the container has failed or waits for another reason than a normal start."""
        return self.waiting_reason not in _NORMAL_WAITING_REASONS or self.crash_count > 0


@dataclass(frozen=True, slots=True)
class PodState:
    """State of a pod."""

    name: str
    uid: str
    job_name: str
    step: str
    phase: str
    creation_timestamp: datetime | None
    #: Container that does the work of the step.
    main_container: ContainerState
    #: Containers that have a problem, and initializer containers of a pod without a JobSet.
    other_containers: tuple[ContainerState, ...] = ()
    #: Replicated job that the pod belongs to; empty without a JobSet.
    replicated_job: str = ""
    node_name: str | None = None
    #: `status.startTime`: when the kubelet accepted the pod.
    start_time: datetime | None = None
    #: Reason of `PodScheduled=False`: `Unschedulable` or `SchedulingGated`.
    unscheduled_reason: str = ""
    #: Message of that condition.
    unscheduled_message: str = ""
    #: When the scheduler first found no node.
    unscheduled_since: datetime | None = None
    scheduler_name: str = ""
    #: Reason of `DisruptionTarget=True`, such as `PreemptionByScheduler`.
    disruption_reason: str = ""
    #: Message of that condition.
    disruption_message: str = ""
    #: `status.reason`, such as `Evicted`.
    reason: str = ""
    message: str = ""
    deletion_timestamp: datetime | None = None
    device: tuple[str, str] | None = None

    @property
    def started_at(self) -> datetime | None:
        """When the main container started for the first time."""
        return self.get_started_at(self.main_container)

    def get_started_at(self, container: ContainerState) -> datetime | None:
        """Return when a container first started; after a restart, of which the status lacks it, when the pod did."""
        if container.restart_count:
            return self.start_time
        return container.running_since or (container.terminated.started_at if container.terminated else None)

    @property
    def step_containers(self) -> Iterator[tuple[str, ContainerState]]:
        """The steps that the pod runs, each with its container.

        One step, plus one for each initializer container that has no separate pod. Where every node has initializer
        containers, only those of the first node count.
        """
        yield self.step, self.main_container
        if self.main_container.name == self.step or (not self.replicated_job and self.step == f"{NODE}-0"):
            for container in self.other_containers:
                if container.name in _INITIALIZERS:
                    yield container.name, container


def get_job_name(raw: RawObject) -> str:
    """Return the name of the TrainJob or Job that a raw pod belongs to; empty if its labels name none."""
    labels = raw["metadata"].get("labels") or {}
    return str(labels.get(JOBSET_LABEL) or labels.get(JOB_LABEL) or labels.get("job-name") or "")


def parse_pod(raw: RawObject, main: str = NODE, job: str | None = None, step: str | None = None) -> PodState:
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels = metadata.get("labels") or {}
    main_container, other_containers = _parse_containers(spec, status, main, in_jobset=JOBSET_LABEL in labels)
    scheduled = _find_condition(status, "PodScheduled", "False")
    disrupted = _find_condition(status, "DisruptionTarget", "True") or _detect_unresponsive_node(status)
    return PodState(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        job_name=intern(job or get_job_name(raw)),
        step=intern(step or _get_step(metadata, spec, main_container.name)),
        phase=intern(status.get("phase") or "Pending"),
        creation_timestamp=parse_time(metadata.get("creationTimestamp")),
        main_container=main_container,
        other_containers=other_containers,
        replicated_job=intern(str(labels.get(_REPLICATED_JOB_LABEL, ""))),
        node_name=intern(spec["nodeName"]) if spec.get("nodeName") else None,
        start_time=parse_time(status.get("startTime")),
        unscheduled_reason=intern(scheduled.get("reason") or ""),
        unscheduled_message=intern(to_single_line(scheduled.get("message"))),
        unscheduled_since=parse_time(scheduled.get("lastTransitionTime")),
        scheduler_name=intern(spec.get("schedulerName") or ""),
        disruption_reason=intern(disrupted.get("reason") or ""),
        disruption_message=to_single_line(disrupted.get("message"), _MAX_MESSAGE_LENGTH),
        reason=intern(status.get("reason") or ""),
        message=to_single_line(status.get("message"), _MAX_MESSAGE_LENGTH),
        deletion_timestamp=parse_time(metadata.get("deletionTimestamp")),
        device=_parse_device(spec, main_container.name),
    )


def group_pods_by_step(pods: Iterable[PodState]) -> dict[str, list[PodState]]:
    """Return the pods of each step, oldest first; steps are ordered: initializers, nodes by index, others."""
    groups: dict[str, list[PodState]] = {}
    for pod in sorted(pods, key=_get_age_key):
        for step, _ in pod.step_containers:
            groups.setdefault(step, []).append(pod)
    return dict(sorted(groups.items(), key=lambda item: _get_step_key(item[0])))


def _get_age_key(pod: PodState) -> tuple[float, str]:
    return pod.creation_timestamp.timestamp() if pod.creation_timestamp else 0.0, pod.name


def _get_step_key(step: str) -> tuple[int, int, str]:
    if step in _INITIALIZERS:
        return _INITIALIZERS.index(step), 0, step
    prefix, _, index = step.rpartition("-")
    return (2 if prefix == NODE else 3, int(index) if index.isdecimal() else 0, step)


def _get_step(metadata: RawObject, spec: RawObject, container: str) -> str:
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    replicated_job = labels.get(_REPLICATED_JOB_LABEL)
    if replicated_job is None or container in _INITIALIZERS:
        return container
    if replicated_job == LAUNCHER:
        return f"{NODE}-0"
    text = str(labels.get(_COMPLETION_INDEX) or annotations.get(_COMPLETION_INDEX) or "")
    index = int(text) if text.isdecimal() else 0
    if container != NODE:
        return f"{replicated_job}-{index}"
    volumes = spec.get("volumes") or ()
    # With MPI the launcher is node-0, and the pods of the replicated job `node` follow it.
    follows_launcher = replicated_job == NODE and any(volume.get("name") == _MPI_VOLUME for volume in volumes)
    return f"{NODE}-{index + 1 if follows_launcher else index}"


def _parse_containers(
    spec: RawObject, status: RawObject, main: str, in_jobset: bool
) -> tuple[ContainerState, tuple[ContainerState, ...]]:
    """Return the main container, and the other containers that `PodState.other_containers` keeps."""
    images = {each["name"]: each.get("image") or "" for each in _concat(spec, "containers", "initContainers")}
    statuses = {each["name"]: each for each in _concat(status, "containerStatuses", "initContainerStatuses")}
    containers = [_parse_container(name, image, statuses.get(name) or {}) for name, image in images.items()]
    preferred = (main, *_INITIALIZERS)
    first = min(containers, key=lambda each: preferred.index(each.name) if each.name in preferred else len(preferred))
    others = (each for each in containers if each is not first)
    return first, tuple(each for each in others if each.has_problem or (not in_jobset and each.name in _INITIALIZERS))


def _concat(part: RawObject, *keys: str) -> list[dict[str, Any]]:
    return [entry for key in keys for entry in part.get(key) or ()]


def _parse_container(name: str, image: str, status: RawObject) -> ContainerState:
    state = status.get("state") or {}
    waiting, running = state.get("waiting") or {}, state.get("running")
    return ContainerState(
        name=intern(name),
        image=intern(image),
        waiting_reason=intern(waiting.get("reason") or ""),
        waiting_message=to_single_line(waiting.get("message"), _MAX_MESSAGE_LENGTH),
        running_since=parse_time(running.get("startedAt")) if running else None,
        terminated=_parse_termination(state.get("terminated")),
        last_terminated=_parse_termination((status.get("lastState") or {}).get("terminated")),
        restart_count=status.get("restartCount") or 0,
    )


def _parse_termination(raw: RawObject | None) -> ContainerTermination | None:
    if not raw:
        return None
    return ContainerTermination(
        exit_code=_parse_exit_code(raw),
        reason=intern(raw.get("reason") or ""),
        message=raw.get("message") or "",
        started_at=parse_time(raw.get("startedAt")),
        finished_at=parse_time(raw.get("finishedAt")),
    )


def _parse_exit_code(raw: RawObject) -> int:
    """Return the exit code; for a signal, 128 + signal becomes the negative number that `subprocess` uses."""
    code, signal = int(raw.get("exitCode") or 0), raw.get("signal")
    if signal:
        return -int(signal)
    return 128 - code if 128 < code <= 128 + _MAX_SIGNAL else code


def _parse_device(spec: RawObject, name: str) -> tuple[str, str] | None:
    containers: Iterator[RawObject] = (each for each in spec.get("containers") or () if each["name"] == name)
    limits = (next(containers, {}).get("resources") or {}).get("limits")
    try:
        device = resources.detect_device(limits or {})
    except ValueError:
        return None  # The server accepts quantities that this library does not.
    return (intern(device[0]), intern(device[1])) if device else None


def _detect_unresponsive_node(status: RawObject) -> RawObject:
    """Return NodeNotReady if the node controller has set Ready=False; ContainersReady stays True then."""
    unready = _find_condition(status, "ContainersReady", "True") and _find_condition(status, "Ready", "False")
    return {"reason": "NodeNotReady"} if unready and unready.get("reason") != "ReadinessGatesNotReady" else {}


def _find_condition(status: RawObject, type_: str, value: str) -> RawObject:
    conditions = status.get("conditions") or ()
    return next((each for each in conditions if each.get("type") == type_ and each.get("status") == value), {})
