"""Kubernetes events of a job (core/v1, events.k8s.io/v1), and events derived from its status. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from sys import intern

from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.parsing import RawObject, parse_time, to_single_line
from trainer_core.k8s.pod_state import LAUNCHER
from trainer_core.k8s.resources import JOBS, JOBSETS, PODS
from trainer_core.k8s.runtimes import DATASET_INITIALIZER, MODEL_INITIALIZER, NODE
from trainer_core.model.jobs import COMPLETE, FAILED, SUSPENDED, Event

#: Suffix that the Job controller appends to the name of a pod.
_POD_SUFFIX = r"-[a-z0-9]{5}"
#: Object of Kueue for a job, named after the kind and the name of the job.
WORKLOAD_KIND = "Workload"
_NEVER = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """The fields of a Kubernetes event that job status and failure detection use."""

    #: Kind of the regarding object (`involvedObject.kind`).
    object_kind: str
    object_name: str
    #: UID of that object; empty if the event has none.
    object_uid: str
    reason: str
    message: str
    timestamp: datetime
    #: `Normal` or `Warning`.
    type: str = "Normal"
    count: int = 1
    #: When it first occurred; None for `timestamp`.
    first_timestamp: datetime | None = None
    #: What reports it, such as `default-scheduler` or `karpenter`.
    component: str = ""

    @property
    def began(self) -> datetime:
        """When the event first occurred."""
        return self.first_timestamp or self.timestamp

    @property
    def is_warning(self) -> bool:
        """Whether the event has type `Warning`."""
        return self.type == "Warning"


def parse_event(raw: RawObject) -> EventRecord:
    """Parse an event of core/v1 or of events.k8s.io/v1."""
    regarding = raw.get("involvedObject") or raw.get("regarding") or {}
    series = raw.get("series") or {}
    return EventRecord(
        object_kind=regarding.get("kind") or "",
        object_name=regarding.get("name") or "",
        object_uid=regarding.get("uid") or "",
        reason=raw.get("reason") or "",
        message=to_single_line(raw.get("message") or raw.get("note")),
        timestamp=_parse_timestamp(raw, series),
        type=raw.get("type") or "Normal",
        count=series.get("count") or raw.get("count") or raw.get("deprecatedCount") or 1,
        first_timestamp=_find_time(
            raw.get("eventTime"), raw.get("firstTimestamp") or raw.get("deprecatedFirstTimestamp")
        ),
        component=intern(_parse_component(raw)),
    )


def _parse_component(raw: RawObject) -> str:
    source = raw.get("source") or raw.get("deprecatedSource") or {}
    return raw.get("reportingComponent") or raw.get("reportingController") or source.get("component") or ""


def _parse_timestamp(raw: RawObject, series: RawObject) -> datetime:
    # Controllers set different time fields, depending on the API version, and leave the others null.
    time = _find_time(
        series.get("lastObservedTime"),
        raw.get("eventTime"),
        raw.get("lastTimestamp") or raw.get("deprecatedLastTimestamp"),
        raw.get("firstTimestamp") or raw.get("deprecatedFirstTimestamp"),
        (raw.get("metadata") or {}).get("creationTimestamp"),
    )
    return time or _NEVER


def _find_time(*texts: str | None) -> datetime | None:
    return next((time for text in texts if (time := parse_time(text))), None)


def filter_job_events(
    events: Iterable[EventRecord],
    uid: str,
    name: str,
    created: datetime,
    name_patterns: Mapping[str, re.Pattern[str]],
    pods: Iterable[str] = (),
) -> list[EventRecord]:
    """Return the events of a job and of its child objects, oldest first."""
    pod_names = frozenset(pods)
    patterns = {**name_patterns, WORKLOAD_KIND: re.compile(rf"[a-z]+-{re.escape(name)}-[0-9a-f]{{5}}")}

    def belongs(event: EventRecord) -> bool:
        if event.object_uid == uid:
            return True
        pattern = patterns.get(event.object_kind)
        name_matches = event.object_name in pod_names or (
            pattern is not None and pattern.fullmatch(event.object_name) is not None
        )
        return name_matches and event.timestamp >= created

    return sorted((event for event in events if belongs(event)), key=lambda event: event.timestamp)


def build_jobset_name_patterns(name: str, replicated_jobs: Iterable[str] = ()) -> dict[str, re.Pattern[str]]:
    """Return the names of the objects that JobSet creates for a job, and of the pods of a plain Job, by kind."""
    standard = (DATASET_INITIALIZER, MODEL_INITIALIZER, LAUNCHER, NODE)
    names = "|".join(re.escape(each) for each in sorted({*standard, *replicated_jobs}))
    return {
        JOBSETS.kind: re.compile(re.escape(name)),
        JOBS.kind: re.compile(rf"{re.escape(name)}(-({names})-\d+)?"),
        PODS.kind: re.compile(rf"{re.escape(name)}(-({names})-\d+-\d+)?{_POD_SUFFIX}"),
    }


def to_public_event(event: EventRecord) -> Event:
    """Convert to the public `Event`; the message of a repeated event ends with its count."""
    count = f" (x{event.count})" if event.count > 1 else ""
    return Event(
        involved_object_kind=event.object_kind,
        involved_object_name=event.object_name,
        message=f"{event.message}{count}",
        reason=event.reason,
        event_time=event.timestamp,
        type=event.type,
    )


def build_status_events(job: JobState) -> list[Event]:
    """Derive events from the status, oldest first: Trainer emits some only when it cannot create a resource."""
    events = [_build_status_event(job, "Created", f"TrainJob {job.name} is created", job.creation_timestamp)]
    for type_ in (SUSPENDED, COMPLETE, FAILED):
        condition = job.get_condition(type_)
        if condition is not None and condition.last_transition_time is not None:
            message = condition.message or f"TrainJob {job.name} is {type_}"
            events.append(_build_status_event(job, type_, message, condition.last_transition_time))
    if job.cancelled_at is not None:
        events.append(_build_status_event(job, "Cancelled", f"TrainJob {job.name} was cancelled", job.cancelled_at))
    return sorted(events, key=lambda event: event.event_time)


def _build_status_event(job: JobState, reason: str, message: str, time: datetime) -> Event:
    return Event("TrainJob", job.name, message, reason, time, "Warning" if reason == FAILED else "Normal")
