"""Raw events of both APIs → jobs.Event, and what is kept of them to explain a job. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from trainer_core.cluster.kinds import JOBS, JOBSETS, PODS
from trainer_core.cluster.pods import DATASET_INITIALIZER, LAUNCHER, MODEL_INITIALIZER, NODE
from trainer_core.cluster.raw import Raw, one_line, time_of
from trainer_core.jobs import Event

__all__ = ["EventFacts", "jobset_forms", "of_job", "read", "shown"]

#: What Kubernetes adds to the name of a pod.
_POD_TAIL = r"-[a-z0-9]{5}"
_NEVER = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class EventFacts:
    """What is kept of an event.

    Attributes:
        kind: Kind of the object it happened to.
        name: Name of that object.
        uid: Identity of that object, where the event tells.
        reason: What happened, in one word.
        message: What happened, for a person.
        time: When it last happened.
        type: Normal or Warning.
        count: How often.
    """

    kind: str
    name: str
    uid: str
    reason: str
    message: str
    time: datetime
    type: str = "Normal"
    count: int = 1

    @property
    def warning(self) -> bool:
        """Whether something went wrong."""
        return self.type == "Warning"


def read(raw: Raw) -> EventFacts:
    """Return what is kept of a raw event, of core/v1 or of events.k8s.io/v1."""
    about = raw.get("involvedObject") or raw.get("regarding") or {}
    series = raw.get("series") or {}
    return EventFacts(
        kind=about.get("kind") or "",
        name=about.get("name") or "",
        uid=about.get("uid") or "",
        reason=raw.get("reason") or "",
        message=one_line(raw.get("message") or raw.get("note")),
        time=_time(raw, series),
        type=raw.get("type") or "Normal",
        count=series.get("count") or raw.get("count") or raw.get("deprecatedCount") or 1,
    )


def _time(raw: Raw, series: Raw) -> datetime:
    """When it last happened: controllers of both APIs fill in different fields, and null the others."""
    texts = (
        series.get("lastObservedTime"),
        raw.get("eventTime"),
        raw.get("lastTimestamp") or raw.get("deprecatedLastTimestamp"),
        raw.get("firstTimestamp") or raw.get("deprecatedFirstTimestamp"),
        (raw.get("metadata") or {}).get("creationTimestamp"),
    )
    return next((time for text in texts if (time := time_of(text))), _NEVER)


def of_job(
    events: Iterable[EventFacts],
    uid: str,
    created: datetime,
    forms: Mapping[str, re.Pattern[str]],
    pods: Iterable[str] = (),
) -> list[EventFacts]:
    """Return the events of a job and of what was made for it, oldest first.

    Args:
        events: Any events of its namespace.
        uid: Its identity: events outlive their objects, and names are given again.
        created: When it was created.
        forms: The names of what is made for it, by kind of object.
        pods: Names of its pods; pods that are gone are known by the form of their names.
    """
    known = frozenset(pods)

    def belongs(event: EventFacts) -> bool:
        if event.uid == uid:
            return True
        form = forms.get(event.kind)
        named = event.name in known or (form is not None and form.fullmatch(event.name) is not None)
        return named and event.time >= created

    return sorted((event for event in events if belongs(event)), key=lambda event: event.time)


def jobset_forms(name: str, roles: Iterable[str] = ()) -> dict[str, re.Pattern[str]]:
    """Return the names of what JobSet makes for a job, and of the pods of a plain Job, by kind of object.

    Args:
        name: Name of the TrainJob, or of the Job of one that only initializes.
        roles: The replicated Jobs of a TrainJob besides the usual ones.
    """
    usual = (DATASET_INITIALIZER, MODEL_INITIALIZER, LAUNCHER, NODE)
    role = "|".join(re.escape(one) for one in sorted({*usual, *roles}))
    return {
        JOBSETS.kind: re.compile(re.escape(name)),
        JOBS.kind: re.compile(rf"{re.escape(name)}(-({role})-\d+)?"),
        PODS.kind: re.compile(rf"{re.escape(name)}(-({role})-\d+-\d+)?{_POD_TAIL}"),
    }


def shown(event: EventFacts) -> Event:
    """Return an event as the API reference knows it; one that happened often says how often."""
    often = f" (x{event.count})" if event.count > 1 else ""
    return Event(
        involved_object_kind=event.kind,
        involved_object_name=event.name,
        message=f"{event.message}{often}",
        reason=event.reason,
        event_time=event.time,
        type=event.type,
    )
