"""Following a job of a cluster by the one watch that all who wait in this process share."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trainer_core.backends.following import MOST, Follower
from trainer_core.cluster import observe, watch
from trainer_core.cluster.answers import ForbiddenError
from trainer_core.cluster.connect import Connection
from trainer_core.cluster.dialect import Dialect
from trainer_core.cluster.jobfacts import JobFacts
from trainer_core.cluster.looks import Looks
from trainer_core.cluster.pods import PodFacts
from trainer_core.cluster.watch import JobSubscription, Snapshot, Watched
from trainer_core.errors import BackendUnavailableError
from trainer_core.jobs import TrainJob
from trainer_core.observation import CREATED, FAILED, RUNNING, Observation, Tail
from trainer_core.ref import TrainJobRef

__all__ = ["Watching"]

#: Seconds until the first news: a list of the job and its pods.
_FIRST_SECONDS = 15.0
#: Seconds between looks at a job of which the watch is not told.
_UNWATCHED_SECONDS = 2.0
#: Seconds after which to ask for a job of which nothing needed explaining, by its status.
_SILENT_SECONDS = {CREATED: 60.0, RUNNING: 900.0}
#: Seconds without pods after which the events of a job are asked for the reason.
_WITHOUT_PODS_SECONDS = 10.0


class Watching(Follower):
    """Is told of changes. What they mean is asked for only where the job and its pods do not say it themselves.

    Args:
        looks: The cluster.
        connection: To the namespace that the job is in.
        dialect: How jobs are spelled there.
        ref: The job.
    """

    pushed: ClassVar[bool] = True

    def __init__(self, looks: Looks, connection: Connection, dialect: Dialect, ref: TrainJobRef) -> None:
        self._looks = looks
        self._connection = connection
        self._dialect = dialect
        self._ref = ref
        self._kind = dialect.usual
        self._subscription = self._subscribed()
        self._looked = False
        self._asked = time.monotonic()
        self._asks = False
        self._job: JobFacts | None = None
        # Pods vanish with what they could say: those of a crash loop just when the job counts as failed.
        self._pods: dict[str, PodFacts] = {}
        self._shown: tuple[Observation, Observation] | None = None

    def look(self, patience: float) -> Observation:
        """See `Follower.look`."""
        self._subscription.wait(self._pause(patience))
        return self._seen()

    async def look_async(self, patience: float) -> Observation:
        """See `Follower.look_async`."""
        await self._subscription.wait_async(self._pause(patience))
        return await self._seen_async()

    def job(self) -> TrainJob:
        """See `Follower.job`."""
        if self._job is None:
            return self._looks.train_job(self._ref)
        return self._looks.shown(self._job, self._living(self._job))

    def tail(self, place: Mapping[str, Any], whole: bool = False, most: int = MOST) -> Tail:
        """See `Follower.tail`."""
        if self._job is None:
            job = self._dialect.read(self._looks.of(self._ref))
            return self._looks.tail(job, self._looks.pods(job), place, whole, most)
        return self._looks.tail(self._job, self._living(self._job), place, whole, most)

    def close(self) -> None:
        """Wait no longer."""
        self._subscription.close()

    def _subscribed(self) -> JobSubscription:
        label = self._dialect.pod_labels[self._kind]
        watched = Watched(self._kind, label, self._dialect.read, self._dialect.read_pod)
        return watch.subscribe(self._connection, watched, self._ref.name, self._ref.uid)

    def _pause(self, patience: float) -> float:
        if not self._looked:
            self._looked = True
            return _FIRST_SECONDS
        if self._job is None:
            return min(patience, _UNWATCHED_SECONDS)
        if self._pods or not observe.needs_events(self._job):
            return patience
        # Not all at once: thousands may wait for the same quota.
        return min(patience, random.uniform(_WITHOUT_PODS_SECONDS / 2, _WITHOUT_PODS_SECONDS))  # noqa: S311 -- no secret

    def _seen(self) -> Observation:
        quick = self._quick(self._subscription.snapshot())
        if quick is None:
            return self._asked_for()
        return self._known(quick) or self._explained(quick)

    async def _seen_async(self) -> Observation:
        snapshot = self._subscription.snapshot()
        quick = self._quick(snapshot)
        if quick is None and snapshot is None:
            return await self._asked_early()
        if quick is None:
            return await asyncio.to_thread(self._asked_for)
        known = self._known(quick)
        # Only what needs an explanation needs a thread: most news are none.
        return known if known is not None else await asyncio.to_thread(self._explained, quick)

    def _asked_for(self) -> Observation:
        """Ask for a job that the watch does not know; if it is of another kind than most, watch those from now on."""
        raw = self._looks.of(self._ref)
        kind = self._dialect.kind(self._dialect.read(raw))
        if kind != self._kind and kind not in self._dialect.shared:
            self._subscription.close()
            self._kind = kind
            self._subscription = self._subscribed()
        return self._looks.seen(raw, self._ref)

    async def _asked_early(self) -> Observation:
        """Ask for the job while the first list of all is still on its way; of thousands who wait, a few at a time.

        Raises:
            BackendUnavailableError: Others do so already: the server is busy enough.
        """
        if not self._looks.early.acquire(blocking=False):
            raise BackendUnavailableError("the first list of the jobs of the namespace takes long; look again")
        try:
            return await asyncio.to_thread(self._looks.observation, self._ref)
        finally:
            self._looks.early.release()

    def _quick(self, snapshot: Snapshot | None) -> Observation | None:
        """What the job and its pods say themselves; None where the watch knows of no such TrainJob.

        It is gone then, or a job that only initializes, or watching is not permitted: asking for it tells.

        Raises:
            TrainerError: The watch is broken.
        """
        if snapshot is None or isinstance(snapshot.error, ForbiddenError):
            return None
        if snapshot.error is not None:
            raise snapshot.error
        if snapshot.job is None:
            return None
        job: JobFacts = snapshot.job
        self._job = job
        living = {pod.name: pod for pod in job.own(snapshot.pods or ())}
        status = observe.status_of(job, list(living.values()))
        self._pods = {**self._pods, **living} if status == FAILED else living or self._pods
        return observe.observation(job, self._living(job), ref=self._ref)

    def _living(self, job: JobFacts) -> Sequence[PodFacts]:
        return job.own(self._pods.values())

    def _known(self, quick: Observation) -> Observation | None:
        """What was shown for the same news before, or the news themselves where they say all; None otherwise."""
        if self._shown is not None and self._shown[0] == quick and (quick.outcome or quick.trouble):
            return self._shown[1]
        if self._is_silent(quick) and self._looks.may_ask(time.monotonic()):
            self._asks = True
            return None
        if quick.outcome or quick.trouble or (self._job and observe.needs_events(self._job, self._living(self._job))):
            return None
        return quick

    def _is_silent(self, quick: Observation) -> bool:
        return time.monotonic() - self._asked >= _SILENT_SECONDS.get(quick.status, math.inf)

    def _explained(self, quick: Observation) -> Observation:
        if self._job is None:
            return quick
        asks, self._asks = self._asks, False
        if asks and not quick.trouble:
            # Nothing should be missed; where something is, nobody waits for ever.
            self._asked = time.monotonic()
            return self._looks.observation(self._ref)
        if quick.outcome:
            # The news of the job may have overtaken those of its pods.
            self._pods.update({pod.name: pod for pod in self._looks.pods(self._job)})
        shown = self._looks.explained(self._job, self._living(self._job), self._ref)
        self._shown = (quick, shown)
        return shown
