"""Failure detection: from the pods and events of a job to why it cannot start or why it failed.

A pending failure (of an active job) and the failure of a job that has ended are computed from the same findings. Pure
functions without I/O. `failure_reasons` classifies what blocks a start; `trainer_core.lifecycle.diagnosis` turns the
`Facts` of this module into a diagnosis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from trainer_core.k8s import failure_reasons
from trainer_core.k8s.capacity import SCHEDULING_EVENT, SchedulingLimits, WaitingPod, explain_waiting
from trainer_core.k8s.events import EventRecord
from trainer_core.k8s.failure_reasons import FATAL, LONG_GRACE, BlockingReason
from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.parsing import to_single_line
from trainer_core.k8s.pod_state import ContainerState, ContainerTermination, PodState, group_pods_by_step
from trainer_core.k8s.resources import JOBS, PODS
from trainer_core.k8s.runtimes import NODE
from trainer_core.lifecycle.diagnosis import Facts, StepFacts, diagnose
from trainer_core.model.jobs import Category, PendingFailure, extract_training_state
from trainer_core.model.logs import find_last_progress
from trainer_core.model.resource_use import strip_resource_report
from trainer_core.node.launch import WAITING
from trainer_core.node.termination import parse_record

#: Last log lines by step.
Tails = Mapping[str, Sequence[str]]

#: A run that lasted longer is not part of a crash loop: the kubelet resets its back-off after the same time.
_LONG_RUN = timedelta(minutes=10)
#: Number of crashes from which on a crash loop is fatal.
_CRASH_LOOP = 2
#: Time for which a job may wait before the events of autoscalers and queues are read.
SHORT_WAIT = timedelta(seconds=30)
#: Time after which a node that runs while another has succeeded may be waiting for it.
_LEFT_TIME = timedelta(minutes=1)
_MAX_MESSAGE_LENGTH = 300
#: Exit codes of a container that is terminated with its pod: by SIGTERM, or by SIGKILL after the grace period.
_TERMINATION_EXIT_CODES = (-15, -9)
#: Reasons of a termination that add nothing to its exit code.
_NO_REASONS = ("", "Error")
#: Prefixes of `status.reason` of a pod that the kubelet rejected.
_KUBELET_REJECTIONS = ("OutOf", "NodeAffinity", "UnexpectedAdmissionError", "TopologyAffinityError")
_CREATION_EVENTS = frozenset(
    {
        "TrainJobResourcesCreationFailed",
        "JobCreationFailed",
        "HeadlessServiceCreationFailed",
        "PVCCreationFailed",
        "FailedCreate",
        "FailedCreatePod",
    }
)
_MOUNT_EVENTS = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
_SANDBOX_EVENT = "FailedCreatePodSandBox"
_PULL_EVENT = "Failed"
_PULL_MESSAGE = "Failed to pull image"
#: Reasons of disruption events, with the reason of the pod condition that means the same.
_DISRUPTION_EVENTS = {"Preempted": "PreemptionByScheduler", "Evicted": "Evicted", "NodeNotReady": "NodeNotReady"}
_DEADLINE = "DeadlineExceeded"
#: Categories after which the controller creates a replacement pod.
_REPLACED = (Category.PREEMPTED, Category.NODE_LOST)


@dataclass(frozen=True)
class _Finding:
    """A problem of a job."""

    #: Facts for the diagnosis.
    facts: Facts
    #: Seconds that the problem may last; None for no limit.
    grace: float | None
    #: Whether a step has ended because of it.
    ended: bool = False

    @property
    def sort_key(self) -> tuple[float, bool]:
        """Order by severity: the shortest grace first; a step that has ended before one that waits."""
        return float("inf") if self.grace is None else self.grace, not self.ended


def detect_pending_failure(
    pods: Sequence[PodState],
    events: Sequence[EventRecord] = (),
    tails: Tails | None = None,
    limits: SchedulingLimits | None = None,
    job: JobState | None = None,
) -> PendingFailure | None:
    """Return the most severe problem of an active job; None if there is none."""
    problems = _find_problems(pods, events, tails or {}, limits, job, is_active=True)
    findings = sorted(problems, key=lambda finding: finding.sort_key)
    if not findings:
        return None
    # A failed step makes its peers fail; the diagnosis finds the cause only if it gets all steps that have ended.
    first = findings[0]
    selected = [each for each in findings if (each.ended if first.ended else each.sort_key == first.sort_key)]
    diagnosis = diagnose(replace(_merge_facts(selected), memory=job.memory if job else None))
    if diagnosis.category is Category.OUT_OF_MEMORY and diagnosis.retryable:
        # The next attempt asks for more memory; a restart of the container has as much as before.
        return PendingFailure(diagnosis, FATAL)
    if diagnosis.category is Category.STALLED and job is not None and (job.num_nodes or 1) > 1:
        # One node that is restarted cannot join the others again.
        return PendingFailure(diagnosis, FATAL)
    # After a disruption the controller replaces the pod and its peers.
    return PendingFailure(diagnosis, None if diagnosis.category in _REPLACED else selected[0].grace)


def collect_failure_facts(
    pods: Sequence[PodState], events: Sequence[EventRecord] = (), tails: Tails | None = None, message: str = ""
) -> Facts:
    """Collect the facts about a failed job for its diagnosis."""
    findings = list(_find_problems(pods, events, tails or {}))
    if not findings:
        # A pod may have been removed just after it was last read: it is known as running.
        disruption = _find_disruption_event(events, {pod.name for pod in pods})
        findings = [disruption] if disruption else []
    ended = [finding for finding in findings if finding.ended]
    warnings = [event.message for event in events if event.is_warning]
    return replace(_merge_facts(ended or findings), message="; ".join(filter(None, [message, *warnings[-1:]])))


def needs_events(pods: Sequence[PodState], now: datetime | None = None) -> bool:
    """Return whether events can explain missing pods, one that does not start, or whether an autoscaler adds a node."""
    newest = [group[-1] for group in group_pods_by_step(pods).values()]
    return not newest or any(
        pod.phase == "Pending" and (not _explains_itself(pod) or _waits_for_node(pod, now)) for pod in newest
    )


def _waits_for_node(pod: PodState, now: datetime | None) -> bool:
    since = pod.unscheduled_since
    return now is not None and since is not None and now - since >= SHORT_WAIT


def _explains_itself(pod: PodState) -> bool:
    return bool(pod.unscheduled_reason) or any(
        container.has_problem and not _lacks_pull_error(container) for container in _list_containers(pod)
    )


def _lacks_pull_error(container: ContainerState) -> bool:
    # Before Kubernetes 1.32, during back-off the registry's answer is only in an event.
    return container.waiting_reason == "ImagePullBackOff" and "ErrImagePull" not in container.waiting_message


def _merge_facts(findings: Sequence[_Finding]) -> Facts:
    """Merge findings: all steps in the order in which they ended, and the first value of every other fact."""
    first: dict[str, Any] = {}
    for name in ("deadline_error", "image_error", "infrastructure_error", "rejected", "unschedulable"):
        values = (getattr(finding.facts, name) for finding in findings)
        first[name] = next(filter(None, values), None)
    steps = tuple(step for finding in findings for step in finding.facts.steps)
    return Facts(steps=steps, transient=any(finding.facts.transient for finding in findings), **first)


def _find_problems(
    pods: Sequence[PodState],
    events: Sequence[EventRecord],
    tails: Tails,
    limits: SchedulingLimits | None = None,
    job: JobState | None = None,
    is_active: bool = False,
) -> Iterator[_Finding]:
    by_step = group_pods_by_step(pods)
    expects_restarts = job is not None and job.expects_restarts
    ended = [_find_ended(step, group, tails, expects_restarts, is_active) for step, group in by_step.items()]
    yield from (finding for _, finding in sorted(filter(None, ended), key=lambda item: item[0]))
    newest = {step: group[-1] for step, group in by_step.items()}
    yield from _find_unscheduled(newest, events, limits)
    for step, pod in newest.items():
        yield from _find_blocking(step, pod, events, limits)
    yield from _find_event_problems(pods, events, limits, (job and job.num_nodes) or 1)
    yield from _find_left_nodes(newest, tails, limits)


# --- Steps that have ended ------------------------------------------------------------------------------------------


def _find_ended(
    step: str, group: Sequence[PodState], tails: Tails, expects_restarts: bool, is_active: bool
) -> tuple[float, _Finding] | None:
    """Return when and why a step ended. Of an active job, which may recover, an exit code alone is no cause."""
    newest = group[-1]
    if newest.phase == "Succeeded":
        return None
    if disruption := _find_disruption(newest):
        facts = Facts(steps=[_build_step_facts(step, newest, None, tails, **disruption)])
        return _get_finish_time(newest.main_container.latest_termination), _Finding(facts, None, ended=True)
    if newest.phase == "Failed" and newest.reason == _DEADLINE:
        facts = Facts(deadline_error=newest.message or "pod exceeded its deadline", steps=[StepFacts(step)])
        return 0.0, _Finding(facts, None, ended=True)
    for pod in reversed(group):
        failed = _find_failed_container(step, pod, is_active)
        if failed is None:
            continue
        container, termination = failed
        crash = _build_crash(step, group, pod, container, termination, tails, expects_restarts)
        is_bare = termination.reason in _NO_REASONS and not termination.message and not tails.get(step, True)
        if is_active and is_bare and crash.grace is None:
            return None
        return _get_finish_time(termination), crash
    return None


def _find_failed_container(
    step: str, pod: PodState, is_active: bool
) -> tuple[ContainerState, ContainerTermination] | None:
    """Return the failed container of a pod and its termination; the container of the step before sidecars."""
    if _find_disruption(pod):
        return None
    parts = dict(pod.step_containers)
    sidecars = [container for container in pod.other_containers if container.name not in parts]
    for container in [parts[step], *sidecars]:
        termination = container.latest_termination
        if pod.deletion_timestamp and termination and _was_told_to_stop(termination, is_active):
            # The container was terminated with its pod; an earlier failed run, if any, is the cause.
            termination = container.last_terminated if termination is container.terminated else None
        if termination is not None and termination.failed:
            return container, termination
    return None


def _was_told_to_stop(termination: ContainerTermination, is_active: bool) -> bool:
    """Launchers such as torchrun end with 1 after SIGTERM. In an active job only an exception shows a failure."""
    if termination.exit_code in _TERMINATION_EXIT_CODES:
        return True
    return is_active and not (parse_record(termination.message) or {}).get("error")


def _build_crash(
    step: str,
    group: Sequence[PodState],
    pod: PodState,
    container: ContainerState,
    termination: ContainerTermination,
    tails: Tails,
    expects_restarts: bool,
) -> _Finding:
    """Build the finding of a crash: fatal from the second on, unless the step runs again, ran for long or restarts."""
    is_running = group[-1].main_container.running_since is not None
    crashes = sum(
        each.crash_count
        for replica in group
        if not _find_disruption(replica)
        for each in _list_containers(replica, container.name)
    )
    is_sidecar = container is not pod.main_container and container.name != step
    known = {"exit_code": None, "message": _describe_sidecar(container, termination)} if is_sidecar else {}
    facts = Facts(steps=[_build_step_facts(step, pod, termination, tails, **known)])
    if termination.reason in failure_reasons.START_ERRORS:
        message = to_single_line(termination.message, _MAX_MESSAGE_LENGTH)
        blocking = failure_reasons.explain_container_error(termination.reason, message, container.image)
        if blocking is not None:
            return _Finding(replace(_build_facts(blocking), steps=facts.steps), blocking.grace, ended=True)
    is_short = _was_short(termination) and not _saved_checkpoint(termination, tails.get(step, ()))
    in_crash_loop = crashes >= _CRASH_LOOP and not is_running and is_short and not expects_restarts
    return _Finding(facts, FATAL if in_crash_loop else None, ended=True)


def _saved_checkpoint(termination: ContainerTermination, tail: Sequence[str]) -> bool:
    """Return whether a run saved a checkpoint after that from which it was resumed: the next one gets further."""
    steps = extract_training_state([parse_record(termination.message)], find_last_progress(reversed(tail)))
    return (steps.get("checkpoint") or 0) > (steps.get("resumed_from") or 0)


def _find_disruption(pod: PodState) -> dict[str, str]:
    """Return why the pod was removed from its Kubernetes node, as fields of StepFacts; empty if it was not."""
    if pod.phase == "Succeeded":
        return {}
    main = pod.main_container.terminated
    lost = "NodeLost" if pod.phase == "Unknown" else ""
    message = pod.message
    if pod.message != pod.disruption_message:
        message = f"{pod.message} {pod.disruption_message}".strip()
    for reason in (pod.reason, pod.disruption_reason, main.reason if main else "", lost):
        if reason and (disruption := failure_reasons.explain_disruption(reason, message)):
            return disruption
    return {}


def _list_containers(pod: PodState, name: str | None = None) -> Iterable[ContainerState]:
    return (each for each in (pod.main_container, *pod.other_containers) if name in (None, each.name))


def _describe_sidecar(container: ContainerState, termination: ContainerTermination) -> str:
    details = f": {to_single_line(termination.message, _MAX_MESSAGE_LENGTH)}" if termination.message else ""
    return f"container {container.name!r} exited with code {termination.exit_code}{details}"


def _was_short(termination: ContainerTermination) -> bool:
    started, finished = termination.started_at, termination.finished_at
    return started is None or finished is None or finished - started < _LONG_RUN


def _get_finish_time(termination: ContainerTermination | None) -> float:
    return termination.finished_at.timestamp() if termination and termination.finished_at else float("inf")


def _build_step_facts(
    step: str, pod: PodState, termination: ContainerTermination | None, tails: Tails, **known: Any
) -> StepFacts:
    """Build the facts of a step that ended, including the record that `trainer_core.node` left in its message."""
    message = termination.message if termination else ""
    record = parse_record(message) or {}
    lines = [] if record else [line for line in message.splitlines() if line.strip()]
    facts = StepFacts.from_record(
        step,
        record,
        exit_code=termination.exit_code if termination else None,
        node=pod.node_name or pod.name,
        log_tail=tuple(tails.get(step) or lines),
        out_of_memory=termination is not None and termination.reason == "OOMKilled",
        message=to_single_line(lines[-1], _MAX_MESSAGE_LENGTH) if lines else "",
    )
    return replace(facts, **known)


def find_left_node(pods: Sequence[PodState], now: datetime) -> str | None:
    """Return a node that may wait for one that has succeeded: only its log tells. None if there is none."""
    return next(_list_left_nodes({step: group[-1] for step, group in group_pods_by_step(pods).items()}, now), None)


def _list_left_nodes(newest: Mapping[str, PodState], now: datetime) -> Iterator[str]:
    nodes = {step: pod.main_container for step, pod in newest.items() if step.startswith(f"{NODE}-")}
    ends = [each.terminated.finished_at for each in nodes.values() if each.terminated and not each.terminated.failed]
    end = min((each for each in ends if each), default=None)
    for step, container in nodes.items():
        since = container.running_since
        if end and since and now - max(end, since) >= _LEFT_TIME and newest[step].deletion_timestamp is None:
            yield step


def _find_left_nodes(
    newest: Mapping[str, PodState], tails: Tails, limits: SchedulingLimits | None
) -> Iterator[_Finding]:
    """Yield the nodes that wait for one that has succeeded, by the end of their logs: no training has begun in them."""
    for step in _list_left_nodes(newest, limits.now) if limits else ():
        lines = [line for line in map(strip_resource_report, tails.get(step, ())) if line]
        if lines and lines[-1].endswith(WAITING):
            text = f"{step} was started again and waits for the other nodes, one of which has succeeded and ended"
            steps = [StepFacts(step, node=newest[step].node_name or newest[step].name)]
            yield _Finding(Facts(steps, infrastructure_error=text), FATAL)


# --- Steps that wait ------------------------------------------------------------------------------------------------


def _find_unscheduled(
    newest: Mapping[str, PodState], events: Sequence[EventRecord], limits: SchedulingLimits | None
) -> Iterator[_Finding]:
    """Yield what the pods without a Kubernetes node wait for."""
    waiting = {step: pod for step, pod in newest.items() if is_unscheduled(pod)}
    if waiting:
        blocking = explain_waiting([WaitingPod.from_pod(pod) for pod in waiting.values()], events, limits)
        yield from (_build_blocked(blocking, step, pod) for step, pod in waiting.items())


def is_unscheduled(pod: PodState) -> bool:
    """Return whether a scheduler has found no Kubernetes node for a pod."""
    return pod.phase == "Pending" and bool(pod.unscheduled_reason)


def _find_blocking(
    step: str, pod: PodState, events: Sequence[EventRecord], limits: SchedulingLimits | None
) -> Iterator[_Finding]:
    """Yield what prevents the newest pod of a step from running on its Kubernetes node."""
    if pod.phase == "Failed" and pod.reason.startswith(_KUBELET_REJECTIONS):
        text = f"kubelet rejected the pod: {pod.reason}: {pod.message}"
        yield _build_blocked(BlockingReason("unschedulable", text, None), step, pod)
    if pod.phase != "Pending" and not any(container.waiting_reason for container in _list_containers(pod)):
        return
    if pod.unscheduled_reason:
        return
    warnings = [
        event
        for event in events
        if event.is_warning and event.object_kind == PODS.kind and event.object_name == pod.name
    ]
    reasons = [reason for each in _list_containers(pod) if (reason := _explain_waiting(each, warnings))]
    if not reasons and pod.main_container.running_since is None:
        reasons = [reason for event in warnings[-1:] if (reason := _explain_event(event, events, limits))]
    yield from (_build_blocked(reason, step, pod) for reason in reasons)


def _explain_waiting(container: ContainerState, events: Sequence[EventRecord]) -> BlockingReason | None:
    message = container.waiting_message
    if _lacks_pull_error(container):
        pulls = [event.message for event in events if event.reason == _PULL_EVENT and container.image in event.message]
        message = next((text for text in reversed(pulls) if "pull" in text.lower()), message)
    return failure_reasons.explain_container_error(container.waiting_reason, message, container.image)


def _explain_event(
    event: EventRecord, events: Sequence[EventRecord], limits: SchedulingLimits | None
) -> BlockingReason | None:
    if event.reason in _MOUNT_EVENTS:
        return failure_reasons.explain_mount_error(event.message)
    if event.reason == _SANDBOX_EVENT:
        text = f"kubelet cannot create the pod sandbox: {event.message}"
        return BlockingReason("infrastructure_error", text, LONG_GRACE)
    if event.reason == SCHEDULING_EVENT:
        pod = WaitingPod(event.object_name, message=event.message, since=event.began)
        return explain_waiting([pod], events, limits)
    return None


def _find_event_problems(
    pods: Sequence[PodState], events: Sequence[EventRecord], limits: SchedulingLimits | None, num_nodes: int
) -> Iterator[_Finding]:
    """Yield problems of child objects that do not exist, or that the caller may not read, from events alone."""
    pod_events = [event for event in events if event.object_kind == PODS.kind]
    times = [pod.creation_timestamp for pod in pods if pod.creation_timestamp]
    times += [event.timestamp for event in pod_events]
    errors = [
        event for event in events if event.reason in _CREATION_EVENTS and all(event.timestamp > time for time in times)
    ]
    if errors:
        is_node = errors[-1].object_kind != JOBS.kind or errors[-1].object_name.endswith(f"-{NODE}-0")
        blocking = failure_reasons.explain_creation_error(errors[-1].message, num_nodes if is_node else 1)
        yield _Finding(_build_facts(blocking), blocking.grace)
    if pods:
        return
    for event in events:
        if event.reason == _DEADLINE:
            yield _Finding(Facts(deadline_error=event.message), None, ended=True)
    if pod_events:
        yield from _find_pod_event_problems(pod_events, limits)


def _find_pod_event_problems(events: Sequence[EventRecord], limits: SchedulingLimits | None) -> Iterator[_Finding]:
    """Yield the problem in the last event of pods that were deleted or may not be read."""
    last = events[-1]
    # Event times have a resolution of one second, so a disruption may not be the last event.
    disruption = _find_disruption_event(events, {last.object_name})
    if disruption:
        yield disruption
        return
    if last.reason in (_PULL_EVENT, "BackOff") and "image" in last.message.lower():
        # Of several events about the image, only one has the registry's answer.
        answers = (each.message for each in reversed(events) if each.message.startswith(_PULL_MESSAGE))
        message = next(answers, last.message)
        blocking: BlockingReason | None = failure_reasons.explain_image_error("ErrImagePull", message, "")
    else:
        blocking = _explain_event(last, events, limits)
    if blocking is not None:
        yield _Finding(_build_facts(blocking), blocking.grace)


def _find_disruption_event(events: Sequence[EventRecord], pod_names: Collection[str]) -> _Finding | None:
    """Return the first disruption that the events report of these pods."""
    for event in events:
        if event.reason in _DISRUPTION_EVENTS and event.object_name in pod_names:
            reason = _DISRUPTION_EVENTS[event.reason]
            fields: dict[str, Any] = failure_reasons.explain_disruption(reason, event.message)
            facts = Facts(steps=[StepFacts(event.object_name, node=event.object_name, **fields)])
            return _Finding(facts, None, ended=True)
    return None


def _build_blocked(blocking: BlockingReason, step: str, pod: PodState) -> _Finding:
    steps = [StepFacts(step, node=pod.node_name or pod.name)]
    return _Finding(replace(_build_facts(blocking), steps=steps), blocking.grace)


def _build_facts(blocking: BlockingReason) -> Facts:
    fields: dict[str, Any] = {blocking.fact: blocking.text}
    return Facts(transient=blocking.transient, **fields)
