"""PodFacts and EventFacts → why a job cannot start, or why it failed. Pure.

One list of findings serves both: what is wrong with a job that has not ended is what it is said to have failed of
once it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from trainer_core.cluster import pods as podfacts
from trainer_core.cluster import reasons
from trainer_core.cluster.events import EventFacts
from trainer_core.cluster.kinds import PODS
from trainer_core.cluster.pods import ContainerFacts, Ended, PodFacts
from trainer_core.cluster.raw import one_line
from trainer_core.cluster.reasons import GIVE_UP, WAIT, Hindrance
from trainer_core.diagnosis import Facts, StepFacts, diagnose
from trainer_core.inside.result import parse_record
from trainer_core.observation import Trouble
from trainer_core.outcome import Category

__all__ = ["facts", "needs_events", "trouble"]

Tails = Mapping[str, Sequence[str]]

#: A run longer than this was no part of a crash loop; kubelet forgets its back-off after as long.
_LONG_RUN = timedelta(minutes=10)
_CRASHES = 2
_LINE = 300
#: How a container ends that is told to, and one that does not.
_ENDED_BY_OTHERS = (-15, -9)
_REFUSED_BY_KUBELET = ("OutOf", "NodeAffinity", "UnexpectedAdmissionError", "TopologyAffinityError")
_CREATION = frozenset(
    {
        "TrainJobResourcesCreationFailed",
        "JobCreationFailed",
        "HeadlessServiceCreationFailed",
        "PVCCreationFailed",
        "FailedCreate",
        "FailedCreatePod",
    }
)
_MOUNT = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
_SANDBOX = "FailedCreatePodSandBox"
_UNSCHEDULED = "FailedScheduling"
_PULLING = "Failed"
_PULL_FAILED = "Failed to pull image"
_DISPLACED = {"Preempted": "PreemptionByScheduler", "Evicted": "Evicted", "NodeNotReady": "NodeNotReady"}
_DEADLINE = "DeadlineExceeded"
_REPLACED = (Category.PREEMPTED, Category.NODE_LOST)


@dataclass(frozen=True)
class _Finding:
    """Something wrong: what it is, for how long it may be so, and whether a step has ended of it."""

    facts: Facts
    grace: float | None
    ended: bool = False

    @property
    def rank(self) -> tuple[float, bool]:
        """What counts first, first: what cannot change, and what has happened over what is awaited."""
        return float("inf") if self.grace is None else self.grace, not self.ended


def trouble(pods: Sequence[PodFacts], events: Sequence[EventFacts] = (), tails: Tails | None = None) -> Trouble | None:
    """Say what is wrong with a job that has not ended; None where nothing is.

    Args:
        pods: Its pods.
        events: Its events, where the caller has them.
        tails: The last lines of logs, by step, where the caller has them.
    """
    found = sorted(_findings(pods, events, tails or {}), key=lambda one: one.rank)
    if not found:
        return None
    # Steps fail of each other: which one is the cause shows only where all that ended are looked at together.
    most = [one for one in found if (one.ended if found[0].ended else one.rank == found[0].rank)]
    diagnosis = diagnose(_merged(most))
    # What lost its machine gets another one, and its peers with it.
    return Trouble(diagnosis, None if diagnosis.category in _REPLACED else most[0].grace)


def facts(
    pods: Sequence[PodFacts], events: Sequence[EventFacts] = (), tails: Tails | None = None, message: str = ""
) -> Facts:
    """Say what is known of a job that has failed.

    Args:
        pods: Its pods, those that are gone by now included where the caller remembers them.
        events: Its events, where the caller has them.
        tails: The last lines of logs, by step, where the caller has them.
        message: What the job itself says of its failure.
    """
    found = list(_findings(pods, events, tails or {}))
    ended = [one for one in found if one.ended]
    warnings = [event.message for event in events if event.warning]
    says = "; ".join(filter(None, [message, *warnings[-1:]]))
    return replace(_merged(ended or found), message=says)


def needs_events(pods: Sequence[PodFacts]) -> bool:
    """Say whether events would tell what the pods of a job do not: why there are none, or why one does not start."""
    newest = [group[-1] for group in podfacts.by_step(pods).values()]
    return not newest or any(pod.phase == "Pending" and not _tells_why(pod) for pod in newest)


def _tells_why(pod: PodFacts) -> bool:
    return bool(pod.unscheduled) or any(one.in_trouble and not _lacks_text(one) for one in _of(pod))


def _lacks_text(container: ContainerFacts) -> bool:
    """Before Kubernetes 1.32, what the registry answered is in an event only once kubelet backs off."""
    return container.waiting == "ImagePullBackOff" and "ErrImagePull" not in container.message


def _merged(found: Sequence[_Finding]) -> Facts:
    """One set of facts of several: their steps in the order in which they ended, and the first of everything else."""
    first: dict[str, Any] = {
        name: next((value for one in found if (value := getattr(one.facts, name))), None)
        for name in ("deadline_error", "image_error", "infrastructure_error", "rejected", "unschedulable")
    }
    steps = tuple(step for one in found for step in one.facts.steps)
    return Facts(steps=steps, passing=any(one.facts.passing for one in found), **first)


def _findings(pods: Sequence[PodFacts], events: Sequence[EventFacts], tails: Tails) -> Iterator[_Finding]:
    by_step = podfacts.by_step(pods)
    ended = [one for step, group in by_step.items() for one in _ended(step, group, tails)]
    yield from (one for _, one in sorted(ended, key=lambda item: item[0]))
    for step, group in by_step.items():
        yield from _hindrances(step, group[-1], events)
    yield from _job_events(pods, events)


# --- what has ended -----------------------------------------------------------------------------------------------


def _ended(step: str, group: Sequence[PodFacts], tails: Tails) -> Iterator[tuple[float, _Finding]]:
    """What a step ended of, with when; nothing where its newest pod is well and no older one failed."""
    newest = group[-1]
    if newest.phase == "Succeeded":
        return
    if why := _left_its_machine(newest):
        facts = Facts(steps=[_step(step, newest, None, tails, **why)])
        yield _when(newest.main.last_end), _Finding(facts, None, ended=True)
    elif newest.phase == "Failed" and newest.reason == _DEADLINE:
        facts = Facts(deadline_error=newest.message or "its pod ran too long", steps=[StepFacts(step)])
        yield 0.0, _Finding(facts, None, ended=True)
    else:
        for pod in reversed(group):
            if failed := _failed_container(step, pod):
                container, end = failed
                yield _when(end), _crash(step, group, pod, container, end, tails)
                return


def _failed_container(step: str, pod: PodFacts) -> tuple[ContainerFacts, Ended] | None:
    """The container that a pod failed of, the step's own before those beside it, and how it ended."""
    if _left_its_machine(pod):
        return None
    parts = dict(pod.parts)
    for container in [parts[step], *(one for one in pod.others if one.name not in parts)]:
        end = container.last_end
        if pod.deleted and end and end.exit_code in _ENDED_BY_OTHERS:
            # It was ended together with its pod; what it ended of before that is the reason, if anything.
            end = container.last if end is container.ended else None
        if end is not None and end.failed:
            return container, end
    return None


def _crash(
    step: str, group: Sequence[PodFacts], pod: PodFacts, container: ContainerFacts, end: Ended, tails: Tails
) -> _Finding:
    """A step that ended badly: hopeless from the second time on, unless it runs again or had run for long."""
    runs = group[-1].main.running is not None
    crashes = sum(one.crashes for each in group if not _left_its_machine(each) for one in _of(each, container.name))
    beside = container is not pod.main and container.name != step
    known = {"exit_code": None, "message": _beside(container, end)} if beside else {}
    facts = Facts(steps=[_step(step, pod, end, tails, **known)])
    if end.reason in reasons.NOT_STARTED:
        hindrance = reasons.container(end.reason, one_line(end.message, _LINE), container.image)
        if hindrance is not None:
            return _Finding(replace(_facts_of(hindrance), steps=facts.steps), hindrance.grace, ended=True)
    hopeless = crashes >= _CRASHES and not runs and _was_short(end)
    return _Finding(facts, GIVE_UP if hopeless else None, ended=True)


def _left_its_machine(pod: PodFacts) -> dict[str, str]:
    if pod.phase == "Succeeded":
        return {}
    unknown = pod.main.ended.reason if pod.main.ended else ""
    lost = "NodeLost" if pod.phase == "Unknown" else ""
    said = f"{pod.message} {pod.disruption_message}".strip() if pod.message != pod.disruption_message else pod.message
    for reason in (pod.reason, pod.disruption, unknown, lost):
        if reason and (why := reasons.displaced(reason, said)):
            return why
    return {}


def _of(pod: PodFacts, name: str | None = None) -> Iterable[ContainerFacts]:
    return (one for one in (pod.main, *pod.others) if name in (None, one.name))


def _beside(container: ContainerFacts, end: Ended) -> str:
    says = f": {one_line(end.message, _LINE)}" if end.message else ""
    return f"its container {container.name!r} ended with exit code {end.exit_code}{says}"


def _was_short(end: Ended) -> bool:
    return end.started is None or end.finished is None or end.finished - end.started < _LONG_RUN


def _when(end: Ended | None) -> float:
    return end.finished.timestamp() if end and end.finished else float("inf")


def _step(step: str, pod: PodFacts, end: Ended | None, tails: Tails, **known: Any) -> StepFacts:
    """What is known of a step that ended; what our own code left in its termination message included."""
    message = end.message if end else ""
    record = parse_record(message) or {}
    error = record.get("error") or {}
    told = [] if record else [line for line in message.splitlines() if line.strip()]
    found = StepFacts(
        name=step,
        exit_code=end.exit_code if end else None,
        node=pod.node or pod.name,
        error_type=error.get("type"),
        error_message=str(error.get("message", "")),
        traceback=error.get("traceback"),
        log_tail=tuple(tails.get(step) or told),
        out_of_memory=end is not None and end.reason == "OOMKilled",
        message=one_line(told[-1], _LINE) if told else "",
    )
    return replace(found, **known)


# --- what is awaited ----------------------------------------------------------------------------------------------


def _hindrances(step: str, pod: PodFacts, events: Sequence[EventFacts]) -> Iterator[_Finding]:
    """What keeps the newest pod of a step from running."""
    if pod.phase == "Failed" and pod.reason.startswith(_REFUSED_BY_KUBELET):
        text = f"its machine refused it: {pod.reason}: {pod.message}"
        yield _hindered(Hindrance("unschedulable", text, None), step, pod)
    if pod.phase != "Pending" and not any(one.waiting for one in _of(pod)):
        return
    if pod.unscheduled:
        yield _hindered(reasons.scheduling(pod.unscheduled, pod.unscheduled_message), step, pod)
        return
    own = [event for event in events if event.warning and event.kind == PODS.kind and event.name == pod.name]
    found = [one for each in _of(pod) if (one := _waiting(each, own))]
    if not found and pod.main.running is None:
        found = [one for event in own[-1:] if (one := _by_event(event))]
    yield from (_hindered(one, step, pod) for one in found)


def _waiting(container: ContainerFacts, events: Sequence[EventFacts]) -> Hindrance | None:
    message = container.message
    if _lacks_text(container):
        pulls = [event.message for event in events if event.reason == _PULLING and container.image in event.message]
        message = next((text for text in reversed(pulls) if "pull" in text.lower()), message)
    return reasons.container(container.waiting, message, container.image)


def _by_event(event: EventFacts) -> Hindrance | None:
    if event.reason in _MOUNT:
        return reasons.mount(event.message)
    if event.reason == _SANDBOX:
        return Hindrance("infrastructure_error", f"its machine cannot start its pod: {event.message}", WAIT)
    if event.reason == _UNSCHEDULED:
        return reasons.scheduling("", event.message)
    return None


def _job_events(pods: Sequence[PodFacts], events: Sequence[EventFacts]) -> Iterator[_Finding]:
    """What events say of parts that are not there: refused, or not to be seen by whoever asks."""
    seen = [event for event in events if event.kind == PODS.kind]
    times = [pod.created for pod in pods if pod.created] + [event.time for event in seen]
    refused = [event for event in events if event.reason in _CREATION and all(event.time > time for time in times)]
    if refused:
        hindrance = reasons.creation(refused[-1].message)
        yield _Finding(_facts_of(hindrance), hindrance.grace)
    if pods:
        return
    for event in events:
        if event.reason == _DEADLINE:
            yield _Finding(Facts(deadline_error=event.message), None, ended=True)
    if seen:
        yield from _unseen_pod(seen)


def _unseen_pod(events: Sequence[EventFacts]) -> Iterator[_Finding]:
    """What the last event of pods says that are gone, or that may not be read."""
    event = events[-1]
    # Events of one second have no order.
    own = (one for one in events if one.name == event.name and one.reason in _DISPLACED)
    displaced = next(own, None)
    if displaced is not None:
        why: dict[str, Any] = reasons.displaced(_DISPLACED[displaced.reason], displaced.message)
        yield _Finding(Facts(steps=[StepFacts(event.name, node=event.name, **why)]), None, ended=True)
        return
    if event.reason in (_PULLING, "BackOff") and "image" in event.message.lower():
        # What the registry has answered is in one event of several.
        answers = (one.message for one in reversed(events) if one.message.startswith(_PULL_FAILED))
        hindrance: Hindrance | None = reasons.image("ErrImagePull", next(answers, event.message), "")
    else:
        hindrance = _by_event(event)
    if hindrance is not None:
        yield _Finding(_facts_of(hindrance), hindrance.grace)


def _hindered(hindrance: Hindrance, step: str, pod: PodFacts) -> _Finding:
    return _Finding(replace(_facts_of(hindrance), steps=[StepFacts(step, node=pod.node or pod.name)]), hindrance.grace)


def _facts_of(hindrance: Hindrance) -> Facts:
    fields: dict[str, Any] = {hindrance.kind: hindrance.text}
    return Facts(passing=hindrance.passing, **fields)
