"""Jobs whose time is over: Trainer has no time to live for TrainJobs, so each submit does it, and `trainjob reap`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone

from trainer_core.backends.kubernetes.facts import read
from trainer_core.cluster import history, kinds, marks
from trainer_core.cluster.answers import ForbiddenError
from trainer_core.cluster.api import Api
from trainer_core.cluster.ending import Changes
from trainer_core.cluster.raw import Raw

__all__ = ["expired", "sweep"]


def expired(raws: Sequence[Raw], now: datetime) -> list[Raw]:
    """Return the jobs that have ended longer ago than their mark says they shall be kept. Pure."""
    found = []
    for raw in raws:
        job = read(raw)
        keep, ended = job.labels.get(marks.DELETE_AFTER, ""), history.ended_at(job)
        if keep.isdecimal() and ended is not None and ended + timedelta(seconds=int(keep)) <= now:
            found.append(raw)
    return found


def sweep(api: Api, changes: Changes, namespace: str) -> list[str]:
    """Delete the jobs whose time is over, without waiting for them to be gone; return their names."""
    labels = f"{marks.MANAGED_BY}={marks.MANAGER},{marks.DELETE_AFTER}"
    raws = api.list(kinds.TRAINJOBS, labels=labels, namespace=namespace)
    with suppress(ForbiddenError):  # Who never initializes needs no role for Jobs.
        raws += api.list(kinds.JOBS, labels=labels, namespace=namespace)
    names = []
    for raw in expired(raws, datetime.now(timezone.utc)):
        job = read(raw)
        if changes.remove(job):
            names.append(job.name)
    return names
