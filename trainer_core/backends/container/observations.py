"""Derives what an observer sees of a job from its journal and containers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from trainer_core.backends.container import job_journal
from trainer_core.backends.container.job_journal import Container, ContainerJob, JournalEntry
from trainer_core.backends.container.plan import NODE
from trainer_core.base.errors import InvalidRequestError
from trainer_core.k8s import labels, runtimes
from trainer_core.lifecycle.adoption import ExistingJob
from trainer_core.model.jobs import (
    CREATED,
    RUNNING,
    SUSPENDED,
    Event,
    Observation,
    Outcome,
    Progress,
    Step,
    TrainJob,
    build_partition_annotations,
    build_partition_labels,
    build_reuse_labels,
)
from trainer_core.model.request import TrainJobRequest
from trainer_core.model.runtimes import Runtime, RuntimeTrainer, TrainerType

_EVENTS = {
    job_journal.SUSPEND: ("Suspended", "TrainJob is suspended"),
    job_journal.RESUME: ("Resumed", "TrainJob is resumed"),
}


def get_status(job: ContainerJob) -> str:
    if job.outcome is not None:
        return job.outcome.status
    if job.is_suspended:
        return SUSPENDED
    has_started = job.is_launched or any(each.started for each in job.containers if each.run == job.run)
    return RUNNING if has_started else CREATED


def observe_job(job: ContainerJob, progress: Progress | None) -> Observation:
    attempt = job.get_attempt_restarts(without_waiting=True)
    restarts = attempt.earlier if attempt else None
    queued = _describe_restart(job)
    return Observation(get_status(job), progress=progress, outcome=job.outcome, queued=queued, restarts=restarts)


def _describe_restart(job: ContainerJob) -> str | None:
    """Return what a job waits for between two starts; None if it does not."""
    entry = job.waiting_restart if job.outcome is None else None
    return _describe_ended_start(entry) if entry else None


def _describe_ended_start(entry: JournalEntry) -> str:
    return f"started again in {entry.data['delay']:.0f} s: {Outcome.from_dict(entry.data['outcome']).diagnosis}"


def to_existing_job(job: ContainerJob) -> ExistingJob:
    return ExistingJob(
        name=job.name,
        status=get_status(job),
        fingerprint=job.claim["fingerprint"],
        owner_key=job.claim.get("owner_key"),
        generation=job.claim.get("generation"),
        attempt=job.claim["attempt"],
    )


def parse_request(job: ContainerJob) -> TrainJobRequest:
    try:
        return TrainJobRequest.parse(job.claim["request"])
    except InvalidRequestError as error:
        raise InvalidRequestError(
            f"request of TrainJob {job.name!r} cannot be parsed ({error}); delete the job: `trainjob delete {job.name}`"
        ) from error


def get_start_time(job: ContainerJob) -> datetime | None:
    """Return when the first step started."""
    times = [each.started for each in job.containers if each.started]
    times += [datetime.fromisoformat(e.data["started"]) for e in job.entries if e.kind == job_journal.COPIED]
    return min(times, default=None)


def get_end_time(job: ContainerJob) -> datetime | None:
    finished = job.outcome and job.outcome.finished_at
    return datetime.fromisoformat(finished) if finished else None


def build_train_job(job: ContainerJob, progress: Progress | None) -> TrainJob:
    request = job.claim["request"]
    metadata, partition = request.get("metadata") or {}, request.get("partition")
    labels = dict(metadata.get("labels") or {})
    labels.update(build_partition_labels(partition))
    labels.update(build_reuse_labels(request.get("reuse_key")))
    diagnosis = job.outcome.diagnosis if job.outcome else None
    return TrainJob(
        name=job.name,
        runtime=_load_runtime(job),
        steps=[_build_step(job, step) for step in job.plan["steps"]],
        num_nodes=sum(step["kind"] == NODE for step in job.plan["steps"]),
        creation_timestamp=job.created,
        status=get_status(job),
        uid=job.uid,
        namespace=job.namespace,
        labels=labels,
        annotations={**(metadata.get("annotations") or {}), **build_partition_annotations(partition)},
        started=get_start_time(job),
        finished=get_end_time(job),
        progress=progress,
        reason=str(diagnosis) if diagnosis else _describe_restart(job),
    )


def list_events(job: ContainerJob) -> list[Event]:
    """Return the events of a job, oldest first."""
    events = [_job_event(job, job.created, "Created", f"TrainJob {job.name} is created")]
    events += [event for each in job.containers for event in _list_container_events(each)]
    events += [
        _to_event(job, entry) for entry in job.entries if entry.kind not in (job_journal.LAUNCH, job_journal.END)
    ]
    events.sort(key=lambda event: event.event_time)
    if job.outcome is not None:
        message = str(job.outcome.diagnosis) if job.outcome.diagnosis else f"TrainJob {job.name} is complete"
        # Containers may stop after the end was recorded; the end of the job is still its last event.
        ended = max(job.entries[-1].at, events[-1].event_time)
        event_type = "Warning" if job.outcome.status == "Failed" else "Normal"
        events.append(_job_event(job, ended, job.outcome.status, message, event_type))
    return events


def _to_event(job: ContainerJob, entry: JournalEntry) -> Event:
    if entry.kind == job_journal.COPIED:
        lines = entry.data["log"]
        error = entry.data.get("error")
        message = error or (lines[-1] if lines else "the data is available")
        return _step_event(entry.data["step"], entry.at, "Ended", message, "Warning" if error else "Normal")
    if entry.kind == job_journal.NOTE:
        return _job_event(job, entry.at, entry.data["reason"], entry.data["message"])
    if entry.kind == job_journal.RESTART:
        return _job_event(job, entry.at, "Restarting", f"TrainJob is {_describe_ended_start(entry)}")
    reason, message = _EVENTS[entry.kind]
    return _job_event(job, entry.at, reason, message)


def _list_container_events(each: Container) -> Iterator[Event]:
    if each.started:
        yield _step_event(each.step, each.started, "Started", f"{each.step} is started as container {each.name}")
    if each.has_exited and each.finished:
        event_type = "Warning" if each.failed else "Normal"
        message = f"{each.step} ended with exit code {each.exit_code}"
        yield _step_event(each.step, each.finished, "Ended", message, event_type)


def _job_event(job: ContainerJob, time: datetime, reason: str, message: str, event_type: str = "Normal") -> Event:
    return Event("TrainJob", job.name, message, reason, time, event_type)


def _step_event(step: str, time: datetime, reason: str, message: str, event_type: str = "Normal") -> Event:
    return Event("Step", step, message, reason, time, event_type)


def _build_step(job: ContainerJob, step: Mapping[str, Any]) -> Step:
    name = step["name"]
    copied = job.get_copy_result(name)
    if copied is not None:
        started, finished = (datetime.fromisoformat(copied[key]) for key in ("started", "finished"))
        return Step(name, "Failed" if copied.get("error") else "Succeeded", "", started=started, finished=finished)
    container = _select_container(job, name)
    device, count = ("gpu", str(step["gpus"])) if step.get("gpus") else ("cpu", _format_cpus(step))
    if container is None:
        return Step(name, "Pending", "", device, count)
    return Step(
        name=name,
        status=_get_step_status(container),
        pod_name=container.name,
        device=device,
        device_count=count,
        exit_code=container.exit_code if container.has_exited else None,
        restarts=container.run,
        started=container.started,
        finished=container.finished if container.has_exited else None,
    )


def _select_container(job: ContainerJob, step: str) -> Container | None:
    """Return the container that represents a step; None for a step that is pending.

    Initializers keep their success. A node of a suspended job is represented only while it is still stopping.
    """
    runs = job.list_runs(step)
    last = runs[-1] if runs else None
    if last is None or (last.succeeded and not step.startswith("node-")):
        return last
    if job.outcome is not None:
        return last
    return last if last.is_running or (last.run == job.run and not job.is_suspended) else None


def _get_step_status(container: Container) -> str:
    if container.is_running:
        return "Running"
    if container.is_new:
        return "Pending"
    return "Succeeded" if container.succeeded else "Failed"


def _format_cpus(step: Mapping[str, Any]) -> str:
    return f"{step['nano_cpus'] / 10**9:g}" if step.get("nano_cpus") else "Unknown"


def _load_runtime(job: ContainerJob) -> Runtime:
    """Return the runtime that was recorded when the job was created; a placeholder for a job without a trainer."""
    recorded = runtimes.load_runtime({labels.RUNTIME: job.claim.get("runtime") or ""})
    if recorded is not None:
        return recorded
    trainer = RuntimeTrainer(trainer_type=TrainerType.CUSTOM_TRAINER, framework="none", image="")
    return Runtime(name=job.plan.get("runtime") or "none", trainer=trainer)
