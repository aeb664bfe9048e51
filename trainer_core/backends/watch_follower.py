"""Follower of a Kubernetes job by the watch that all waiting code in this process shares.

1. An observation waits until the watch reports a change of the job or of a pod.
2. The cached job and pods give an observation without a request: `_observe_cache`.
3. Where they do not explain a failure or a long wait, events and logs are read, and that answer is kept until the cache
   changes or it is too old: `_choose`, `_explain`.
4. A job that the cache does not have is read directly: deleted, of another resource, or not to be watched by RBAC.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from trainer_core.backends.follower import Follower
from trainer_core.base.change_event import ChangeEvent
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.k8s import informer, observations
from trainer_core.k8s.cache import WatchTarget
from trainer_core.k8s.connection import Connection
from trainer_core.k8s.errors import ForbiddenError
from trainer_core.k8s.failure_facts import find_left_node
from trainer_core.k8s.job_adapter import WorkloadAdapter
from trainer_core.k8s.job_reader import CAPACITY_EVENTS_AGE, JobReader
from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.pod_state import PodState
from trainer_core.k8s.resources import ApiResource
from trainer_core.k8s.watched_jobs import JobSnapshot, Subscription
from trainer_core.model.jobs import CREATED, FAILED, RUNNING, Category, Observation, TrainJob, TrainJobRef
from trainer_core.model.logs import MAX_LOG_LINES, LogChunk

#: Seconds to wait for the informer's first list before the job is read directly.
_FIRST_LIST_SECONDS = 15.0
#: Seconds between two subscriptions.
_SUBSCRIPTION_SECONDS = 2.0
#: Seconds without a change after which a job is read directly, by its status. Guards against a lost event.
_STATUS_CHECK_SECONDS = {CREATED: 60.0, RUNNING: 900.0}
#: The same where a node runs after another has succeeded, and may wait for it: its log tells.
_LEFT_NODE_SECONDS = 60.0
#: Seconds without pods after which the events of a job are read, for the reason.
_NO_PODS_SECONDS = 10.0
#: Most seconds between two lists of events of a job that does not start for an unknown reason.
_MAX_EVENTS_SECONDS = 60.0
#: With progress: seconds between two observations of a caller that shows them.
_PROGRESS_OBSERVATION_SECONDS = 2.0


class _Explained(NamedTuple):
    """What a cached observation became with events and logs."""

    cached: Observation
    observation: Observation
    #: When it was first explained, and when it is read again.
    since: float
    until: float


class _Uncached(NamedTuple):
    """The last observation of a job that the cache does not have."""

    observation: Observation
    read_at: float


class WatchFollower(Follower):
    """Observes a job when its watch reports a change. Reads events and logs only where they explain a failure."""

    def __init__(
        self,
        reader: JobReader,
        connection: Connection,
        adapter: WorkloadAdapter,
        ref: TrainJobRef,
        progress: bool = False,
    ) -> None:
        self._reader = reader
        self._connection = connection
        self._adapter = adapter
        self._ref = ref
        self._resource = adapter.primary_resource
        self._subscription = self._subscribe()
        self._is_first = True
        self._last_status_check = time.monotonic()
        self._job: JobState | None = None
        # Includes deleted pods of a failed job: a crash loop's pods are deleted just when the job counts as failed.
        self._pods: dict[str, PodState] = {}
        self._explained: _Explained | None = None
        self._uncached: _Uncached | None = None
        self._wants_progress = progress
        #: Of the first observation: only after it a caller may begin to read the log itself.
        self._was_observed = False

    @property
    def changed(self) -> ChangeEvent:
        return self._subscription.changed

    def next_observation(self, timeout: float) -> Observation:
        self._subscription.wait(self._limit_timeout(timeout))
        cached = self._observe_cache(self._subscription.snapshot())
        if cached is None:
            return self._read_uncached()
        chosen = self._choose(cached)
        return self._add_progress(chosen if isinstance(chosen, Observation) else chosen())

    async def next_observation_async(self, timeout: float) -> Observation:
        await self._subscription.wait_async(self._limit_timeout(timeout))
        snapshot = self._subscription.snapshot()
        cached = self._observe_cache(snapshot)
        if cached is None and snapshot is None:
            return await self._read_before_first_list()
        if cached is None:
            return await asyncio.to_thread(self._read_uncached)
        chosen = self._choose(cached)
        # Most changes need no explanation, and so no thread.
        observation = chosen if isinstance(chosen, Observation) else await asyncio.to_thread(chosen)
        return await asyncio.to_thread(self._add_progress, observation) if self._wants_progress else observation

    def get_job(self) -> TrainJob:
        if self._job is None:
            return self._reader.get_train_job(self._reader.get_object_by_ref(self._ref))
        return self._reader.build_train_job(self._job, self._select_pods(self._job))

    def tail(self, cursor: Mapping[str, Any], job_ended: bool = False, max_lines: int = MAX_LOG_LINES) -> LogChunk:
        if self._job is None:
            job = self._adapter.parse_job(self._reader.get_object_by_ref(self._ref))
            return self._reader.read_log_chunk(job, self._reader.list_pods(job), cursor, job_ended, max_lines)
        return self._reader.read_log_chunk(self._job, self._select_pods(self._job), cursor, job_ended, max_lines)

    def close(self) -> None:
        if self._wants_progress:
            self._reader.stop_progress(self._ref.uid)
        self._reader.uncached_followers.discard(self)
        self._subscription.close()

    def _subscribe(self) -> Subscription:
        self._subscribed = time.monotonic()
        return subscribe_to_job(self._connection, self._adapter, self._ref, self._resource)

    def _renew_subscription(self) -> None:
        """Subscribe again if the informer has ended."""
        if self._subscription.has_ended and time.monotonic() - self._subscribed >= _SUBSCRIPTION_SECONDS:
            self._subscription.close()
            self._subscription = self._subscribe()
            self._is_first = True

    def _limit_timeout(self, timeout: float) -> float:
        if self._is_first:
            self._is_first = False
            return _FIRST_LIST_SECONDS
        if self._wants_progress:
            timeout = min(timeout, _PROGRESS_OBSERVATION_SECONDS)
        if self._job is None:
            return min(timeout, self._reader.get_uncached_interval())
        if self._pods or not observations.needs_events(self._job):
            return timeout
        # Random, because thousands of jobs may wait for the same quota.
        return min(timeout, random.uniform(_NO_PODS_SECONDS / 2, _NO_PODS_SECONDS))  # noqa: S311 -- no secret

    def _observe_cache(self, snapshot: JobSnapshot | None) -> Observation | None:
        """Return what the cached job and pods show; None if the cache does not have the job.

        Then the job has been deleted, or has another resource (an initialize-only job), or RBAC denies the watch. Only
        reading it can tell.
        """
        if snapshot is None or isinstance(snapshot.error, ForbiddenError):
            return None
        if snapshot.error is not None:
            self._renew_subscription()
            raise snapshot.error
        if snapshot.job is None:
            return None
        self._reader.uncached_followers.discard(self)
        job: JobState = snapshot.job
        self._job = job
        pods = {pod.name: pod for pod in job.select_pods(snapshot.pods or ())}
        status = observations.get_status(job, list(pods.values()))
        self._pods = {**self._pods, **pods} if status == FAILED else pods or self._pods
        return observations.build_observation(job, self._select_pods(job), ref=self._ref)

    def _select_pods(self, job: JobState) -> Sequence[PodState]:
        return job.select_pods(self._pods.values())

    def _choose(self, cached: Observation) -> Observation | Callable[[], Observation]:
        """Return the last explained or the cached observation; or the read that is due."""
        has_failure = bool(cached.outcome or cached.pending_failure)
        known = self._explained if self._explained and self._explained.cached == cached else None
        explained = known.observation if known and time.monotonic() < known.until else None
        explain = partial(self._explain, cached)
        if known and has_failure:
            return explained or explain
        now, pods = self._reader.get_limits().now, self._select_pods(self._job) if self._job else ()
        silence, limit = time.monotonic() - self._last_status_check, _STATUS_CHECK_SECONDS.get(cached.status, math.inf)
        if find_left_node(pods, now):
            limit = _LEFT_NODE_SECONDS
        if silence >= limit and self._reader.claim_status_check(time.monotonic()):
            return explain if cached.pending_failure else self._check_status
        if has_failure:
            return explain
        if self._job and observations.needs_explanation(self._job, pods, now):
            return explained or explain
        return cached

    def _add_progress(self, observation: Observation) -> Observation:
        """Add the progress from the log of a running job, unless the job's status has it (Trainer 2.2 and later)."""
        was_observed, self._was_observed = self._was_observed, True
        if not self._wants_progress or observation.status != RUNNING or observation.progress or self._job is None:
            return observation
        if was_observed:
            live = self._reader.follow_progress(self._job, self._select_pods(self._job))
        else:
            live = self._reader.get_live_progress(self._ref.uid)
        return replace(observation, progress=live.progress if live else None)

    def _check_status(self) -> Observation:
        """Read the job itself, because its watch has been silent for long."""
        self._last_status_check = time.monotonic()
        return self._reader.observe(self._ref)

    def _explain(self, cached: Observation) -> Observation:
        """Read what the cache does not have: events and logs."""
        if self._job is None:
            return cached
        if cached.outcome:
            # The event of the job may arrive before those of its pods.
            pods = self._reader.list_ended_pods(self._job, self._select_pods(self._job))
            self._pods.update({pod.name: pod for pod in pods})
        observation = self._reader.observe_state(self._job, self._select_pods(self._job), self._ref)
        now = time.monotonic()
        since = self._explained.since if self._explained and self._explained.cached == cached else now
        self._explained = _Explained(cached, observation, since, now + _get_validity(observation, now - since))
        return observation

    def _read_uncached(self) -> Observation:
        """Read a job that the cache does not have, now and then. If it has another resource, watch that from now on."""
        now, last = time.monotonic(), self._uncached
        if last is not None and now < last.read_at + self._reader.get_uncached_interval():
            return last.observation
        self._reader.uncached_followers.add(self)
        self._uncached = None
        raw = self._reader.get_object_by_ref(self._ref)
        resource = self._adapter.get_resource(self._adapter.parse_job(raw))
        if resource != self._resource and resource not in self._adapter.shared_resources:
            self._subscription.close()
            self._resource = resource
            self._subscription = self._subscribe()
        self._uncached = _Uncached(self._reader.observe_object(raw, self._ref), now)
        return self._uncached.observation

    async def _read_before_first_list(self) -> Observation:
        """Read the job while the informer's first list is under way. Thousands of followers share a few reads."""
        if not self._reader.early_reads.acquire(blocking=False):
            raise BackendUnavailableError(
                f"TrainJob {self._ref.name!r} is not known yet: listing the jobs of its namespace takes long; retry"
            )
        try:
            return await asyncio.to_thread(self._reader.observe, self._ref)
        finally:
            self._reader.early_reads.release()


def subscribe_to_job(
    connection: Connection,
    adapter: WorkloadAdapter,
    ref: TrainJobRef,
    resource: ApiResource | None = None,
    shares_list: bool = False,
) -> Subscription:
    """Subscribe to a job; see `informer.subscribe`."""
    resource = resource or adapter.primary_resource
    target = WatchTarget(resource, adapter.pod_labels[resource], adapter.parse_job, adapter.parse_pod)
    return informer.subscribe(connection, target, ref.name, ref.uid, shares_list=shares_list)


def _get_validity(observation: Observation, unchanged: float) -> float:
    """Return the seconds after which the events of a job that has not changed for so long are read again."""
    pending = observation.pending_failure
    if pending is None and observation.outcome is None:
        first = random.uniform(_NO_PODS_SECONDS / 2, _NO_PODS_SECONDS)  # noqa: S311 -- no secret
        return min(max(first, unchanged), _MAX_EVENTS_SECONDS)
    if pending is None or pending.diagnosis.category is not Category.SCHEDULING:
        return math.inf
    limits = (CAPACITY_EVENTS_AGE, pending.grace, pending.start_within)
    return min(limit for limit in limits if limit is not None)
