"""Cache of jobs and their pods, built from lists and watch events in the order of their resourceVersion. Pure.

A list and a watch of the same objects can overtake each other: a new subscriber's job is listed while the watch runs.
The cache drops every event and list item that is older than what it holds. So no job goes back in time, no deleted pod
reappears, and no deletion is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

from trainer_core.k8s.parsing import RawObject
from trainer_core.k8s.resources import ApiResource

_DELETED = "DELETED"


class Stream(IntFlag):
    """The two resources whose lists and watch events fill the cache."""

    JOBS = 1
    PODS = 2


@dataclass(frozen=True)
class WatchTarget:
    """The jobs to watch, and the part of each object to keep."""

    resource: ApiResource
    #: Label of a pod whose value is the name of its job.
    pod_label: str
    #: Job object → the comparable part of it to keep; None for an object to ignore.
    transform_job: Callable[[RawObject], Any]
    #: Pod object → the comparable part of it to keep.
    transform_pod: Callable[[RawObject], Any]


class CachedJob:
    """State of one job and its pods. The cache may hold ten thousand, so each one is small.

    Attributes:
        job: Result of `WatchTarget.transform_job`; None if the job does not exist.
        uid: ``metadata.uid`` of the job; empty if it does not exist.
        version: resourceVersion of this state; 0 if the job has not been listed yet.
        pods: By pod name: resourceVersion, and the result of `WatchTarget.transform_pod`. That result is None for a pod
            that was deleted but may still appear in a list that is under way.
        pods_list_version: resourceVersion of the last list of the pods; pods missing from it do not exist.
    """

    __slots__ = ("job", "pods", "pods_list_version", "uid", "version")

    def __init__(self) -> None:
        self.job: Any = None
        self.uid = ""
        self.version = 0
        self.pods: dict[str, tuple[int, Any]] | None = None
        self.pods_list_version = 0

    def list_pods(self) -> tuple[Any, ...]:
        """Return the kept part of each existing pod, sorted by pod name."""
        pods = self.pods or {}
        return tuple(pods[name][1] for name in sorted(pods) if pods[name][1] is not None)


class JobCache:
    """Jobs by name. Holds only the jobs added to `jobs`; events of other jobs are ignored."""

    def __init__(self, target: WatchTarget) -> None:
        self.jobs: dict[str, CachedJob] = {}
        self._target = target
        self._newest: dict[Stream, int] = {}

    def get_newest_version(self, stream: Stream) -> int:
        """Return the highest resourceVersion of an event or a complete list; 0 if there was none."""
        return self._newest.get(stream, 0)

    def forget_versions(self, stream: Stream) -> None:
        """Accept every further event: the server was restored from a backup and counts from an earlier version."""
        self._newest.pop(stream, None)
        for entry in self.jobs.values():
            if stream == Stream.JOBS:
                entry.version = min(entry.version, 1)
            else:
                entry.pods = {name: (0, pod) for name, (_, pod) in (entry.pods or {}).items() if pod is not None}
                entry.pods_list_version = 0

    def apply_event(self, stream: Stream, event_type: str, raw: RawObject) -> str | None:
        """Apply a watch event or an item of a list."""
        metadata = raw.get("metadata") or {}
        self._note_version(stream, parse_resource_version(metadata.get("resourceVersion")))
        if stream == Stream.JOBS:
            return self._apply_job(event_type, raw, metadata)
        return self._apply_pod(event_type, raw, metadata)

    def finish_list(
        self, stream: Stream, listed: Mapping[str, Collection[str]], version: int, jobs: Mapping[str, CachedJob]
    ) -> list[str]:
        """Remove what a complete list does not contain."""
        self._note_version(stream, version)
        current = [(name, entry) for name, entry in jobs.items() if self.jobs.get(name) is entry]
        if stream == Stream.JOBS:
            return [name for name, entry in current if name not in listed and _remove_job(entry, version)]
        return [name for name, entry in current if _remove_pods(entry, listed.get(name, ()), version)]

    def _note_version(self, stream: Stream, version: int) -> None:
        self._newest[stream] = max(version, self._newest.get(stream, 0))

    def _apply_job(self, event_type: str, raw: RawObject, metadata: Mapping[str, Any]) -> str | None:
        name = str(metadata.get("name"))
        entry = self.jobs.get(name)
        version = parse_resource_version(metadata.get("resourceVersion"))
        if entry is None or version < entry.version:
            return None
        job = None if event_type == _DELETED else self._target.transform_job(raw)
        uid = "" if job is None else str(metadata.get("uid") or "")
        changed = (job, uid) != (entry.job, entry.uid) or not entry.version
        entry.job, entry.uid, entry.version = job, uid, version
        return name if changed else None

    def _apply_pod(self, event_type: str, raw: RawObject, metadata: Mapping[str, Any]) -> str | None:
        job = str((metadata.get("labels") or {}).get(self._target.pod_label))
        entry = self.jobs.get(job)
        if entry is None:
            return None
        name, version = str(metadata.get("name")), parse_resource_version(metadata.get("resourceVersion"))
        pods = entry.pods if entry.pods is not None else {}
        cached_version, cached = pods.get(name, (entry.pods_list_version + 1, None))
        if version and version < cached_version:
            return None
        new = None if event_type == _DELETED else self._target.transform_pod(raw)
        # A deleted pod is kept as None until a newer list is complete: an older one under way may still contain it.
        pods[name] = (version, new)
        entry.pods = pods
        return job if new != cached else None


def parse_resource_version(version: Any) -> int:
    """Return a resourceVersion as a number, 0 if it is not one. Since 1.35 they are guaranteed to increase."""
    return int(version) if str(version).isdecimal() else 0


def _remove_job(entry: CachedJob, version: int) -> bool:
    if entry.version > version:
        return False
    changed = entry.job is not None or not entry.version
    entry.job, entry.uid, entry.version = None, "", version
    return changed


def _remove_pods(entry: CachedJob, listed: Collection[str], version: int) -> bool:
    entry.pods_list_version = max(entry.pods_list_version, version)
    pods = entry.pods or {}
    # A deletion that is newer than the list is kept, too: another list under way may still contain the pod.
    kept = {name: pod for name, pod in pods.items() if pod[0] > version or (pod[1] is not None and name in listed)}
    changed = any(pod[1] is not None for name, pod in pods.items() if name not in kept)
    entry.pods = kept or None
    return changed
