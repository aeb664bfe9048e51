"""Looks at the jobs of a cluster: few requests each, and fewer details where a role forbids them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainer_core.cluster import events as eventfacts
from trainer_core.cluster import history, kinds, marks, observe, podlogs, runtimes
from trainer_core.cluster import pods as podfacts
from trainer_core.cluster.answers import ForbiddenError, NotInstalledError, NotThereError
from trainer_core.cluster.api import Api, LogPart
from trainer_core.cluster.dialect import Dialect
from trainer_core.cluster.events import EventFacts
from trainer_core.cluster.jobfacts import JobFacts
from trainer_core.cluster.kinds import Kind
from trainer_core.cluster.pods import PodFacts
from trainer_core.cluster.raw import Raw
from trainer_core.errors import BackendUnavailableError, JobNotFoundError
from trainer_core.inside.progress import parse_progress
from trainer_core.jobs import Event, TrainJob
from trainer_core.observation import COMPLETE, FAILED, RUNNING, Observation, Progress, Tail
from trainer_core.ref import TrainJobRef

__all__ = ["Looks"]

_log = logging.getLogger(__name__)
_OURS = f"{marks.MANAGED_BY}={marks.MANAGER}"
#: Lines from the end of a log: enough for a traceback, and for the last of two progress lines a second.
_TAIL = 50
#: Where a job that has ended printed more than that after its last progress; a few megabytes at most.
_LONG_TAIL = 10_000
#: Listing the events of a namespace again and again may take this share of the time; seconds that they are good for.
_LISTING_SHARE = 0.02
_MAX_RECENT = 5.0
_EARLY = 4
#: Of all who have heard nothing of their job for long, so many ask for it a second.
_ASKING = 5.0
_ENDED = frozenset({COMPLETE, FAILED})
_FIRST_NODE = f"{podfacts.NODE}-0"


@dataclass(frozen=True)
class _Listed:
    """The events of a namespace, and until when they count as recent."""

    events: Sequence[EventFacts]
    until: float


class Looks:
    """Reads jobs. Safe to use from several threads.

    Args:
        api: The cluster.
        dialect: How jobs are spelled there.
    """

    def __init__(self, api: Api, dialect: Dialect) -> None:
        #: Held by those who ask for a single job while all are being listed.
        self.early = threading.BoundedSemaphore(_EARLY)
        self._api = api
        self._dialect = dialect
        self._next_asking = 0.0
        self._said: set[str] = set()
        self._listing = threading.Lock()
        self._listed: dict[str, _Listed] = {}

    def may_ask(self, now: float) -> bool:
        """Say whether one who hears nothing may ask for its job: thousands have heard nothing for equally long.

        Args:
            now: Seconds that only grow.
        """
        # Two threads at the same moment both may, which does no harm.
        if now < self._next_asking:
            return False
        self._next_asking = now + 1 / _ASKING
        return True

    def raw(self, name: str, namespace: str) -> Raw:
        """Return the job that has this name now.

        Raises:
            JobNotFoundError: There is none.
        """
        for kind in self._dialect.pod_labels:
            raw = self._one(kind, name, namespace)
            if raw is not None:
                return raw
        raise JobNotFoundError(
            f"no TrainJob {name!r} in namespace {namespace!r}; `trainjob list` shows those there are"
        )

    def _one(self, kind: Kind, name: str, namespace: str) -> Raw | None:
        """The job of a name, if there is one of this kind; of the usual kind it must be permitted to see it."""
        hidden = () if kind == self._dialect.usual else (ForbiddenError, NotInstalledError)
        with suppress(NotThereError, *hidden):
            raw = self._api.get(kind, name, namespace=namespace)
            labels = raw["metadata"].get("labels") or {}
            ours = kind not in self._dialect.shared or labels.get(marks.MANAGED_BY) == marks.MANAGER
            if ours and self._dialect.is_job(raw):
                return raw
        return None

    def of(self, ref: TrainJobRef) -> Raw:
        """Return the very job of a ref.

        Raises:
            JobNotFoundError: It is gone, or its name has passed to another.
        """
        raw = self.raw(ref.name, ref.namespace)
        if raw["metadata"]["uid"] != ref.uid:
            raise JobNotFoundError(
                f"TrainJob {ref.name!r} ({ref.uid[:8]}) is gone; its name belongs to another job now"
            )
        return raw

    def of_owner(self, key: str, namespace: str) -> list[Raw]:
        """Return every job of an owner."""
        selector = f"{_OURS},{marks.OWNER}={marks.owner_value(key)}"
        return self._all(selector, selector, namespace)

    def _all(self, labels: str, shared_labels: str, namespace: str, whole: bool = False) -> list[Raw]:
        """All jobs with labels; those of the usual kind must be permitted to be seen."""
        found: list[Raw] = []
        for kind in self._dialect.pod_labels:
            selector = shared_labels if kind in self._dialect.shared else labels
            if kind == self._dialect.usual:
                listed = self._api.list(kind, labels=selector, namespace=namespace, whole=whole)
            else:
                listed = self._list(kind, selector, namespace)
            # Items of a list do not say what they are.
            found += [{"kind": kind.kind, **raw} for raw in listed if self._dialect.is_job(raw)]
        return found

    def observation(self, ref: TrainJobRef) -> Observation:
        """Take one look: at the job and its pods; at events and logs only where they explain something."""
        return self.seen(self.of(ref), ref)

    def seen(self, raw: Raw, ref: TrainJobRef) -> Observation:
        """Say what a job shows that has just been asked for."""
        job = self._dialect.read(raw)
        return self.explained(job, self.pods(job), ref)

    def explained(self, job: JobFacts, pods: Sequence[PodFacts], ref: TrainJobRef) -> Observation:
        """Say what a job shows, with what its log and its events add."""
        noted = observe.noted(job) is not None
        events = self._events(job, pods, recent=True) if not noted and observe.needs_events(job, pods) else []
        seen = observe.observation(job, pods, events, ref=ref)
        wrong = seen.outcome or seen.trouble
        diagnosis = wrong.diagnosis if wrong else None
        if diagnosis is not None and diagnosis.step and not noted:
            tails = {diagnosis.step: self._tail(job, pods, diagnosis.step)}
            return observe.observation(job, pods, events, ref=ref, tails=tails)
        if seen.status in (RUNNING, COMPLETE) and seen.progress is None:
            return observe.observation(
                job, pods, events, ref=ref, progress=self._progress(job, pods, seen.status == COMPLETE)
            )
        return seen

    def shown(self, job: JobFacts, pods: Sequence[PodFacts]) -> TrainJob:
        """Return a job as the API reference knows it."""
        return observe.train_job(job, pods, runtimes.recorded(job.annotations))

    def train_job(self, ref: TrainJobRef) -> TrainJob:
        """Return the very job of a ref."""
        return self._train_job(self._dialect.read(self.of(ref)))

    def named_train_job(self, name: str, namespace: str) -> TrainJob:
        """Return the job that has this name now."""
        return self._train_job(self._dialect.read(self.raw(name, namespace)))

    def _train_job(self, job: JobFacts) -> TrainJob:
        return self.shown(job, self.pods(job))

    def train_jobs(self, namespace: str) -> list[TrainJob]:
        """Return every job, newest first: three requests, whatever their number."""
        raws = self._all("", _OURS, namespace, whole=True)
        pods: dict[str, list[PodFacts]] = {}
        label = self._dialect.pod_labels[self._dialect.usual]
        for pod in map(self._dialect.read_pod, self._list(kinds.PODS, label, namespace)):
            pods.setdefault(pod.job, []).append(pod)
        jobs = []
        for raw in raws:
            try:
                job = self._dialect.read(raw)
                jobs.append(self.shown(job, job.own(pods.get(job.name, ()))))
            except (KeyError, TypeError, ValueError) as error:
                _log.warning("TrainJob %r is left out of the list: %s", raw.get("metadata", {}).get("name"), error)
        return sorted(jobs, key=lambda job: job.creation_timestamp, reverse=True)

    def pods(self, job: JobFacts) -> list[PodFacts]:
        """Return the pods of a job, oldest first; none where a role forbids it."""
        try:
            return self._pods(job)
        except ForbiddenError as error:
            self._say_once(f"steps, results, logs and most reasons of failures are left out: {error}")
            return []

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            _log.warning("%s", text)

    def _pods(self, job: JobFacts) -> list[PodFacts]:
        raws = self._api.list(kinds.PODS, labels=self._dialect.selector(job), namespace=job.namespace, whole=True)
        return job.own(map(self._dialect.read_pod, raws))

    def events(self, ref: TrainJobRef) -> list[Event]:
        """Return what happened to a job, oldest first; its own history first, which the job itself tells."""
        job = self._dialect.read(self.of(ref))
        told = [*history.history(job), *map(eventfacts.shown, self._events(job, self.pods(job)))]
        return sorted(told, key=lambda event: event.event_time)

    def _events(self, job: JobFacts, pods: Sequence[PodFacts], recent: bool = False) -> list[EventFacts]:
        """The events of a job; `recent` ones serve where many jobs are looked at again and again."""
        found = self._all_events(job.namespace, recent)
        names = [pod.name for pod in pods]
        return eventfacts.of_job(found, job.uid, job.created, self._dialect.forms(job), names)

    def _all_events(self, namespace: str, recent: bool) -> Sequence[EventFacts]:
        """The events of a namespace: it may have many thousands, and so many jobs that ask for them."""
        with self._listing:
            known = self._listed.get(namespace)
            begin = time.monotonic()
            if recent and known is not None and begin < known.until:
                return known.events
            events = [eventfacts.read(raw) for raw in self._list(kinds.EVENTS, "", namespace)]
            taken = time.monotonic() - begin
            self._listed[namespace] = _Listed(events, begin + taken + min(_MAX_RECENT, taken / _LISTING_SHARE))
            return events

    def log(self, ref: TrainJobRef, step: str, follow: bool) -> Iterator[str]:
        """Yield the lines of a step that the job has; see `podlogs.lines`."""
        last: list[JobFacts] = []

        def find_pods() -> list[PodFacts]:
            with suppress(JobNotFoundError):
                last[:] = [self._dialect.read(self.of(ref))]
            return podfacts.by_step(self._pods(last[0])).get(step, []) if last else []

        def ended() -> bool:
            try:
                job = self._dialect.read(self.of(ref))
                return observe.status_of(job, self.pods(job) if job.led else ()) in _ENDED
            except JobNotFoundError:
                return True

        pod_log = partial(self._api.pod_log, namespace=ref.namespace)
        return podlogs.lines(pod_log, find_pods, _container(step), follow, ended)

    def tail(self, job: JobFacts, pods: Sequence[PodFacts], place: Mapping[str, Any], whole: bool, most: int) -> Tail:
        """Return what came into the logs of a job's steps since a place; see `Backend.tail`."""
        pod_log = partial(self._api.pod_log, namespace=job.namespace)
        lines: list[tuple[str, str]] = []
        reached: dict[str, Any] = {}
        complete = True
        for step, its in podfacts.by_step(pods).items():
            room = most - len(lines)
            new, reached[step], all_ = podlogs.tail(pod_log, its, _container(step), place.get(step, {}), room, whole)
            lines += [(step, line) for line in new]
            complete = complete and all_
        return Tail(lines, {**place, **reached}, complete)

    def _progress(self, job: JobFacts, pods: Sequence[PodFacts], ended: bool) -> Progress | None:
        """What the log said last of the training's progress; of a job that has ended it is looked for once, and far."""
        for count in (_TAIL, _LONG_TAIL) if ended else (_TAIL,):
            lines = self._tail(job, pods, _FIRST_NODE, count)
            said = next((found for line in reversed(lines) if (found := parse_progress(line))), None)
            if said or len(lines) < count:
                break
        return Progress(said.get("step"), said.get("total"), said.get("metrics", {})) if said else None

    def _tail(self, job: JobFacts, pods: Sequence[PodFacts], step: str, count: int = _TAIL) -> list[str]:
        """The last lines of a step's log; of the run that ended, where it was started again since."""
        found = podfacts.by_step(pods).get(step)
        if not found:
            return []
        container = dict(found[-1].parts)[step]
        again = container.ended is None and container.last is not None
        part = LogPart(container=container.name, tail=count, previous=again)
        try:
            lines = list(self._api.pod_log(found[-1].name, part, namespace=job.namespace))
        except (NotThereError, BackendUnavailableError, ValueError):
            return []
        return [line.decode("utf-8", "backslashreplace").rstrip("\r\n") for line in lines]

    def _list(self, kind: Kind, labels: str, namespace: str) -> list[dict[str, Any]]:
        """Return objects that are details: none where a role forbids them, or the cluster has none of the kind."""
        try:
            return self._api.list(kind, labels=labels, namespace=namespace, whole=True)
        except (ForbiddenError, NotInstalledError) as error:
            _log.debug("left out: %s", error)
            return []


def _container(step: str) -> str:
    """The container of a step; empty for the one that does the work of its pod."""
    return step if step in (podfacts.DATASET_INITIALIZER, podfacts.MODEL_INITIALIZER) else ""
