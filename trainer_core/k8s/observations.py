"""Status, steps, observation and outcome of a job, computed from its state, its pods and its events.

Pure functions without I/O, shared by all backends on Kubernetes.

1. `get_status`: the conditions of the job, and whether its pods run.
2. `build_observation`: the recorded outcome, if a waiter stored one; else that of an ended job, from the termination
   records of its pods; else what prevents an active job from starting, with the time for which it may do so.
3. `needs_explanation` tells whether the events of the namespace could explain more; `JobReader` then reads them, and
   builds the observation again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from trainer_core.base import validation
from trainer_core.base.errors import InvalidRequestError
from trainer_core.k8s import failure_facts, labels
from trainer_core.k8s.capacity import SchedulingLimits, explain_queue
from trainer_core.k8s.events import EventRecord
from trainer_core.k8s.job_state import DEADLINE_EXCEEDED, PREEMPTED, STOPPED, JobState
from trainer_core.k8s.parsing import RawObject
from trainer_core.k8s.pod_state import ContainerState, PodState, group_pods_by_step
from trainer_core.k8s.runtimes import DATASET_INITIALIZER, MODEL_INITIALIZER, NODE
from trainer_core.lifecycle.adoption import ExistingJob
from trainer_core.lifecycle.diagnosis import Facts, StepFacts, build_failed_outcome, diagnose
from trainer_core.model.jobs import (
    COMPLETE,
    CREATED,
    FAILED,
    RUNNING,
    SUSPENDED,
    Category,
    Diagnosis,
    Observation,
    Outcome,
    PendingFailure,
    Progress,
    Step,
    TrainJob,
    TrainJobRef,
    build_complete_outcome,
    extract_training_state,
)
from trainer_core.model.logs import find_last_progress
from trainer_core.model.request import TrainJobRequest
from trainer_core.model.resource_use import summarize_resource_use
from trainer_core.model.runtimes import Runtime, RuntimeKind, build_unknown_runtime
from trainer_core.node.progress import PREFIX
from trainer_core.node.termination import parse_record

_UNSUPPORTED_RUNTIME = "TrainingRuntimeNotSupported"
#: Event of the Trainer controller that is obsolete once the JobSet exists.
_CREATION_FAILED = "TrainJobResourcesCreationFailed"
#: Time in which a controller creates all pods.
_START_TIME = timedelta(seconds=10)
_INITIALIZERS = (DATASET_INITIALIZER, MODEL_INITIALIZER)
_ELSEWHERE = "it ran in a worker cluster of MultiKueue, where its result, metrics and logs are"


def get_status(job: JobState, pods: Sequence[PodState] = ()) -> str:
    """Return the status. Complete and Failed are final; a cancelled job is Failed, its object only suspended."""
    if job.get_condition(COMPLETE):
        return RUNNING if job.completes_with_first_node and any(_is_active(pod) for pod in pods) else COMPLETE
    if job.get_condition(FAILED):
        return FAILED
    if job.cancelled_at:
        return FAILED
    if job.suspend or job.get_condition(SUSPENDED):
        return SUSPENDED
    return RUNNING if _is_running(job, pods) else CREATED


def build_observation(
    job: JobState,
    pods: Sequence[PodState] = (),
    events: Sequence[EventRecord] = (),
    *,
    ref: TrainJobRef,
    progress: Progress | None = None,
    tails: Mapping[str, Sequence[str]] | None = None,
    limits: SchedulingLimits | None = None,
) -> Observation:
    status, progress = get_status(job, pods), progress or job.progress
    recorded = get_recorded_outcome(job)
    if recorded is not None and recorded.status == status:
        progress = progress if status == COMPLETE else None
        return Observation(status, progress, outcome=recorded, outcome_is_stored=True)
    events = [event for event in events if not (job.replicated_jobs and event.reason == _CREATION_FAILED)]
    if status == COMPLETE:
        return Observation(status, progress, outcome=_build_complete_outcome(job, pods, ref, progress))
    if status == FAILED:
        return Observation(status, outcome=_build_failed_outcome(job, pods, events, ref, tails or {}))
    if status == SUSPENDED:
        queued, grace = explain_queue(job.queue_name, events, limits) if job.queue_name else (None, None)
        pending = PendingFailure(_diagnose_wait(queued), grace) if queued and grace is not None else None
        pending = _limit_start(job, pods, pending, limits, queued)
        return Observation(status, progress, pending_failure=pending, queued=queued)
    # A running job without visible pods: its events are from before it started.
    if status == RUNNING and not pods:
        events = []
    pending_failure = failure_facts.detect_pending_failure(pods, events, tails, limits, job)
    return Observation(status, progress, pending_failure=_limit_start(job, pods, pending_failure, limits))


def _is_shown(annotation: str) -> bool:
    """Return whether a user knows the annotation: it is not one by which the backend keeps its records."""
    return annotation == labels.PARTITION or not annotation.startswith(labels.PREFIX)


def _diagnose_wait(reason: str) -> Diagnosis:
    return Diagnosis(category=Category.SCHEDULING, reason=reason, retryable=True)


def _limit_start(
    job: JobState,
    pods: Sequence[PodState],
    pending: PendingFailure | None,
    limits: SchedulingLimits | None,
    queued: str | None = None,
) -> PendingFailure | None:
    """Add the limit of the option StartWithin to the pending failure of a job that waits for nodes."""
    since = _get_wait_time(job, pods)
    if job.start_within is None or since is None or limits is None:
        return pending
    reason = pending.diagnosis.reason if pending else queued or "not all of its pods exist"
    remaining = job.start_within - (limits.now - since).total_seconds()
    if remaining <= 0:
        reason = f"it did not start within {validation.format_duration(job.start_within)}: {reason}"
    if pending is None or remaining <= 0:
        pending = PendingFailure(_diagnose_wait(reason))
    return replace(pending, start_within=max(0.0, remaining))


def _get_wait_time(job: JobState, pods: Sequence[PodState]) -> datetime | None:
    """Return since when a job waits for admission, pods or nodes; None if it does not."""
    status = get_status(job, pods)
    if status == SUSPENDED:
        suspended = job.get_condition(SUSPENDED)
        if not job.queue_name:
            return None
        return (suspended and suspended.last_transition_time) or job.creation_timestamp
    waiting = [
        pod.creation_timestamp
        for group in group_pods_by_step(pods).values()
        for pod in group[-1:]
        if pod.phase == "Pending" and not pod.node_name and pod.creation_timestamp
    ]
    if status == CREATED and _lacks_pods(job, pods):
        waiting.append(job.resumed_at or job.creation_timestamp)
    return min(waiting, default=None)


def _lacks_pods(job: JobState, pods: Sequence[PodState]) -> bool:
    """Return whether nodes have no pod, and no initializer explains that."""
    steps = group_pods_by_step(pods)
    nodes = [step for step in steps if step not in _INITIALIZERS]
    return len(nodes) < (job.num_nodes or 1) and len(nodes) == len(steps)


def get_recorded_outcome(job: JobState) -> Outcome | None:
    """Return the outcome in the job's annotation; None if no waiting process has recorded it."""
    try:
        outcome = Outcome.from_json(job.annotations.get(labels.OUTCOME, ""))
    except ValueError:
        return None
    # A job created from the exported manifest of another job has the annotations of that job.
    return outcome if outcome.ref.get("uid") == job.uid else None


def needs_events(job: JobState, pods: Sequence[PodState] = (), now: datetime | None = None) -> bool:
    """Return whether events are needed to explain the status, because job and pods do not explain it."""
    status = get_status(job, pods)
    if status == FAILED:
        return not _was_cancelled(job) and not failure_facts.collect_failure_facts(pods).steps
    if status == SUSPENDED and job.queue_name and now is not None:
        return now - job.creation_timestamp >= failure_facts.SHORT_WAIT
    if status == CREATED and now is not None and now - job.creation_timestamp >= _START_TIME and _lacks_pods(job, pods):
        return True
    return status in (CREATED, RUNNING) and failure_facts.needs_events(pods, now)


def needs_explanation(job: JobState, pods: Sequence[PodState], now: datetime) -> bool:
    """Return whether events are needed to explain the status, or the time of the option StartWithin runs."""
    is_limited = job.start_within is not None and _get_wait_time(job, pods) is not None
    return is_limited or needs_events(job, pods, now)


def build_train_job(
    job: JobState,
    pods: Sequence[PodState] = (),
    runtime: Runtime | None = None,
    events: Sequence[EventRecord] = (),
) -> TrainJob:
    observation = build_observation(job, pods, events, ref=build_ref(job))
    runtime = runtime or _get_unknown_runtime(job)
    return TrainJob(
        name=job.name,
        runtime=runtime,
        steps=build_steps(job, pods, runtime),
        num_nodes=runtime.trainer.num_nodes if job.num_nodes is None else job.num_nodes,
        creation_timestamp=job.creation_timestamp,
        status=observation.status,
        uid=job.uid,
        namespace=job.namespace,
        labels=dict(job.labels),
        annotations={key: text for key, text in job.annotations.items() if _is_shown(key)},
        reason=_get_reason(job, observation),
        started=_get_start_time(pods),
        finished=job.finished_at,
        progress=observation.progress,
    )


def build_steps(job: JobState, pods: Sequence[PodState] = (), runtime: Runtime | None = None) -> list[Step]:
    """Build every step of a job, including steps without a pod: initializers first, then nodes by index."""
    status, pods_by_step = get_status(job, pods), group_pods_by_step(pods)
    runtime = runtime or _get_unknown_runtime(job)
    count = runtime.trainer.num_nodes if job.num_nodes is None else job.num_nodes
    names = {each.name for each in job.replicated_jobs} | set(job.initializers) | pods_by_step.keys()
    expected = [name for name in _INITIALIZERS if name in names] + [f"{NODE}-{index}" for index in range(count)]
    others = [name for name in pods_by_step if name not in expected]
    device = job.device or (runtime.trainer.device, runtime.trainer.device_count)
    status_without_pod = _get_status_without_pod(status, bool(pods))
    steps = []
    for name in expected + others:
        if name in pods_by_step:
            steps.append(_build_step(name, pods_by_step[name], status))
        elif name.startswith(f"{NODE}-"):
            steps.append(Step(name, status_without_pod, "", *device))
        else:
            steps.append(Step(name, status_without_pod, ""))
    return steps


def parse_existing_job(raw: RawObject, parse_job: Callable[[RawObject], JobState]) -> ExistingJob:
    """Parse a raw job for `adoption.decide`. A job that was not created by this library has no fingerprint."""
    job = parse_job(raw)
    attempt = job.annotations.get(labels.ATTEMPT, "")
    owner = _parse_owner(raw)
    return ExistingJob(
        name=job.name,
        status=get_status(job),
        fingerprint=job.annotations.get(labels.FINGERPRINT, ""),
        owner_key=owner.get("key"),
        generation=owner.get("generation"),
        attempt=int(attempt) if attempt.isdecimal() else 0,
    )


def parse_request(raw: RawObject) -> TrainJobRequest:
    name = raw["metadata"]["name"]
    text = (raw["metadata"].get("annotations") or {}).get(labels.REQUEST)
    if text is None:
        raise InvalidRequestError(
            f"TrainJob {name!r} was not created by trainjob-workflows: it has no annotation {labels.REQUEST}; "
            f"choose another name, or delete it first (`trainjob delete {name}`)"
        )
    try:
        return TrainJobRequest.from_json(text)
    except InvalidRequestError as error:
        raise InvalidRequestError(
            f"TrainJob {name!r} has a damaged annotation {labels.REQUEST}: {error}; delete the job and submit it again"
        ) from error


def build_ref(job: JobState) -> TrainJobRef:
    return TrainJobRef(job.backend, job.namespace, job.name, job.uid)


def _parse_owner(raw: RawObject) -> dict[str, Any]:
    text = (raw["metadata"].get("annotations") or {}).get(labels.REQUEST) or "{}"
    try:
        return dict(json.loads(text).get("owner") or {})
    except (ValueError, TypeError, AttributeError):
        return {}


def _is_running(job: JobState, pods: Sequence[PodState]) -> bool:
    """Return whether an initializer has started or, without initializers, every node."""
    if any(each.ready or each.succeeded for each in job.replicated_jobs):
        return True
    nodes, started = set(), set()
    for pod in pods:
        for step, container in pod.step_containers:
            if step not in _INITIALIZERS:
                nodes.add(step)
            if not pod.deletion_timestamp and _has_started(pod, container):
                started.add(step)
    has_all_nodes = bool(nodes) and len(nodes) >= (job.num_nodes or 1)
    return not started.isdisjoint(_INITIALIZERS) or (has_all_nodes and nodes <= started)


def _is_active(pod: PodState) -> bool:
    return pod.phase in ("Pending", "Running") and not pod.deletion_timestamp


def _has_started(pod: PodState, container: ContainerState) -> bool:
    # A pod is Pending while its init containers run.
    return pod.phase in ("Running", "Succeeded") or (
        container is not pod.main_container and bool(container.running_since or container.terminated)
    )


def _build_complete_outcome(
    job: JobState, pods: Sequence[PodState], ref: TrainJobRef, progress: Progress | None
) -> Outcome:
    outcome = build_complete_outcome(
        ref,
        _parse_termination_record(pods),
        started_at=_format_time(_get_start_time(pods)),
        finished_at=_format_time(job.finished_at),
        last_progress=progress,
        fetched=dict(job.fetched_uris),
        resource_use=summarize_resource_use(_parse_node_records(pods)),
        memory=job.memory,
        restarts=job.restarts.earlier if job.restarts else None,
    )
    return replace(outcome, result_note=_ELSEWHERE) if job.runs_elsewhere and not pods else outcome


def _build_failed_outcome(
    job: JobState,
    pods: Sequence[PodState],
    events: Sequence[EventRecord],
    ref: TrainJobRef,
    tails: Mapping[str, Sequence[str]],
) -> Outcome:
    # The pods of a cancelled job are deleted one by one; without their times the outcome stays the same.
    started = None if _was_cancelled(job) else _get_start_time(pods)
    saved = job.annotations.get(labels.PROGRESS) if _was_cancelled(job) else None
    diagnosis = diagnose(replace(_collect_facts(job, pods, events, tails), memory=job.memory))
    return build_failed_outcome(
        ref,
        diagnosis,
        () if _was_cancelled(job) else _parse_all_records(pods),
        started_at=_format_time(started),
        finished_at=_format_time(job.finished_at),
        last_progress=find_last_progress([saved]) if saved else None,
        resource_use=None if _was_cancelled(job) else summarize_resource_use(_parse_node_records(pods)),
        memory=job.memory,
        restarts=job.restarts,
        is_recorded=saved is not None if _was_cancelled(job) else _has_record(pods),
    )


def _collect_facts(
    job: JobState, pods: Sequence[PodState], events: Sequence[EventRecord], tails: Mapping[str, Sequence[str]]
) -> Facts:
    failed = job.get_condition(FAILED)
    if failed is None:
        return Facts(cancelled=True, cancel_diagnosis=_parse_cancel_diagnosis(job))
    if failed.reason == DEADLINE_EXCEEDED and job.active_deadline_seconds is not None:
        return Facts(deadline_seconds=job.active_deadline_seconds)
    if failed.reason == STOPPED:
        return Facts(cancel_diagnosis=Diagnosis(category=Category.DELETED, reason=failed.message))
    if failed.reason == PREEMPTED:
        return Facts(steps=[StepFacts(f"{NODE}-0", preempted=failed.message)])
    if failed.reason == DEADLINE_EXCEEDED:
        return Facts(deadline_error=failed.message)
    if failed.reason == _UNSUPPORTED_RUNTIME:
        return Facts(rejected=failed.message)
    facts = failure_facts.collect_failure_facts(pods, events, tails, failed.message)
    # The controller was faster than the cancellation, which deleted the pods.
    diagnosis = None if facts.steps else _parse_cancel_diagnosis(job)
    return facts if diagnosis is None else Facts(cancel_diagnosis=diagnosis)


def _parse_cancel_diagnosis(job: JobState) -> Diagnosis | None:
    try:
        return Diagnosis.from_dict(validation.parse_json("a diagnosis", job.annotations.get(labels.DIAGNOSIS, "")))
    except ValueError:
        return None


def _was_cancelled(job: JobState) -> bool:
    return job.cancelled_at is not None and job.get_condition(FAILED) is None


def _parse_termination_record(pods: Sequence[PodState]) -> dict[str, Any]:
    """Return the newest termination record of rank 0, which with elastic training can be on any node."""
    for group in _group_node_pods(pods):
        for pod in reversed(group):
            terminated = pod.main_container.terminated
            record = parse_record(terminated.message) if terminated else None
            if record and "result" in record:
                return record
    return {}


def _parse_node_records(pods: Sequence[PodState]) -> Iterator[dict[str, Any] | None]:
    """Yield the termination record of the newest run of each node."""
    for group in _group_node_pods(pods):
        terminated = group[-1].main_container.latest_termination
        if terminated:
            yield parse_record(terminated.message)


def _parse_all_records(pods: Sequence[PodState]) -> Iterator[dict[str, Any] | None]:
    """Yield the termination records of all runs of each node, newest first."""
    for group in _group_node_pods(pods):
        for pod in reversed(group):
            for run in (pod.main_container.terminated, pod.main_container.last_terminated):
                if run:
                    yield parse_record(run.message)


def build_progress_line(pods: Sequence[PodState], progress: Progress | None) -> str | None:
    """Return a progress line with the last step and checkpoint of pods; None if nothing is known of them."""
    if progress is None and not _has_record(pods):
        return None
    state = extract_training_state(_parse_all_records(pods), progress)
    steps = {"step": progress and progress.step, **{name: state[name] for name in ("checkpoint", "resumed_from")}}
    return PREFIX + json.dumps({name: step for name, step in steps.items() if step is not None})


def _has_record(pods: Sequence[PodState]) -> bool:
    """Return whether the record of a run of the first node could be read, also an empty one."""
    containers = [pod.main_container for pod in group_pods_by_step(pods).get(f"{NODE}-0", ())]
    return any(container.terminated or container.last_terminated for container in containers)


def _group_node_pods(pods: Sequence[PodState]) -> list[list[PodState]]:
    """Return the pods of each node, oldest first."""
    return [group for step, group in group_pods_by_step(pods).items() if step.startswith(f"{NODE}-")]


def _build_step(name: str, pods: Sequence[PodState], status: str) -> Step:
    pod = pods[-1]
    container = next(container for step, container in pod.step_containers if step == name)
    device, count = pod.device or ("Unknown", "Unknown")
    return Step(
        name=name,
        status=_get_step_status(pod, container, status),
        pod_name=pod.name,
        device=device,
        device_count=count,
        exit_code=container.terminated.exit_code if container.terminated else None,
        restarts=container.restart_count + len(pods) - 1,
        node=pod.node_name,
        started=pod.get_started_at(container),
        finished=container.terminated.finished_at if container.terminated else None,
    )


def _get_step_status(pod: PodState, container: ContainerState, status: str) -> str | None:
    if container is pod.main_container and not pod.other_containers:
        own = pod.phase
    else:
        own = _get_container_status(container) or pod.phase
    if own in ("Succeeded", "Failed"):
        return own
    # Pods may still exist for a while after the job was suspended or has ended.
    ended = {SUSPENDED: "Pending", FAILED: "Failed", COMPLETE: "Succeeded"}
    return ended.get(status, own if own != "Unknown" else None)


def _get_container_status(container: ContainerState) -> str | None:
    if container.terminated:
        return "Failed" if container.terminated.failed else "Succeeded"
    return "Running" if container.running_since else None


def _get_status_without_pod(status: str, other_steps_have_pods: bool) -> str | None:
    """Return the status of a step without a pod. After a failure it is known only if no step has one."""
    if status == COMPLETE:
        return "Succeeded"
    if status == FAILED:
        return None if other_steps_have_pods else "Failed"
    return "Pending"


def _get_reason(job: JobState, observation: Observation) -> str | None:
    if observation.outcome and observation.outcome.diagnosis:
        return str(observation.outcome.diagnosis)
    if observation.pending_failure:
        return str(observation.pending_failure.diagnosis)
    return observation.queued


def _get_start_time(pods: Sequence[PodState]) -> datetime | None:
    return min((pod.started_at for pod in pods if pod.started_at), default=None)


def _format_time(time: datetime | None) -> str | None:
    return time.isoformat(timespec="milliseconds") if time else None


def _get_unknown_runtime(job: JobState) -> Runtime:
    namespaced = job.runtime_kind == RuntimeKind.TRAINING_RUNTIME.value
    kind = RuntimeKind.TRAINING_RUNTIME if namespaced else RuntimeKind.CLUSTER_TRAINING_RUNTIME
    return build_unknown_runtime(job.runtime_name, kind)
