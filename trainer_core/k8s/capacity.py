"""What pods without a node wait for: messages of kube-scheduler, autoscalers and Kueue, which no API promises. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

from trainer_core.k8s.events import WORKLOAD_KIND, EventRecord
from trainer_core.k8s.failure_reasons import BlockingReason
from trainer_core.k8s.parsing import to_single_line
from trainer_core.k8s.pod_state import PodState

#: Event of a scheduler that finds no node, and of Karpenter that can add none.
SCHEDULING_EVENT = "FailedScheduling"
_SCALE_UP, _NO_SCALE_UP, _NOMINATED = "TriggeredScaleUp", "NotTriggerScaleUp", "Nominated"
_KARPENTER = "karpenter"
#: Schedulers with queues: a pod that they do not schedule waits for its turn.
_QUEUE_SCHEDULERS = frozenset({"volcano", "kai-scheduler", "runai-scheduler"})
#: Autoscalers give a new node 15 to 20 minutes to become ready.
_SCALE_UP_AGE = timedelta(minutes=20)
#: A pod that no node group can hold: time between two such answers, and from the first one to the end of the wait.
_REPEATED = timedelta(seconds=30)
_HOPELESS = timedelta(minutes=2)
_MAX_LENGTH = 400
_LIMIT_REACHED = re.compile(
    r"in backoff|max node group size|max cluster .*limit|max total nodes|not ready|exceed limits for nodepool"
    r"|limits have been exhausted|insufficient capacity",
    re.IGNORECASE,
)
#: Parts of a refusal that a larger or another node would not have. A volume may still be created.
_REFUSED = re.compile(r"affinity|selector|taint|tolerate|Insufficient|incompatible|no instance type", re.IGNORECASE)
#: Between the reasons of cluster-autoscaler, which begin with a number of node groups, and between those of Karpenter.
_SEPARATOR = re.compile(r", (?=\d)|; ")
_INSUFFICIENT = re.compile(r"Insufficient ([\w/-]+(?:\.[\w/-]+)*)")
_VOLUME = re.compile(r"PersistentVolumeClaim|volume", re.IGNORECASE)
#: In the answer of kube-scheduler: reasons for which an existing node will not take the pod later, either.
_PERMANENT = re.compile(
    r"\d+ (node\(s\) (didn't match Pod's node affinity/selector|had untolerated taint \{(?!node\.).*\})"
    r"|Insufficient \S+)",
    re.IGNORECASE,
)
_NODES = re.compile(r"^0/\d+ nodes are available: ")
_PREEMPTION = re.compile(r"\. (no new claims to deallocate, )?preemption: ", re.IGNORECASE)
_UNHELPFUL = "Preemption is not helpful"
_NO_VICTIMS = "No preemption victims"


#: Event of Kueue about the Workload of a job that it cannot admit now; the message of one that it can never admit, and
#: of one that another flavor or a preemption may still help.
_KUEUE_EVENT = "Pending"
_EXCEEDS_CAPACITY = re.compile(r"> maximum capacity")
_MAY_BE_ADMITTED = re.compile(r"unused quota|preemption", re.IGNORECASE)


class _State(IntEnum):
    """What a pod waits for, the worst last."""

    CAPACITY = 0
    QUEUE = 1
    FULL = 2
    UNKNOWN = 3
    NEVER = 4


_TEXTS = {
    _State.CAPACITY: "waits for capacity: the autoscaler adds a node",
    _State.FULL: "waits for capacity: the autoscaler cannot add a node now",
    _State.NEVER: "no node group can hold the pod",
}


@dataclass(frozen=True)
class SchedulingLimits:
    """How long a pod may wait for a reason that nothing explains."""

    #: Time of the API server.
    now: datetime
    #: Seconds.
    grace: float


@dataclass(frozen=True)
class WaitingPod:
    """A pod without a Kubernetes node."""

    name: str
    #: Reason of `PodScheduled=False`; empty if only an event is known.
    reason: str = ""
    #: Message of the condition or event.
    message: str = ""
    #: When it was first not scheduled.
    since: datetime | None = None
    scheduler: str = ""

    @classmethod
    def from_pod(cls, pod: PodState) -> WaitingPod:
        """Return the state of a pod whose condition `PodScheduled` is False."""
        since = pod.unscheduled_since or pod.creation_timestamp
        return cls(pod.name, pod.unscheduled_reason, pod.unscheduled_message, since, pod.scheduler_name)


@dataclass(frozen=True)
class _Answer:
    """What one source reports about a pod: its state, since when, and in which words."""

    state: _State
    text: str
    since: datetime | None


def explain_waiting(
    pods: Sequence[WaitingPod], events: Sequence[EventRecord], limits: SchedulingLimits | None
) -> BlockingReason:
    """Explain what the pods wait for: the worst state of them all, unless an autoscaler adds a node for one."""
    reported = {pod.name: _find_report(pod, events, limits) for pod in pods}
    shared = max((each for each in reported.values() if each), key=lambda each: each.state, default=None)
    answers = [_answer(pod, reported[pod.name] or shared) for pod in pods]
    if any(each.state is _State.CAPACITY for each in answers):
        worst = next(each for each in answers if each.state is _State.CAPACITY)
    else:
        worst = max(answers, key=lambda each: each.state)
    return BlockingReason("unschedulable", worst.text, _compute_grace(worst.state, answers, limits))


def explain_queue(
    queue: str, events: Iterable[EventRecord], limits: SchedulingLimits | None
) -> tuple[str, float | None]:
    """Explain what a job in a queue of Kueue waits for."""
    waiting = f"queued: waits for admission by Kueue queue {queue!r}"
    answers = [event for event in events if (event.object_kind, event.reason) == (WORKLOAD_KIND, _KUEUE_EVENT)]
    if not answers:
        return waiting, None
    message = answers[-1].message
    if limits is None or not _EXCEEDS_CAPACITY.search(message) or _MAY_BE_ADMITTED.search(message):
        return _truncate(f"{waiting}: {message}"), None
    age = (limits.now - answers[-1].began).total_seconds()
    text = f"Kueue queue {queue!r} can never admit it: {message}"
    return _truncate(text), max(0.0, _HOPELESS.total_seconds() - age)


def _answer(pod: WaitingPod, report: _Answer | None) -> _Answer:
    if pod.reason == "SchedulingGated":
        return _Answer(_State.QUEUE, f"pod has scheduling gates: {pod.message}", pod.since)
    if pod.scheduler in _QUEUE_SCHEDULERS:
        return _Answer(_State.QUEUE, _truncate(f"waits in a queue of {pod.scheduler}: {pod.message}"), pod.since)
    if report is None or (report.state is _State.NEVER and not _is_refused_for_good(pod.message)):
        return _Answer(_State.UNKNOWN, _describe(pod.message), pod.since)
    return report


def _describe(message: str) -> str:
    """Describe why a scheduler finds no node."""
    insufficient = list(dict.fromkeys(_INSUFFICIENT.findall(message)))
    if insufficient:
        what = f"no Kubernetes node has enough {' and '.join(insufficient)}"
    elif _VOLUME.search(message):
        what = "volume is not available"
    else:
        what = "no Kubernetes node accepts the pod"
    return _truncate(f"{what}: {message}")


def _find_report(pod: WaitingPod, events: Iterable[EventRecord], limits: SchedulingLimits | None) -> _Answer | None:
    """Return the most hopeful answer of the autoscalers: each cares for its own node groups only."""
    sources: dict[bool, list[tuple[_State, EventRecord]]] = {}
    for event in events:
        if event.object_name == pod.name and (state := _classify(event)) is not None:
            sources.setdefault(event.component == _KARPENTER, []).append((state, event))
    reports = [report for history in sources.values() if (report := _summarize(history, limits))]
    return min(reports, key=lambda each: each.state, default=None)


def _classify(event: EventRecord) -> _State | None:
    """Return what an event of an autoscaler reports; None for other events."""
    if event.reason in (_SCALE_UP, _NOMINATED):
        return _State.CAPACITY
    refusal = event.reason == _NO_SCALE_UP or (event.reason == SCHEDULING_EVENT and event.component == _KARPENTER)
    if not refusal:
        return None
    if _LIMIT_REACHED.search(event.message):
        return _State.FULL
    reasons = _SEPARATOR.split(event.message)
    is_final = all(_REFUSED.search(reason) for reason in reasons) and not _VOLUME.search(event.message)
    return _State.NEVER if is_final else _State.UNKNOWN


def _summarize(history: Sequence[tuple[_State, EventRecord]], limits: SchedulingLimits | None) -> _Answer | None:
    """Return the newest answer of one autoscaler; None if it is out of date or not yet certain."""
    state, newest = history[-1]
    if state is _State.UNKNOWN:
        return None
    if state is _State.CAPACITY and limits is not None and limits.now - newest.timestamp >= _SCALE_UP_AGE:
        return None
    first = newest.began
    for earlier, event in reversed(history):
        if earlier is not state:
            break
        first = event.began
    if state is _State.NEVER and newest.timestamp - first < _REPEATED:
        return None
    return _Answer(state, _truncate(f"{_TEXTS[state]}: {newest.message}"), first)


def _is_refused_for_good(message: str) -> bool:
    """Return whether no existing node takes the pod later: kube-scheduler distinguishes it where resources lack."""
    nodes, *preemption = _PREEMPTION.split(_NODES.sub("", message))
    reasons = nodes.rstrip(".").split(", ")
    if not all(_PERMANENT.fullmatch(reason) for reason in reasons):
        return False
    outlook = preemption[-1] if preemption else ""
    return "Insufficient" not in nodes or (_UNHELPFUL in outlook and _NO_VICTIMS not in outlook)


def _compute_grace(state: _State, answers: Iterable[_Answer], limits: SchedulingLimits | None) -> float | None:
    if limits is None or state not in (_State.UNKNOWN, _State.NEVER):
        return None
    allowed = _HOPELESS.total_seconds() if state is _State.NEVER else limits.grace
    since = min((each.since for each in answers if each.state is state and each.since), default=limits.now)
    return max(0.0, allowed - (limits.now - since).total_seconds())


def _truncate(text: str) -> str:
    return to_single_line(text, _MAX_LENGTH)
