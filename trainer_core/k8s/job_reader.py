"""Reads jobs with few API calls. Leaves out pods, events and logs where RBAC denies them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from weakref import WeakSet

from trainer_core.errors import BackendUnavailableError, JobNotFoundError
from trainer_core.jobs import COMPLETE, FAILED, RUNNING, Event, Observation, Progress, TrainJob, TrainJobRef
from trainer_core.k8s import events, job_status, logs, pod_state, resources, runtimes
from trainer_core.k8s.capacity import SchedulingLimits
from trainer_core.k8s.client import ApiClient, PodLogOptions
from trainer_core.k8s.errors import ApiNotServedError, ForbiddenError, NotFoundError
from trainer_core.k8s.events import EventRecord
from trainer_core.k8s.failure_detection import find_left_node
from trainer_core.k8s.job_adapter import WorkloadAdapter
from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.labels import MANAGED_BY, MANAGER, OWNER
from trainer_core.k8s.parsing import RawObject
from trainer_core.k8s.pod_state import PodState
from trainer_core.k8s.resources import ApiResource
from trainer_core.logs import LogChunk, find_last_progress
from trainer_core.naming import hash_owner_key

__all__ = ["CAPACITY_EVENTS_AGE", "JobReader"]

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
_ENDED = frozenset({COMPLETE, FAILED})
_FIRST_NODE = f"{pod_state.NODE}-0"


@dataclass(frozen=True)
class _EventList:
    """The events of a namespace, when listing them began and ended."""

    events: Sequence[EventRecord]
    began: float
    ended: float

    def is_reusable(self, now: float, max_age: float) -> bool:
        """Return whether the list is recent, in view of the time that it took."""
        return now < self.ended + max(max_age, min(_MAX_EVENTS_AGE, (self.ended - self.began) / _EVENTS_TIME_SHARE))


class JobReader:
    """Reads jobs. Safe to use from several threads.

    Args:
        api: The API server.
        adapter: How the jobs are stored.
        scheduling_grace: Seconds for which a pod may wait for a node without a known reason.

    Attributes:
        early_reads: Limits the reads of single jobs while the informer's first list of all is under way.
        uncached_followers: Those whose job no watch reports, for example because RBAC denies it.
    """

    def __init__(self, api: ApiClient, adapter: WorkloadAdapter, scheduling_grace: float) -> None:
        self.uncached_followers: WeakSet[object] = WeakSet()
        self.early_reads = threading.BoundedSemaphore(_MAX_EARLY_READS)
        self._api = api
        self._adapter = adapter
        self._scheduling_grace = scheduling_grace
        self._next_status_check = 0.0
        self._logged: set[str] = set()
        self._events_lock = threading.Lock()
        self._event_lists: dict[str, _EventList] = {}
        #: When this process first saw that a job has failed, by uid.
        self._failed_since: dict[str, float] = {}

    def get_limits(self) -> SchedulingLimits:
        """Return how long pods may wait for a node, by the clock of the API server."""
        return SchedulingLimits(self._api.connection.server_time, self._scheduling_grace)

    def get_uncached_interval(self) -> float:
        """Return the seconds between two reads of each job that its follower cannot watch: they share one rate."""
        return max(_UNCACHED_READ_SECONDS, len(self.uncached_followers) / _UNCACHED_READS_PER_SECOND)

    def claim_status_check(self, now: float) -> bool:
        """Return whether a follower whose watch is silent may read its job now. Limits the rate of all followers.

        Args:
            now: Monotonic time in seconds.
        """
        # Two threads may both get True at the same moment, which is harmless.
        if now < self._next_status_check:
            return False
        self._next_status_check = now + 1 / _STATUS_CHECKS_PER_SECOND
        return True

    def get_object(self, name: str, namespace: str) -> RawObject:
        """Return the object of the job that has this name now.

        Raises:
            JobNotFoundError: There is no such job.
        """
        for resource in self._adapter.pod_labels:
            raw = self._find_object(resource, name, namespace)
            if raw is not None:
                return raw
        raise JobNotFoundError(
            f"no TrainJob {name!r} in namespace {namespace!r}; `trainjob list` shows the existing ones"
        )

    def get_object_by_ref(self, ref: TrainJobRef) -> RawObject:
        """Return the object of the job of a ref.

        Raises:
            JobNotFoundError: The job has been deleted, or another job has its name.
        """
        raw = self.get_object(ref.name, ref.namespace)
        if raw["metadata"]["uid"] != ref.uid:
            raise JobNotFoundError(
                f"TrainJob {ref.name!r} ({ref.uid[:8]}) has been deleted; another job has its name now"
            )
        return raw

    def list_owned_objects(self, owner_key: str, namespace: str) -> list[RawObject]:
        """Return the objects of all jobs of an owner."""
        selector = f"{_MANAGED_SELECTOR},{OWNER}={hash_owner_key(owner_key)}"
        return self._list_objects(selector, selector, namespace)

    def observe(self, ref: TrainJobRef) -> Observation:
        """Read a job and its pods; read events and logs only where they explain a failure or hold the progress."""
        return self.observe_object(self.get_object_by_ref(ref), ref)

    def observe_object(self, raw: RawObject, ref: TrainJobRef) -> Observation:
        """Observe a job whose object has just been read."""
        job = self._adapter.parse_job(raw)
        return self.observe_state(job, self.list_pods(job), ref)

    def observe_state(self, job: JobState, pods: Sequence[PodState], ref: TrainJobRef) -> Observation:
        """Observe a job whose state is known; read its events and logs where needed."""
        recorded = job_status.get_recorded_outcome(job) is not None
        limits = self.get_limits()
        job_events = self._list_explaining_events(job, pods, limits.now)
        observation = job_status.build_observation(job, pods, job_events, ref=ref, limits=limits)
        if observation.pending_failure and observation.pending_failure.grace == 0 and job_events:
            # An autoscaler may have added a node since the events were listed.
            job_events = self._list_job_events(job, pods, -math.inf)
            observation = job_status.build_observation(job, pods, job_events, ref=ref, limits=limits)
        failure = observation.outcome or observation.pending_failure
        diagnosis = failure.diagnosis if failure else None
        if diagnosis is not None and diagnosis.step and not recorded:
            tails = {diagnosis.step: self._read_tail(job, pods, diagnosis.step)}
            return job_status.build_observation(job, pods, job_events, ref=ref, tails=tails, limits=limits)
        if failure is None and (left := find_left_node(pods, limits.now)):
            tails = {left: self._read_tail(job, pods, left, of_previous_run=False)}
            explained = job_status.build_observation(job, pods, job_events, ref=ref, tails=tails, limits=limits)
            if explained.pending_failure:
                return explained
        if observation.status in (RUNNING, COMPLETE) and observation.progress is None:
            progress = self.read_progress(job, pods, ended=observation.status == COMPLETE)
            return job_status.build_observation(job, pods, job_events, ref=ref, progress=progress)
        return observation

    def build_train_job(self, job: JobState, pods: Sequence[PodState]) -> TrainJob:
        """Return a job as a `TrainJob`."""
        return job_status.build_train_job(job, pods, runtimes.load_runtime(job.annotations))

    def get_train_job(self, ref: TrainJobRef) -> TrainJob:
        """Return the job of a ref."""
        return self._explain_train_job(self.get_object_by_ref(ref))

    def get_train_job_by_name(self, name: str, namespace: str) -> TrainJob:
        """Return the job that has this name now."""
        return self._explain_train_job(self.get_object(name, namespace))

    def _explain_train_job(self, raw: RawObject) -> TrainJob:
        job = self._adapter.parse_job(raw)
        pods = self.list_pods(job)
        explaining = self._list_explaining_events(job, pods, self.get_limits().now)
        return job_status.build_train_job(job, pods, runtimes.load_runtime(job.annotations), explaining)

    def list_train_jobs(self, namespace: str, labels: Mapping[str, str] | None = None) -> list[TrainJob]:
        """Return the jobs with these labels, newest first.

        Takes three requests, and one for each further 500 jobs or pods. With labels, the pods of each job take one.
        """
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
            return self._list_pods(job)
        except ForbiddenError as error:
            self._warn_once(f"Pods cannot be read; steps, results, logs and most failure reasons are left out: {error}")
            return []

    def list_events(self, ref: TrainJobRef) -> list[Event]:
        """Return the events of a job, oldest first, including those that are derived from its status."""
        job = self._adapter.parse_job(self.get_object_by_ref(ref))
        records = self._list_job_events(job, self.list_pods(job), time.monotonic())
        found = [*events.build_status_events(job), *map(events.to_public_event, records)]
        return sorted(found, key=lambda event: event.event_time)

    def stream_log_lines(self, ref: TrainJobRef, step: str, follow: bool) -> Iterator[str]:
        """Yield the lines of a step's log; see `logs.stream_lines`."""
        last_job: list[JobState] = []

        def find_pods() -> list[PodState]:
            with suppress(JobNotFoundError):
                last_job[:] = [self._adapter.parse_job(self.get_object_by_ref(ref))]
            return pod_state.group_pods_by_step(self._list_pods(last_job[0])).get(step, []) if last_job else []

        def has_ended() -> bool:
            try:
                job = self._adapter.parse_job(self.get_object_by_ref(ref))
            except JobNotFoundError:
                return True
            pods = self.list_pods(job) if job.completes_with_first_node else ()
            return job_status.get_status(job, pods) in _ENDED

        stream_pod_log = partial(self._api.stream_pod_log, namespace=ref.namespace)
        return logs.stream_lines(stream_pod_log, find_pods, _get_container(step), follow, has_ended)

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
        stream_pod_log = partial(self._api.stream_pod_log, namespace=job.namespace)
        lines: list[tuple[str, str]] = []
        cursors: dict[str, Any] = {}
        complete = True
        pods_by_step = pod_state.group_pods_by_step(pods)
        for step in pods_by_step if only_step is None else pods_by_step.keys() & {only_step}:
            step_pods = pods_by_step[step]
            step_lines, cursors[step], step_complete = logs.read_chunk(
                stream_pod_log,
                step_pods,
                _get_container(step),
                cursor.get(step, {}),
                max_lines - len(lines),
                job_ended,
            )
            lines += [(step, line) for line in step_lines]
            complete = complete and step_complete
        return LogChunk(lines, {**cursor, **cursors}, complete)

    def read_progress(self, job: JobState, pods: Sequence[PodState], ended: bool = False) -> Progress | None:
        """Return the last progress line of the first node's log. For an ended job, which is read once, search far."""
        for count in (_TAIL_LINES, _LONG_TAIL_LINES) if ended else (_TAIL_LINES,):
            lines = self._read_tail(job, pods, _FIRST_NODE, count)
            progress = find_last_progress(reversed(lines))
            if progress or len(lines) < count:
                break
        return progress

    def _find_object(self, resource: ApiResource, name: str, namespace: str) -> RawObject | None:
        """Return the job of a name if it has this resource. Raise where RBAC denies the primary resource."""
        ignored = () if resource == self._adapter.primary_resource else (ForbiddenError, ApiNotServedError)
        with suppress(NotFoundError, *ignored):
            raw = self._api.get(resource, name, namespace=namespace)
            labels = raw["metadata"].get("labels") or {}
            is_managed = resource not in self._adapter.shared_resources or labels.get(MANAGED_BY) == MANAGER
            if is_managed and self._adapter.is_job(raw):
                return raw
        return None

    def _list_objects(self, selector: str, shared_selector: str, namespace: str) -> list[RawObject]:
        """Return the objects of all jobs. Raise where RBAC denies the primary resource."""
        found: list[RawObject] = []
        for resource in self._adapter.pod_labels:
            labels = shared_selector if resource in self._adapter.shared_resources else selector
            if resource == self._adapter.primary_resource:
                listed = self._api.list(resource, label_selector=labels, namespace=namespace)
            else:
                listed = self._list_if_permitted(resource, labels, namespace)
            # Items of a list have no kind.
            found += [{"kind": resource.kind, **raw} for raw in listed if self._adapter.is_job(raw)]
        return found

    def _list_pods(self, job: JobState) -> list[PodState]:
        selector = self._adapter.build_pod_selector(job)
        raws = self._api.list(resources.PODS, label_selector=selector, namespace=job.namespace)
        return job.select_pods(map(self._adapter.parse_pod, raws))

    def _list_if_permitted(self, resource: ApiResource, label_selector: str, namespace: str) -> list[dict[str, Any]]:
        """Return objects; none where RBAC denies them or the server does not serve the resource."""
        try:
            return self._api.list(resource, label_selector=label_selector, namespace=namespace)
        except (ForbiddenError, ApiNotServedError) as error:
            _log.debug("%s are left out: %s", resource.plural, error)
            return []

    def _get_min_list_time(self, job: JobState, pods: Sequence[PodState]) -> float:
        """Return when a list of events must have begun to explain a job: after its failure, if it has failed.

        An earlier list does not have the event with the reason, and the outcome is stored.
        """
        if job_status.get_status(job, pods) != FAILED:
            return -math.inf
        with self._events_lock:
            if len(self._failed_since) >= _MAX_FAILED_JOBS and job.uid not in self._failed_since:
                del self._failed_since[next(iter(self._failed_since))]
            return self._failed_since.setdefault(job.uid, time.monotonic())

    def _list_explaining_events(self, job: JobState, pods: Sequence[PodState], now: datetime) -> Sequence[EventRecord]:
        """Return the events of a job if they are needed to explain its status."""
        if job_status.get_recorded_outcome(job) is not None or not job_status.needs_events(job, pods, now):
            return ()
        max_age = 0.0 if job_status.needs_events(job, pods) else CAPACITY_EVENTS_AGE
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

    def _read_tail(
        self,
        job: JobState,
        pods: Sequence[PodState],
        step: str,
        count: int = _TAIL_LINES,
        of_previous_run: bool = True,
    ) -> list[str]:
        """Return the last lines of a step's log; those before the restart if its container has been restarted."""
        step_pods = pod_state.group_pods_by_step(pods).get(step)
        if not step_pods:
            return []
        pod = step_pods[-1]
        container = dict(pod.step_containers)[step]
        if not (container.running_since or container.latest_termination):
            return []  # The kubelet answers 400 for a container that has never started.
        restarted = of_previous_run and container.terminated is None and container.last_terminated is not None
        options = PodLogOptions(container=container.name, tail_lines=count, previous=restarted)
        try:
            lines = list(self._api.stream_pod_log(pod.name, options, namespace=job.namespace))
        except (NotFoundError, BackendUnavailableError, ValueError):
            return []
        return [line.decode("utf-8", "backslashreplace").rstrip("\r\n") for line in lines]

    def _warn_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            _log.warning("%s", text)


def _get_container(step: str) -> str:
    """Return the container of a step; empty for the main container of its pod."""
    return step if step in (pod_state.DATASET_INITIALIZER, pod_state.MODEL_INITIALIZER) else ""
