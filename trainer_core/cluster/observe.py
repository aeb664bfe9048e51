"""A job of a cluster, its pods and events → what all backends say of a job. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from trainer_core.attempts import Found
from trainer_core.cluster import marks, trouble
from trainer_core.cluster import pods as podfacts
from trainer_core.cluster.events import EventFacts
from trainer_core.cluster.history import ended_at
from trainer_core.cluster.jobfacts import DEADLINE_EXCEEDED, PREEMPTED, STOPPED, JobFacts
from trainer_core.cluster.pods import DATASET_INITIALIZER, MODEL_INITIALIZER, NODE, PodFacts
from trainer_core.cluster.raw import Raw
from trainer_core.diagnosis import Facts, StepFacts, diagnose
from trainer_core.errors import InvalidRequestError
from trainer_core.inside.result import parse_record
from trainer_core.jobs import Step, TrainJob
from trainer_core.observation import COMPLETE, CREATED, FAILED, RUNNING, SUSPENDED, Observation, Progress
from trainer_core.outcome import Category, Diagnosis, Outcome, complete_outcome
from trainer_core.ref import TrainJobRef
from trainer_core.request import TrainJobRequest
from trainer_core.runtimes import Runtime, RuntimeKind, RuntimeTrainer, TrainerType

__all__ = [
    "found",
    "needs_events",
    "noted",
    "observation",
    "ref_of",
    "request_of",
    "status_of",
    "steps",
    "train_job",
]

_UNSUPPORTED = "TrainingRuntimeNotSupported"
#: An event of Trainer's that says nothing any more once the JobSet is there.
_NOT_MADE = "TrainJobResourcesCreationFailed"
_INITIALIZERS = (DATASET_INITIALIZER, MODEL_INITIALIZER)


def status_of(job: JobFacts, pods: Sequence[PodFacts] = ()) -> str:
    """Return the status of a job: what has ended stays so, and a cancelled job has ended."""
    if job.condition(COMPLETE):
        return RUNNING if job.led and any(_goes_on(pod) for pod in pods) else COMPLETE
    if job.condition(FAILED):
        return FAILED
    if job.cancelled:
        return FAILED
    if job.suspend or job.condition(SUSPENDED):
        return SUSPENDED
    return RUNNING if _runs(job, pods) else CREATED


def observation(
    job: JobFacts,
    pods: Sequence[PodFacts] = (),
    events: Sequence[EventFacts] = (),
    *,
    ref: TrainJobRef,
    progress: Progress | None = None,
    tails: Mapping[str, Sequence[str]] | None = None,
) -> Observation:
    """Say what one look at a job shows.

    Args:
        job: The job.
        pods: Its pods, those seen before that are gone by now included where the caller remembers them.
        events: Its events, where the caller has them.
        ref: Its ref.
        progress: What its log says of its progress, where the caller has read it.
        tails: The last lines of logs, by step, where the caller has read them.
    """
    status, progress = status_of(job, pods), progress or job.progress
    known = noted(job)
    if known is not None and known.status == status:
        return Observation(status, progress if status == COMPLETE else None, outcome=known)
    events = [event for event in events if not (job.roles and event.reason == _NOT_MADE)]
    if status == COMPLETE:
        return Observation(status, progress, outcome=_complete(job, pods, ref, progress))
    if status == FAILED:
        return Observation(status, outcome=_failed(job, pods, events, ref, tails or {}))
    if status == SUSPENDED:
        return Observation(status, progress)
    # A job that runs although no pod is to be seen: its events are of the time before.
    unseen = status == RUNNING and not pods
    return Observation(status, progress, trouble=trouble.trouble(pods, () if unseen else events, tails))


def noted(job: JobFacts) -> Outcome | None:
    """Return what a job left as whoever waited for it wrote it down; None where nobody has."""
    try:
        found = Outcome.from_json(job.annotations.get(marks.OUTCOME, ""))
    except ValueError:
        return None
    # A job that was made from the manifest of another has that one's annotations.
    return found if found.ref.get("uid") == job.uid else None


def needs_events(job: JobFacts, pods: Sequence[PodFacts] = ()) -> bool:
    """Say whether the events of a job would explain what it and its pods do not."""
    status = status_of(job, pods)
    if status == FAILED:
        return not _was_cancelled(job) and not trouble.facts(pods).steps
    return status in (CREATED, RUNNING) and trouble.needs_events(pods)


def train_job(
    job: JobFacts,
    pods: Sequence[PodFacts] = (),
    runtime: Runtime | None = None,
    events: Sequence[EventFacts] = (),
    progress: Progress | None = None,
) -> TrainJob:
    """Return a job as the API reference knows it.

    Args:
        job: The job.
        pods: Its pods.
        runtime: Its runtime; None where that is gone or may not be read.
        events: Its events, where the caller has them.
        progress: What its log says of its progress, where the caller has read it.
    """
    seen = observation(job, pods, events, ref=ref_of(job), progress=progress)
    runtime = runtime or _unknown_runtime(job)
    return TrainJob(
        name=job.name,
        runtime=runtime,
        steps=steps(job, pods, runtime),
        num_nodes=runtime.trainer.num_nodes if job.num_nodes is None else job.num_nodes,
        creation_timestamp=job.created,
        status=seen.status,
        uid=job.uid,
        namespace=job.namespace,
        labels=dict(job.labels),
        annotations={key: text for key, text in job.annotations.items() if not key.startswith(marks.PREFIX)},
        reason=_reason(job, seen),
        started=_started(pods),
        finished=ended_at(job),
        progress=seen.progress,
    )


def steps(job: JobFacts, pods: Sequence[PodFacts] = (), runtime: Runtime | None = None) -> list[Step]:
    """Return every step of a job, those without a pod included: initializers first, then nodes by number."""
    status, known = status_of(job, pods), podfacts.by_step(pods)
    runtime = runtime or _unknown_runtime(job)
    count = runtime.trainer.num_nodes if job.num_nodes is None else job.num_nodes
    named = {role.name for role in job.roles} | set(job.initializers) | known.keys()
    expected = [one for one in _INITIALIZERS if one in named] + [f"{NODE}-{index}" for index in range(count)]
    others = [name for name in known if name not in expected]
    device = job.device or (runtime.trainer.device, runtime.trainer.device_count)
    missing = _status_without_pod(status, bool(pods))
    return [
        _step(name, known[name], status)
        if name in known
        else Step(name, missing, "", *(device if name.startswith(f"{NODE}-") else ()))
        for name in expected + others
    ]


def found(raw: Raw, read: Callable[[Raw], JobFacts]) -> Found:
    """Return a raw job as `attempts.decide` weighs it. A job that others made has no fingerprint."""
    job = read(raw)
    attempt = job.annotations.get(marks.ATTEMPT, "")
    owner = _owner(raw)
    return Found(
        name=job.name,
        status=status_of(job),
        fingerprint=job.annotations.get(marks.FINGERPRINT, ""),
        owner_key=owner.get("key"),
        generation=owner.get("generation"),
        attempt=int(attempt) if attempt.isdecimal() else 0,
    )


def request_of(raw: Raw) -> TrainJobRequest:
    """Return the request that a raw job was made from.

    Raises:
        InvalidRequestError: It was made by others, or its request is damaged.
    """
    name = raw["metadata"]["name"]
    text = (raw["metadata"].get("annotations") or {}).get(marks.REQUEST)
    if text is None:
        raise InvalidRequestError(
            f"TrainJob {name!r} was not made by trainjob-workflows: it has no annotation {marks.REQUEST}; "
            f"choose another name, or delete it first (`trainjob delete {name}`)"
        )
    try:
        return TrainJobRequest.from_json(text)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"TrainJob {name!r}: its annotation {marks.REQUEST} is damaged: {error}") from error


def ref_of(job: JobFacts) -> TrainJobRef:
    """Return the ref of a job."""
    return TrainJobRef(job.backend, job.namespace, job.name, job.uid)


def _owner(raw: Raw) -> dict[str, Any]:
    text = (raw["metadata"].get("annotations") or {}).get(marks.REQUEST) or "{}"
    try:
        return dict(json.loads(text).get("owner") or {})
    except (ValueError, TypeError, AttributeError):
        return {}


def _runs(job: JobFacts, pods: Sequence[PodFacts]) -> bool:
    """A job runs from its first initializer on; without initializers, once every node does."""
    if any(role.ready or role.succeeded for role in job.roles):
        return True
    begun = {step for pod in pods if not pod.deleted for step, part in pod.parts if _has_begun(pod, part)}
    nodes = {step for pod in pods for step, _ in pod.parts if step not in _INITIALIZERS}
    return any(step in _INITIALIZERS for step in begun) or (
        bool(nodes) and nodes <= begun and len(nodes) >= (job.num_nodes or 1)
    )


def _goes_on(pod: PodFacts) -> bool:
    return pod.phase in ("Pending", "Running") and not pod.deleted


def _has_begun(pod: PodFacts, part: podfacts.ContainerFacts) -> bool:
    """A pod counts as pending while its initializers run."""
    return pod.phase in ("Running", "Succeeded") or (part is not pod.main and bool(part.running or part.ended))


def _complete(job: JobFacts, pods: Sequence[PodFacts], ref: TrainJobRef, progress: Progress | None) -> Outcome:
    return complete_outcome(
        ref,
        _left(pods),
        started_at=_text(_started(pods)),
        finished_at=_text(ended_at(job)),
        last_progress=progress.metrics if progress else None,
        fetched=dict(job.fetched),
    )


def _failed(
    job: JobFacts,
    pods: Sequence[PodFacts],
    events: Sequence[EventFacts],
    ref: TrainJobRef,
    tails: Mapping[str, Sequence[str]],
) -> Outcome:
    # The pods of a cancelled job vanish one by one: its outcome is the same at every look.
    started = None if _was_cancelled(job) else _started(pods)
    return Outcome(
        ref=ref.to_dict(),
        status="Failed",
        diagnosis=diagnose(_facts(job, pods, events, tails)),
        started_at=_text(started),
        finished_at=_text(ended_at(job)),
    )


def _facts(
    job: JobFacts, pods: Sequence[PodFacts], events: Sequence[EventFacts], tails: Mapping[str, Sequence[str]]
) -> Facts:
    failed = job.condition(FAILED)
    if failed is None:
        return Facts(cancelled=True, given_up=_given_up(job))
    if failed.reason == DEADLINE_EXCEEDED and job.deadline is not None:
        return Facts(deadline_seconds=job.deadline)
    if failed.reason == STOPPED:
        return Facts(given_up=Diagnosis(category=Category.DELETED, reason=failed.message))
    if failed.reason == PREEMPTED:
        return Facts(steps=[StepFacts(f"{NODE}-0", preempted=failed.message)])
    if failed.reason == DEADLINE_EXCEEDED:
        return Facts(deadline_error=failed.message)
    if failed.reason == _UNSUPPORTED:
        return Facts(rejected=failed.message)
    return trouble.facts(pods, events, tails, failed.message)


def _given_up(job: JobFacts) -> Diagnosis | None:
    try:
        return Diagnosis.model_validate_json(job.annotations.get(marks.DIAGNOSIS, ""))
    except ValueError:
        return None


def _was_cancelled(job: JobFacts) -> bool:
    return job.cancelled is not None and job.condition(FAILED) is None


def _left(pods: Sequence[PodFacts]) -> dict[str, Any]:
    """What rank 0 left: of several pods that were it, the last that left anything.

    It is the first node, but where nodes come and go it can be any.
    """
    nodes = (group for step, group in podfacts.by_step(pods).items() if step.startswith(f"{NODE}-"))
    for pod in (pod for group in nodes for pod in reversed(group)):
        record = parse_record(pod.main.ended.message) if pod.main.ended else None
        if record and "result" in record:
            return record
    return {}


def _step(name: str, pods: Sequence[PodFacts], status: str) -> Step:
    pod = pods[-1]
    container = next(one for step, one in pod.parts if step == name)
    device, count = pod.device or ("Unknown", "Unknown")
    return Step(
        name=name,
        status=_step_status(pod, container, status),
        pod_name=pod.name,
        device=device,
        device_count=count,
        exit_code=container.ended.exit_code if container.ended else None,
        restarts=container.restarts + len(pods) - 1,
        node=pod.node,
        started=pod.began(container),
        finished=container.ended.finished if container.ended else None,
    )


def _step_status(pod: PodFacts, container: podfacts.ContainerFacts, status: str) -> str | None:
    own = pod.phase if container is pod.main and not pod.others else _container_status(container) or pod.phase
    if own in ("Succeeded", "Failed"):
        return own
    ended = {SUSPENDED: "Pending", FAILED: "Failed", COMPLETE: "Succeeded"}
    # Pods linger for a while after the job was suspended or has ended.
    return ended.get(status, own if own != "Unknown" else None)


def _container_status(container: podfacts.ContainerFacts) -> str | None:
    if container.ended:
        return "Failed" if container.ended.failed else "Succeeded"
    return "Running" if container.running else None


def _status_without_pod(status: str, others_have: bool) -> str | None:
    """A job's pods may be gone once it has ended; what became of a step is then known only where all shared it."""
    if status == COMPLETE:
        return "Succeeded"
    if status == FAILED:
        return None if others_have else "Failed"
    return "Pending"


def _reason(job: JobFacts, seen: Observation) -> str | None:
    if seen.outcome and seen.outcome.diagnosis:
        return str(seen.outcome.diagnosis)
    if seen.trouble:
        return str(seen.trouble.diagnosis)
    if seen.status == SUSPENDED and job.queue:
        return f"queued: it waits until Kueue admits it from the queue {job.queue!r}"
    return None


def _started(pods: Sequence[PodFacts]) -> datetime | None:
    return min((pod.started for pod in pods if pod.started), default=None)


def _text(time: datetime | None) -> str | None:
    return time.isoformat(timespec="milliseconds") if time else None


def _unknown_runtime(job: JobFacts) -> Runtime:
    """Stands for a runtime that is gone or may not be read, so that its jobs stay readable."""
    trainer = RuntimeTrainer(trainer_type=TrainerType.CUSTOM_TRAINER, framework="unknown", image="unknown")
    namespaced = job.runtime_kind == RuntimeKind.TRAINING_RUNTIME.value
    kind = RuntimeKind.TRAINING_RUNTIME if namespaced else RuntimeKind.CLUSTER_TRAINING_RUNTIME
    return Runtime(name=job.runtime or "unknown", trainer=trainer, kind=kind)
