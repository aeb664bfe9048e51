"""A job's book and containers → what an observer sees. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from trainer_core.attempts import Found
from trainer_core.backends.container import book
from trainer_core.backends.container.book import Container, Entry, Job
from trainer_core.backends.container.spec import NODE
from trainer_core.cluster import marks, runtimes
from trainer_core.errors import InvalidRequestError
from trainer_core.jobs import Event, Step, TrainJob
from trainer_core.observation import CREATED, RUNNING, SUSPENDED, Observation, Progress
from trainer_core.request import TrainJobRequest
from trainer_core.runtimes import Runtime, RuntimeTrainer, TrainerType

__all__ = ["events", "finished", "found", "observation", "request", "started", "status", "train_job"]

_SAID = {
    book.SUSPEND: ("Suspended", "TrainJob is suspended"),
    book.RESUME: ("Resumed", "TrainJob is resumed"),
}


def status(job: Job) -> str:
    """Return the status of a job."""
    if job.outcome is not None:
        return job.outcome.status
    if job.suspended:
        return SUSPENDED
    ran = job.launched or any(each.started for each in job.containers if each.run == job.run)
    return RUNNING if ran else CREATED


def observation(job: Job, progress: Progress | None) -> Observation:
    """Return what is to be seen of a job.

    Args:
        job: The job.
        progress: What its training last reported.
    """
    return Observation(status(job), progress=progress, outcome=job.outcome)


def found(job: Job) -> Found:
    """Return what a submitter has to know of a job."""
    return Found(
        name=job.name,
        status=status(job),
        fingerprint=job.made["fingerprint"],
        owner_key=job.made.get("owner_key"),
        generation=job.made.get("generation"),
        attempt=job.made["attempt"],
    )


def request(job: Job) -> TrainJobRequest:
    """Return the request a job was made from.

    Raises:
        InvalidRequestError: It was written by another version, which this one does not understand.
    """
    try:
        return TrainJobRequest.parse(job.made["request"])
    except InvalidRequestError as error:
        raise InvalidRequestError(
            f"the request of TrainJob {job.name!r} cannot be read ({error}); delete it: `trainjob delete {job.name}`"
        ) from error


def started(job: Job) -> datetime | None:
    """Return when the first of a job's steps started."""
    times = [each.started for each in job.containers if each.started]
    times += [datetime.fromisoformat(e.data["started"]) for e in job.entries if e.kind == book.COPIED]
    return min(times, default=None)


def finished(job: Job) -> datetime | None:
    """Return when a job ended."""
    ended = job.outcome and job.outcome.finished_at
    return datetime.fromisoformat(ended) if ended else None


def train_job(job: Job, progress: Progress | None) -> TrainJob:
    """Return a job as the API reference knows it."""
    asked = job.made["request"].get("metadata") or {}
    steps = [_step(job, step) for step in job.plan["steps"]]
    return TrainJob(
        name=job.name,
        runtime=_runtime(job),
        steps=steps,
        num_nodes=sum(step["kind"] == NODE for step in job.plan["steps"]),
        creation_timestamp=job.created,
        status=status(job),
        uid=job.uid,
        namespace=job.namespace,
        labels=dict(asked.get("labels") or {}),
        annotations=dict(asked.get("annotations") or {}),
        started=started(job),
        finished=finished(job),
        progress=progress,
        reason=str(job.outcome.diagnosis) if job.outcome and job.outcome.diagnosis else None,
    )


def events(job: Job) -> list[Event]:
    """Return what happened to a job, oldest first."""
    happened = [_event(job, job.created, "Created", f"TrainJob {job.name} is created")]
    happened += [event for each in job.containers for event in _of_container(each)]
    happened += [_of_entry(job, entry) for entry in job.entries if entry.kind not in (book.LAUNCH, book.END)]
    happened.sort(key=lambda event: event.event_time)
    if job.outcome is not None:
        said = str(job.outcome.diagnosis) if job.outcome.diagnosis else f"TrainJob {job.name} is complete"
        # What was still running then ended after it; the end of the job is its last word all the same.
        ended = max(job.entries[-1].at, happened[-1].event_time)
        happened.append(_event(job, ended, job.outcome.status, said, _type(job.outcome.status)))
    return happened


def _of_entry(job: Job, entry: Entry) -> Event:
    if entry.kind == book.COPIED:
        lines = entry.data["log"]
        error = entry.data.get("error")
        said = error or (lines[-1] if lines else "it is there")
        return _step_event(entry.data["step"], entry.at, "Ended", said, "Warning" if error else "Normal")
    if entry.kind == book.NOTE:
        return _event(job, entry.at, entry.data["reason"], entry.data["message"])
    reason, said = _SAID[entry.kind]
    return _event(job, entry.at, reason, said)


def _of_container(each: Container) -> Iterator[Event]:
    if each.started:
        yield _step_event(each.step, each.started, "Started", f"{each.step} is started as container {each.name}")
    if each.ended and each.finished:
        kind = "Warning" if each.failed else "Normal"
        yield _step_event(each.step, each.finished, "Ended", f"{each.step} ended with exit code {each.exit_code}", kind)


def _event(job: Job, time: datetime, reason: str, message: str, type: str = "Normal") -> Event:
    return Event("TrainJob", job.name, message, reason, time, type)


def _step_event(step: str, time: datetime, reason: str, message: str, type: str = "Normal") -> Event:
    return Event("Step", step, message, reason, time, type)


def _type(status: str) -> str:
    return "Warning" if status == "Failed" else "Normal"


def _step(job: Job, step: Mapping[str, Any]) -> Step:
    name = step["name"]
    copied = job.copied(name)
    if copied is not None:
        began, ended = (datetime.fromisoformat(copied[key]) for key in ("started", "finished"))
        return Step(name, "Failed" if copied.get("error") else "Succeeded", "", started=began, finished=ended)
    now = _shown(job, name)
    device, count = ("gpu", str(step["gpus"])) if step.get("gpus") else ("cpu", _cpus(step))
    if now is None:
        return Step(name, "Pending", "", device, count)
    return Step(
        name=name,
        status=_step_status(now),
        pod_name=now.name,
        device=device,
        device_count=count,
        exit_code=now.exit_code if now.ended else None,
        restarts=now.run,
        started=now.started,
        finished=now.finished if now.ended else None,
    )


def _shown(job: Job, step: str) -> Container | None:
    """The container that stands for a step: of a suspended job only one that still runs, or has succeeded for good."""
    runs = job.of_step(step)
    last = runs[-1] if runs else None
    if last is None or (last.succeeded and not step.startswith("node-")):
        return last
    if job.outcome is not None:
        return last
    return last if last.running or (last.run == job.run and not job.suspended) else None


def _step_status(each: Container) -> str:
    if each.running:
        return "Running"
    if each.fresh:
        return "Pending"
    return "Succeeded" if each.succeeded else "Failed"


def _cpus(step: Mapping[str, Any]) -> str:
    return f"{step['nano_cpus'] / 10**9:g}" if step.get("nano_cpus") else "Unknown"


def _runtime(job: Job) -> Runtime:
    """The runtime a job was made from; a stand-in for a job that only fetches."""
    recorded = runtimes.recorded({marks.RUNTIME: job.made.get("runtime") or ""})
    if recorded is not None:
        return recorded
    trainer = RuntimeTrainer(trainer_type=TrainerType.CUSTOM_TRAINER, framework="none", image="")
    return Runtime(name=job.plan.get("runtime") or "none", trainer=trainer)
