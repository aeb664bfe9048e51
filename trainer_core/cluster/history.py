"""What a job tells of its own history, as events: Trainer itself records only failures to create. Pure."""

from __future__ import annotations

from datetime import datetime

from trainer_core.cluster.jobfacts import JobFacts
from trainer_core.jobs import Event
from trainer_core.observation import COMPLETE, FAILED, SUSPENDED

__all__ = ["ended_at", "history"]


def ended_at(job: JobFacts) -> datetime | None:
    """Return when a job has ended; None where it has not."""
    condition = job.condition(COMPLETE) or job.condition(FAILED)
    return condition.time if condition else job.cancelled


def history(job: JobFacts) -> list[Event]:
    """Return that a job was created, suspended, cancelled, and how it has ended; oldest first."""
    told = [_event(job, "Created", f"TrainJob {job.name} is created", job.created)]
    for kind in (SUSPENDED, COMPLETE, FAILED):
        condition = job.condition(kind)
        if condition is not None and condition.time is not None:
            told.append(_event(job, kind, condition.message or f"TrainJob {job.name} is {kind}", condition.time))
    if job.cancelled is not None:
        told.append(_event(job, "Cancelled", f"TrainJob {job.name} was cancelled", job.cancelled))
    return sorted(told, key=lambda event: event.event_time)


def _event(job: JobFacts, reason: str, message: str, time: datetime) -> Event:
    return Event("TrainJob", job.name, message, reason, time, "Warning" if reason == FAILED else "Normal")
