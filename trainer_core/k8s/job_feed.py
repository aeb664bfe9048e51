"""Streams the log of a step, with the state of its job: from the watch of this process, or read where that has none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from trainer_core.base.errors import InvalidRequestError, JobNotFoundError
from trainer_core.k8s import logs, observations
from trainer_core.k8s.job_reader import FIRST_NODE, JobReader, get_container, select_pods
from trainer_core.k8s.job_state import JobState
from trainer_core.k8s.pod_state import PodState
from trainer_core.k8s.watched_jobs import Subscription
from trainer_core.model.jobs import COMPLETE, FAILED
from trainer_core.model.logs import select_steps

if TYPE_CHECKING:
    from trainer_core.model.jobs import TrainJobRef

#: Seconds to wait for the informer's first list before the job is read directly.
_FIRST_LIST_SECONDS = 15.0
#: Seconds after which a log is read again although the watch reports no change.
_MAX_SILENCE_SECONDS = 5.0
_ENDED = (COMPLETE, FAILED)


class JobFeed(AbstractContextManager["JobFeed"]):
    """The state of one job, and its `pods` as of the last `read`, without requests while the watch works."""

    def __init__(self, reader: JobReader, ref: TrainJobRef, subscribe: Callable[[], Subscription] | None) -> None:
        self.pods: Sequence[PodState] = ()
        self._reader = reader
        self._ref = ref
        self._subscription = subscribe() if subscribe else None
        self._job: JobState | None = None
        self._is_watched = False
        if self._subscription:
            self._subscription.wait(_FIRST_LIST_SECONDS)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._subscription:
            self._subscription.close()

    def read(self) -> tuple[JobState, Sequence[PodState]]:
        snapshot = self._subscription.snapshot() if self._subscription else None
        job = snapshot.job if snapshot and snapshot.error is None and snapshot.pods is not None else None
        self._is_watched = job is not None
        if job is None or snapshot is None:
            self._job, self.pods = self._reader.read_state(self._ref)
        else:
            self._job, self.pods = job, job.select_pods(snapshot.pods or ())
        return self._job, self.pods

    def has_ended(self) -> bool:
        """Read the job and return whether it has ended, or was deleted."""
        try:
            job, pods = self.read()
        except JobNotFoundError:
            if self._job is not None:
                self.pods = self._reader.list_log_pods(self._job)
            return True
        if observations.get_status(job, pods) not in _ENDED:
            return False
        if self._is_watched:
            self.pods = self._reader.list_ended_pods(job, pods)
        return True

    def wait_for_change(self, seconds: float) -> None:
        """Wait until the job or a pod has changed; where the job is not watched, for a number of seconds."""
        if self._is_watched and self._subscription:
            self._subscription.wait(_MAX_SILENCE_SECONDS)
        else:
            time.sleep(seconds)


def stream_log_lines(
    reader: JobReader, ref: TrainJobRef, step: str, follow: bool, subscribe: Callable[[], Subscription] | None
) -> Iterator[str]:
    """Yield the lines of a step's log, as `Backend.logs` does. `subscribe` watches the job; None where no watch can."""
    feed = JobFeed(reader, ref, subscribe)
    try:
        job, pods = feed.read()
        select_steps(ref.name, [each.name for each in reader.explain_train_job(job, pods).steps], step)
        if job.runs_elsewhere and not pods:
            raise InvalidRequestError(
                f"TrainJob {ref.name!r} runs in a worker cluster of MultiKueue; read its logs in that cluster"
            )
    except BaseException:
        feed.close()
        raise
    lines = logs.stream_lines(
        partial(reader.api.stream_pod_log, namespace=ref.namespace),
        lambda: select_pods(feed.pods, step),
        get_container(step),
        follow=follow,
        has_ended=feed.has_ended,
        wait_for_change=feed.wait_for_change,
    )
    if follow and step == FIRST_NODE:
        lines = reader.share_progress(ref.uid).read(lines)
    return _close_after(feed, lines)


def _close_after(feed: JobFeed, lines: Iterator[str]) -> Iterator[str]:
    with feed:
        yield from lines
