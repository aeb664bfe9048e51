"""What is known of the jobs that somebody waits for: lists and events, merged in the order of their versions. Pure.

A list and a watch of the same objects may overtake each other: a newcomer's job is listed while the watch goes on.
What comes later from an older version is dropped here, so that no job goes back in time, no deleted pod comes back, and
no deletion is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.cluster.kinds import Kind
from trainer_core.cluster.raw import Raw

__all__ = ["JOBS", "PODS", "Entry", "Known", "Watched", "number"]

#: The two parts of what is known, as bits.
JOBS = 1
PODS = 2
_DELETED = "DELETED"


@dataclass(frozen=True)
class Watched:
    """What to watch, and what to keep of it.

    Attributes:
        kind: Kind of the jobs.
        pod_label: Label of a pod that says the name of its job.
        distill_job: Job as the server sends it → the little to keep of it, comparable; None for a job of no interest.
        distill_pod: Pod as the server sends it → the little to keep of it, comparable.
    """

    kind: Kind
    pod_label: str
    distill_job: Callable[[Raw], Any]
    distill_pod: Callable[[Raw], Any]


class Entry:
    """One job. Ten thousand of these are kept: attributes are few, and absent where there is nothing to say.

    Attributes:
        job: What was distilled of it; None when there is no such job.
        uid: Its uid; empty when there is none.
        labels: Its labels, where somebody selects by them.
        version: The version as of which this is known; 0 for not yet.
        pods: Version and what was distilled, by name; None for a pod that is deleted but may still turn up in a list.
        listed: The version of the last list of pods: what it did not show is no more.
    """

    __slots__ = ("job", "labels", "listed", "pods", "uid", "version")

    def __init__(self) -> None:
        self.job: Any = None
        self.uid = ""
        self.labels: Mapping[str, str] | None = None
        self.version = 0
        self.pods: dict[str, tuple[int, Any]] | None = None
        self.listed = 0

    def facts(self) -> tuple[Any, ...]:
        """Return what is known of its pods, sorted by name."""
        pods = self.pods or {}
        return tuple(pods[name][1] for name in sorted(pods) if pods[name][1] is not None)


class Known:
    """Jobs that are kept, by name.

    Attributes:
        entries: What is known of each.
        selectors: Labels; a job that has all of one of these is kept without being asked for by name.
    """

    def __init__(self, watched: Watched) -> None:
        self.entries: dict[str, Entry] = {}
        self.selectors: list[Mapping[str, str]] = []
        self._watched = watched

    def take(self, part: int, event: str, raw: Raw) -> str | None:
        """Take in an event.

        Args:
            part: `JOBS` or `PODS`.
            event: ``ADDED``, ``MODIFIED`` or ``DELETED``.
            raw: The object as the server sends it.

        Returns:
            The name of the job of which something new is known, None if there is nothing new.
        """
        metadata = raw.get("metadata") or {}
        return self._take_job(event, raw, metadata) if part == JOBS else self._take_pod(event, raw, metadata)

    def end_list(
        self, part: int, seen: Mapping[str, Collection[str]], version: int, entries: Mapping[str, Entry]
    ) -> list[str]:
        """Take in that a list is complete: what it did not show is gone.

        Args:
            part: `JOBS` or `PODS`.
            seen: Names of the jobs that it showed, each with the names of its pods.
            version: The list's own version.
            entries: The jobs that it was a list of, as they were kept when it began. One that is kept only since then
                may have been shown before, and was not taken in.

        Returns:
            The names of the jobs of which something new is known.
        """
        found = [(name, entry) for name, entry in entries.items() if self.entries.get(name) is entry]
        if part == JOBS:
            return [name for name, entry in found if name not in seen and _no_job(entry, version)]
        return [name for name, entry in found if _only_pods(entry, seen.get(name, ()), version)]

    def forget(self, name: str) -> None:
        """Keep a job no longer, unless its labels are selected."""
        entry = self.entries.get(name)
        if entry is not None and (entry.job is None or not self._selects(entry.labels or {})):
            del self.entries[name]

    def _take_job(self, event: str, raw: Raw, metadata: Mapping[str, Any]) -> str | None:
        name = str(metadata.get("name"))
        labels = metadata.get("labels") or {}
        entry = self.entries.get(name)
        if entry is None:
            if event == _DELETED or not self._selects(labels):
                return None
            entry = self.entries[name] = Entry()
        version = number(metadata.get("resourceVersion"))
        if version < entry.version:
            return None
        job = None if event == _DELETED else self._watched.distill_job(raw)
        uid = "" if job is None else str(metadata.get("uid") or "")
        kept_labels = dict(labels) if self.selectors and job is not None else None
        changed = (job, uid, kept_labels) != (entry.job, entry.uid, entry.labels) or not entry.version
        entry.job, entry.uid, entry.labels, entry.version = job, uid, kept_labels, version
        return name if changed else None

    def _take_pod(self, event: str, raw: Raw, metadata: Mapping[str, Any]) -> str | None:
        job = str((metadata.get("labels") or {}).get(self._watched.pod_label))
        entry = self.entries.get(job)
        if entry is None:
            return None
        name, version = str(metadata.get("name")), number(metadata.get("resourceVersion"))
        pods = entry.pods if entry.pods is not None else {}
        known, facts = pods.get(name, (entry.listed + 1, None))
        if version and version < known:
            return None
        new = None if event == _DELETED else self._watched.distill_pod(raw)
        # What is deleted is remembered until the next list has shown that it is: one may be under way that does not.
        pods[name] = (version, new)
        entry.pods = pods
        return job if new != facts else None

    def _selects(self, labels: Mapping[str, str]) -> bool:
        return any(selector.items() <= labels.items() for selector in self.selectors)


def number(version: Any) -> int:
    """Return a resourceVersion as a number: they grow, which Kubernetes promises since 1.35 and has always kept to."""
    return int(version) if str(version).isdecimal() else 0


def _no_job(entry: Entry, version: int) -> bool:
    if entry.version > version:
        return False
    changed = entry.job is not None or not entry.version
    entry.job, entry.uid, entry.labels, entry.version = None, "", None, version
    return changed


def _only_pods(entry: Entry, seen: Collection[str], version: int) -> bool:
    entry.listed = max(entry.listed, version)
    pods = entry.pods or {}
    kept = {name: pod for name, pod in pods.items() if pod[1] is not None and (name in seen or pod[0] > version)}
    changed = any(pod[1] is not None for name, pod in pods.items() if name not in kept)
    entry.pods = kept or None
    return changed
