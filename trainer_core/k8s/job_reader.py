"""Reads jobs with few API calls. Leaves out pods, events and logs where RBAC denies them.

`observe` reads the job, then its pods; the events of its namespace only for what they explain, from a list that
concurrent reads share; and the end of a log only for the traceback of a failed step or the last progress. What each of
them means is decided in `observations`, without I/O.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any
from weakref import WeakSet

from trainer_core.base.errors import BackendUnavailableError, InvalidRequestError, JobNotFoundError, TrainerError
from trainer_core.base.naming import hash_owner_key
from trainer_core.k8s import events, logs, observations, pod_state, resources, runtimes
from trainer_core.k8s.capacity import SchedulingLimits
from trainer_core.k8s.client import ApiClient, PodLogOptions
from trainer_core.k8s.errors import ApiNotServedError, ForbiddenError, NotFoundError
from trainer_core.k8s.events import EventRecord
from trainer_core.k8s.failure_facts import find_left_node
from trainer_core.k8s.job_adapter import WorkloadAdapter
from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.labels import MANAGED_BY, MANAGER, OWNER
from trainer_core.k8s.log_cursor import LogCursor
from trainer_core.k8s.parsing import RawObject
from trainer_core.k8s.pod_state import ContainerState, PodState
from trainer_core.k8s.resources import ApiResource
from trainer_core.model.jobs import (
    COMPLETE,
    FAILED,
    RUNNING,
    SEARCH_LABEL,
    Event,
    Observation,
    Progress,
    TrainJob,
    TrainJobRef,
)
from trainer_core.model.logs import LogChunk, LogLine, build_progress, find_last_progress, parse_progress
from trainer_core.model.request import TrainJobRequest

_log = logging.getLogger(__name__)
_MANAGED_SELECTOR = f"{MANAGED_BY}={MANAGER}"
#: Lines to read from the end of a log: enough for a traceback, and for the last of two progress lines a second.
_TAIL_LINES = 50
#: Lines to read from the end of an ended job's log if its last progress is not in the first ones; a few MB at most.
_LONG_TAIL_LINES = 10_000
#: Listing the events of a namespace may take this share of the time. A list is reused for up to `_MAX_EVENTS_AGE` s.
_EVENTS_TIME_SHARE = 0.02
_MAX_EVENTS_AGE = 5.0
#: Seconds for which a list is reused that only tells whether an autoscaler adds nodes.
CAPACITY_EVENTS_AGE = 60.0
#: Failed jobs to remember, so that each of them is explained by events that are newer than its failure.
_MAX_FAILED_JOBS = 10_000
_MAX_EARLY_READS = 4
#: Status checks a second, of all jobs together whose watch has been silent for long.
_STATUS_CHECKS_PER_SECOND = 5.0
#: Seconds between reads of a job that no watch reports, and reads a second of all such jobs together.
_UNCACHED_READ_SECONDS = 2.0
_UNCACHED_READS_PER_SECOND = 25.0
#: Seconds for which the object of a job will do to read its request.
_REQUEST_SECONDS = 5.0
#: Seconds between two streams of a log that is only read for its progress; jobs whose progress is kept.
_PROGRESS_RETRY_SECONDS = 5.0
_MAX_LIVE_PROGRESS = 1000
#: Seconds until who reads the log of an ended job has read it to its end.
_LIVE_LOG_SECONDS = 2.0
FIRST_NODE = f"{runtimes.NODE}-0"


@dataclass(frozen=True)
class _EventList:
    """The events of a namespace, when listing them began and ended."""

    events: Sequence[EventRecord]
    began: float
    ended: float

    def is_reusable(self, now: float, max_age: float) -> bool:
        """Return whether the list is recent, in view of the time that it took."""
        return now < self.ended + max(max_age, min(_MAX_EVENTS_AGE, (self.ended - self.began) / _EVENTS_TIME_SHARE))


class LiveProgress:
    """The last progress and lines of the first node's log, which this process reads until `ended` is set."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        #: Whether the log was read to the end of the job.
        self.is_complete = False
        self.ended = threading.Event()
        self.began = time.monotonic()

    def read(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines of the log, and keep the last progress."""
        try:
            for line in lines:
                self.tail.append(line)
                if (report := parse_progress(line)) is not None:
                    self.progress = build_progress(report)
                yield line
            self.is_complete = True
        finally:
            self.ended.set()


class JobReader:
    """Reads jobs. Safe to use from several threads."""

    def __init__(self, api: ApiClient, adapter: WorkloadAdapter, scheduling_grace: float) -> None:
        #: Those whose job no watch reports, for example because RBAC denies it.
        self.uncached_followers: WeakSet[object] = WeakSet()
        #: Limits the reads of single jobs while the informer's first list of all is under way.
        self.early_reads = threading.BoundedSemaphore(_MAX_EARLY_READS)
        self.api = api
        self._adapter = adapter
        self._scheduling_grace = scheduling_grace
        self._next_status_check = 0.0
        self._logged: set[str] = set()
        self._events_lock = threading.Lock()
        self._event_lists: dict[str, _EventList] = {}
        #: When this process first saw that a job has failed, by uid.
        self._failed_since: dict[str, float] = {}
        #: The last object that was read, and when.
        self._last_read: tuple[RawObject, float] | None = None
        self._live_progress: dict[str, LiveProgress] = {}

    def get_limits(self) -> SchedulingLimits:
        """Return how long pods may wait for a node, by the clock of the API server."""
        return SchedulingLimits(self.api.connection.server_time, self._scheduling_grace)

    def get_uncached_interval(self) -> float:
        """Return the seconds between two reads of each job that its follower cannot watch: they share one rate."""
        return max(_UNCACHED_READ_SECONDS, len(self.uncached_followers) / _UNCACHED_READS_PER_SECOND)

    def claim_status_check(self, now: float) -> bool:
        """Return whether a follower whose watch is silent may read its job now. Limits the rate of all followers."""
        # Two threads may both get True at the same moment, which is harmless.
        if now < self._next_status_check:
            return False
        self._next_status_check = now + 1 / _STATUS_CHECKS_PER_SECOND
        return True

    def get_object(self, name: str, namespace: str) -> RawObject:
        for resource in self._adapter.pod_labels:
            raw = self._find_object(resource, name, namespace)
            if raw is not None:
                return raw
        raise JobNotFoundError(
            f"no TrainJob {name!r} in namespace {namespace!r}; `trainjob list` shows the existing ones"
        )

    def get_object_by_ref(self, ref: TrainJobRef) -> RawObject:
        raw = self.get_object(ref.name, ref.namespace)
        if raw["metadata"]["uid"] != ref.uid:
            raise JobNotFoundError(
                f"TrainJob {ref.name!r} ({ref.uid[:8]}) has been deleted; another job has its name now"
            )
        return raw

    def get_request(self, ref: TrainJobRef) -> TrainJobRequest:
        """Return the request of a job. It never changes, so an object that was just read will do."""
        raw, read_at = self._last_read or ({}, -math.inf)
        if not raw or raw["metadata"]["uid"] != ref.uid or time.monotonic() - read_at > _REQUEST_SECONDS:
            raw = self.get_object_by_ref(ref)
        return observations.parse_request(raw)

    def keep_object(self, raw: RawObject | None) -> None:
        """Keep the object of a job that was just created; None if it was just deleted."""
        self._last_read = None if raw is None else (raw, time.monotonic())

    def list_owned_objects(self, owner_key: str, namespace: str) -> list[RawObject]:
        selector = f"{_MANAGED_SELECTOR},{OWNER}={hash_owner_key(owner_key)}"
        return self._list_objects(selector, selector, namespace)

    def list_search_objects(self, key: str, namespace: str) -> list[RawObject]:
        selector = f"{_MANAGED_SELECTOR},{SEARCH_LABEL}={hash_owner_key(key)}"
        return self._list_objects(selector, selector, namespace)

    def observe(self, ref: TrainJobRef) -> Observation:
        """Read a job and its pods; read events and logs only where they explain a failure or hold the progress."""
        return self.observe_object(self.get_object_by_ref(ref), ref)

    def observe_train_job(self, name: str, namespace: str) -> tuple[TrainJob, Observation, TrainJobRequest | None]:
        """Return the job that has this name now, its observation and its request; see `Backend.observe_job`."""
        raw = self.get_object(name, namespace)
        job = self._adapter.parse_job(raw)
        pods = self.list_pods(job)
        observation = self.observe_state(job, pods, observations.build_ref(job))
        request = None
        with suppress(InvalidRequestError):
            request = observations.parse_request(raw)
        return self.explain_train_job(job, pods), observation, request

    def read_state(self, ref: TrainJobRef) -> tuple[JobState, list[PodState]]:
        job = self._adapter.parse_job(self.get_object_by_ref(ref))
        return job, self.list_log_pods(job)

    def observe_object(self, raw: RawObject, ref: TrainJobRef) -> Observation:
        """Observe a job whose object has just been read."""
        job = self._adapter.parse_job(raw)
        return self.observe_state(job, self.list_pods(job), ref)

    def observe_of_many(self, raw: RawObject, ref: TrainJobRef) -> Observation:
        """Observe a job of a list; without a request, and without progress, if it has a recorded outcome."""
        job = self._adapter.parse_job(raw)
        if observations.get_recorded_outcome(job) is not None:
            return observations.build_observation(job, ref=ref)
        return self.observe_state(job, self.list_pods(job), ref)

    def observe_state(self, job: JobState, pods: Sequence[PodState], ref: TrainJobRef) -> Observation:
        """Observe a job whose state is known; read its events and logs where needed."""
        recorded = observations.get_recorded_outcome(job) is not None
        limits = self.get_limits()
        job_events = self._list_explaining_events(job, pods, limits.now)
        observation = observations.build_observation(job, pods, job_events, ref=ref, limits=limits)
        if observation.pending_failure and observation.pending_failure.grace == 0 and job_events:
            # An autoscaler may have added a node since the events were listed.
            job_events = self._list_job_events(job, pods, -math.inf)
            observation = observations.build_observation(job, pods, job_events, ref=ref, limits=limits)
        failure = observation.outcome or observation.pending_failure
        diagnosis = failure.diagnosis if failure else None
        if diagnosis is not None and diagnosis.step and not recorded:
            tails = {diagnosis.step: self._read_failed_tail(job, pods, diagnosis.step)}
            return observations.build_observation(job, pods, job_events, ref=ref, tails=tails, limits=limits)
        if failure is None and (left := find_left_node(pods, limits.now)):
            tails = {left: self._read_tail(job, pods, left, of_previous_run=False)}
            explained = observations.build_observation(job, pods, job_events, ref=ref, tails=tails, limits=limits)
            if explained.pending_failure:
                return explained
        # The status has the last report only; the last line of the log has the last value of each metric.
        is_new_end = observation.status == COMPLETE and not recorded
        if is_new_end or (observation.status in (RUNNING, COMPLETE) and observation.progress is None):
            progress = self.read_progress(job, pods, ended=observation.status == COMPLETE)
            return observations.build_observation(job, pods, job_events, ref=ref, progress=progress)
        return observation

    def build_train_job(self, job: JobState, pods: Sequence[PodState]) -> TrainJob:
        return observations.build_train_job(job, pods, runtimes.load_runtime(job.annotations))

    def get_train_job(self, raw: RawObject) -> TrainJob:
        """Return a job whose object has just been read."""
        job = self._adapter.parse_job(raw)
        return self.explain_train_job(job, self.list_pods(job))

    def explain_train_job(self, job: JobState, pods: Sequence[PodState]) -> TrainJob:
        """Return a job as a `TrainJob`; read its events where they explain its status."""
        explaining = self._list_explaining_events(job, pods, self.get_limits().now)
        return observations.build_train_job(job, pods, runtimes.load_runtime(job.annotations), explaining)

    def list_train_jobs(self, namespace: str, labels: Mapping[str, str] | None = None) -> list[TrainJob]:
        """Return the jobs with these labels, newest first: three requests, one more per 500 jobs or pods."""
        selector = ",".join(f"{key}={value}" for key, value in (labels or {}).items())
        raws = self._list_objects(selector, ",".join(filter(None, [_MANAGED_SELECTOR, selector])), namespace)
        pods: dict[str, list[PodState]] = {}
        if not labels:
            label = self._adapter.pod_labels[self._adapter.primary_resource]
            for pod in map(self._adapter.parse_pod, self._list_if_permitted(resources.PODS, label, namespace)):
                pods.setdefault(pod.job_name, []).append(pod)
        jobs = []
        for raw in raws:
            try:
                job = self._adapter.parse_job(raw)
                own = self.list_pods(job) if labels else job.select_pods(pods.get(job.name, ()))
                jobs.append(self.build_train_job(job, own))
            except (KeyError, TypeError, ValueError) as error:
                name = raw.get("metadata", {}).get("name")
                _log.warning("TrainJob %r cannot be parsed and is left out of the list: %s", name, error)
        return sorted(jobs, key=lambda job: job.creation_timestamp, reverse=True)

    def list_pods(self, job: JobState) -> list[PodState]:
        """Return the pods of a job, oldest first; none where RBAC denies it."""
        try:
            return self.list_log_pods(job)
        except ForbiddenError as error:
            self._warn_once(f"Pods cannot be read; steps, results, logs and most failure reasons are left out: {error}")
            return []

    def list_log_pods(self, job: JobState) -> list[PodState]:
        """Return the pods of a job, oldest first."""
        selector = self._adapter.build_pod_selector(job)
        raws = self.api.list(resources.PODS, label_selector=selector, namespace=job.namespace)
        return job.select_pods(map(self._adapter.parse_pod, raws))

    def list_ended_pods(self, job: JobState, pods: Sequence[PodState]) -> Sequence[PodState]:
        """Return the pods of an ended job; read them unless those from a watch, which may lag, show its success."""
        last = [group[-1] for group in pod_state.group_pods_by_step(pods).values()]
        if job.get_condition(COMPLETE) and last and all(pod.phase == "Succeeded" for pod in last):
            return pods
        return self.list_pods(job)

    def list_events(self, ref: TrainJobRef) -> list[Event]:
        """Return the events of a job, oldest first, including those that are derived from its status."""
        job = self._adapter.parse_job(self.get_object_by_ref(ref))
        records = self._list_job_events(job, self.list_pods(job), time.monotonic())
        found = [*events.build_status_events(job), *map(events.to_public_event, records)]
        return sorted(found, key=lambda event: event.event_time)

    def get_live_progress(self, uid: str) -> LiveProgress | None:
        """Return the progress in the log of a job's first node; None if this process does not read that log."""
        return self._live_progress.get(uid)

    def follow_progress(self, job: JobState, pods: Sequence[PodState]) -> LiveProgress | None:
        """Return the progress in the log of a job's first node, which a thread reads unless this process does so."""
        live = self._live_progress.get(job.uid)
        if live and not (live.ended.is_set() and time.monotonic() - live.began >= _PROGRESS_RETRY_SECONDS):
            return live
        found = _find_log(pods, FIRST_NODE)
        if found is None or found[1].running_since is None:
            return live
        pod, container = found
        options = PodLogOptions(container=container.name, tail_lines=_TAIL_LINES, follow=True)
        lines = self.api.stream_pod_log(pod.name, options, namespace=job.namespace)
        following = self.share_progress(job.uid)
        following.progress = live.progress if live else None

        def read() -> None:
            with suppress(TrainerError):
                for _ in following.read(_decode(line) for line in lines):
                    if self._live_progress.get(job.uid) is not following:
                        break  # No caller waits, or another reader has taken over.
            following.is_complete = False  # The end of a stream is not the end of a job.

        threading.Thread(target=read, name=f"progress of {job.name}", daemon=True).start()
        return following

    def stop_progress(self, uid: str) -> None:
        """Let the thread of `follow_progress` end with the next line."""
        self._live_progress.pop(uid, None)

    def share_progress(self, uid: str) -> LiveProgress:
        """Return where the one that now reads the log of a job's first node keeps its progress."""
        live = self._live_progress[uid] = LiveProgress()
        while len(self._live_progress) > _MAX_LIVE_PROGRESS:
            del self._live_progress[next(iter(self._live_progress))]
        return live

    def read_log_chunk(
        self,
        job: JobState,
        pods: Sequence[PodState],
        cursor: Mapping[str, Any],
        job_ended: bool,
        max_lines: int,
        only_step: str | None = None,
    ) -> LogChunk:
        """Return the log lines of the steps after a cursor; see `Backend.tail`."""
        stream_pod_log = partial(self.api.stream_pod_log, namespace=job.namespace)
        lines: list[tuple[str, str]] = []
        cursors: dict[str, Any] = {}
        complete = True
        pods_by_step = pod_state.group_pods_by_step(pods)
        for step in pods_by_step if only_step is None else pods_by_step.keys() & {only_step}:
            step_pods = pods_by_step[step]
            step_lines, cursors[step], step_complete = logs.read_chunk(
                stream_pod_log,
                step_pods,
                get_container(step),
                cursor.get(step, {}),
                max_lines - len(lines),
                job_ended,
            )
            lines += [(step, line) for line in step_lines]
            complete = complete and step_complete
        return LogChunk(lines, {**cursor, **cursors}, complete)

    def read_progress(self, job: JobState, pods: Sequence[PodState], ended: bool = False) -> Progress | None:
        """Return the last progress line of the first node's log. For an ended job, which is read once, search far."""
        live = self._live_progress.get(job.uid) if ended else None
        if live and live.ended.wait(_LIVE_LOG_SECONDS) and live.is_complete:
            return live.progress
        for count in (_TAIL_LINES, _LONG_TAIL_LINES) if ended else (_TAIL_LINES,):
            lines = self._read_tail(job, pods, FIRST_NODE, count)
            progress = find_last_progress(reversed(lines))
            if progress or len(lines) < count:
                break
        return progress

    def read_progress_line(self, raw: RawObject) -> str | None:
        """Return how far a job has come, before its pods are deleted, as a progress line. None if it is not known."""
        job = self._adapter.parse_job(raw)
        with suppress(TrainerError):  # The job is cancelled all the same.
            pods = self.list_pods(job)
            return observations.build_progress_line(pods, self.read_progress(job, pods)) if job.restarts else None
        return None

    def _find_object(self, resource: ApiResource, name: str, namespace: str) -> RawObject | None:
        """Return the job of a name if it has this resource. Raise where RBAC denies the primary resource."""
        ignored = () if resource == self._adapter.primary_resource else (ForbiddenError, ApiNotServedError)
        with suppress(NotFoundError, *ignored):
            raw = self.api.get(resource, name, namespace=namespace)
            labels = raw["metadata"].get("labels") or {}
            is_managed = resource not in self._adapter.shared_resources or labels.get(MANAGED_BY) == MANAGER
            if is_managed and self._adapter.is_job(raw):
                self.keep_object(raw)
                return raw
        return None

    def _list_objects(self, selector: str, shared_selector: str, namespace: str) -> list[RawObject]:
        """Return the objects of all jobs. Raise where RBAC denies the primary resource."""
        found: list[RawObject] = []
        for resource in self._adapter.pod_labels:
            labels = shared_selector if resource in self._adapter.shared_resources else selector
            if resource == self._adapter.primary_resource:
                listed = self.api.list(resource, label_selector=labels, namespace=namespace)
            else:
                listed = self._list_if_permitted(resource, labels, namespace)
            # Items of a list have no kind.
            found += [{"kind": resource.kind, **raw} for raw in listed if self._adapter.is_job(raw)]
        return found

    def _list_if_permitted(self, resource: ApiResource, label_selector: str, namespace: str) -> list[dict[str, Any]]:
        """Return objects; none where RBAC denies them or the server does not serve the resource."""
        try:
            return self.api.list(resource, label_selector=label_selector, namespace=namespace)
        except (ForbiddenError, ApiNotServedError) as error:
            _log.debug("%s are left out: %s", resource.plural, error)
            return []

    def _get_min_list_time(self, job: JobState, pods: Sequence[PodState]) -> float:
        """Return when a list of events must have begun: after the failure, or it lacks the event with the reason."""
        if observations.get_status(job, pods) != FAILED:
            return -math.inf
        with self._events_lock:
            if len(self._failed_since) >= _MAX_FAILED_JOBS and job.uid not in self._failed_since:
                del self._failed_since[next(iter(self._failed_since))]
            return self._failed_since.setdefault(job.uid, time.monotonic())

    def _list_explaining_events(self, job: JobState, pods: Sequence[PodState], now: datetime) -> Sequence[EventRecord]:
        """Return the events of a job if they are needed to explain its status."""
        if observations.get_recorded_outcome(job) is not None or not observations.needs_events(job, pods, now):
            return ()
        max_age = 0.0 if observations.needs_events(job, pods) else CAPACITY_EVENTS_AGE
        return self._list_job_events(job, pods, self._get_min_list_time(job, pods), max_age)

    def _list_job_events(
        self, job: JobState, pods: Sequence[PodState], since: float, max_age: float = 0.0
    ) -> list[EventRecord]:
        """Return the events of a job, from a recent list if it began after `since`: many jobs may be observed."""
        records = self._list_namespace_events(job.namespace, since, max_age)
        patterns = self._adapter.build_event_name_patterns(job)
        return events.filter_job_events(
            records, job.uid, job.name, job.creation_timestamp, patterns, [pod.name for pod in pods]
        )

    def _list_namespace_events(self, namespace: str, since: float, max_age: float) -> Sequence[EventRecord]:
        # The lock makes concurrent callers share one list: a namespace may have thousands of events.
        with self._events_lock:
            cached = self._event_lists.get(namespace)
            began = time.monotonic()
            if cached is not None and cached.began >= since and cached.is_reusable(began, max_age):
                return cached.events
            records = [events.parse_event(raw) for raw in self._list_if_permitted(resources.EVENTS, "", namespace)]
            self._event_lists[namespace] = _EventList(records, began, time.monotonic())
            return records

    def _read_failed_tail(self, job: JobState, pods: Sequence[PodState], step: str) -> list[str]:
        """Return the last lines of a failed step; of a pod that was deleted with its log, those read before."""
        lines = self._read_tail(job, pods, step)
        live = self._live_progress.get(job.uid) if step == FIRST_NODE else None
        if lines or live is None:
            return lines
        live.ended.wait(_LIVE_LOG_SECONDS)
        return list(live.tail)

    def _read_tail(
        self,
        job: JobState,
        pods: Sequence[PodState],
        step: str,
        count: int = _TAIL_LINES,
        of_previous_run: bool = True,
    ) -> list[str]:
        """Return the last lines of a step's log; those before the restart if its container has been restarted."""
        found = _find_log(pods, step)
        if found is None:
            return []
        pod, container = found
        restarted = of_previous_run and container.terminated is None and container.last_terminated is not None
        options = PodLogOptions(container=container.name, tail_lines=count, previous=restarted, timestamps=True)
        lines = self._read_timed_lines(job, pod, options)
        ended = container.terminated.finished_at if container.terminated else None
        if ended and lines and lines[0].time > ended.timestamp() + 1:
            # It was restarted after the pod was read: these lines are those of its next run.
            return [*self._read_timed_lines(job, pod, replace(options, previous=True))]
        return [*lines]

    def _read_timed_lines(self, job: JobState, pod: PodState, options: PodLogOptions) -> list[LogLine]:
        cursor = LogCursor()
        try:
            stream = self.api.stream_pod_log(pod.name, options, namespace=job.namespace)
            return [*chain.from_iterable(map(cursor.feed, stream)), *cursor.flush()]
        except (NotFoundError, BackendUnavailableError, ValueError):
            return []

    def _warn_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            _log.warning("%s", text)


def _find_log(pods: Sequence[PodState], step: str) -> tuple[PodState, ContainerState] | None:
    """Return the last pod of a step and its container; None if that has no log."""
    own = select_pods(pods, step)
    container = dict(own[-1].step_containers)[step] if own else None
    # The kubelet answers 400 for a container that has never started.
    return (own[-1], container) if container and (container.running_since or container.latest_termination) else None


def select_pods(pods: Sequence[PodState], step: str) -> Sequence[PodState]:
    """Return the pods of a step, oldest first."""
    return pod_state.group_pods_by_step(pods).get(step, [])


def _decode(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace").rstrip("\r\n")


def get_container(step: str) -> str:
    """Return the container of a step; empty for the main container of its pod."""
    return step if step in (runtimes.DATASET_INITIALIZER, runtimes.MODEL_INITIALIZER) else ""
