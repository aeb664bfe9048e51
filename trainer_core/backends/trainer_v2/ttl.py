"""Deletion of ended TrainJobs after their `DeleteAfter` time.

A TrainJob has no `ttlSecondsAfterFinished`, so `submit` now and then, and `trainjob reap`, delete expired jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone

from trainer_core.backends.trainer_v2.parse import parse_job
from trainer_core.k8s import labels, resources
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.errors import ForbiddenError
from trainer_core.k8s.job_writer import JobWriter
from trainer_core.k8s.parsing import RawObject
from trainer_core.k8s.resources import ApiResource


def select_expired(raws: Sequence[RawObject], now: datetime) -> list[RawObject]:
    """Return the jobs that ended longer ago than the seconds in their label. Pure."""
    expired = []
    for raw in raws:
        job = parse_job(raw)
        seconds, finished_at = job.labels.get(labels.DELETE_AFTER, ""), job.finished_at
        if seconds.isdecimal() and finished_at is not None and finished_at + timedelta(seconds=int(seconds)) <= now:
            expired.append(raw)
    return expired


def delete_expired(api: ApiClient, writer: JobWriter, namespace: str, kinds: Iterable[ApiResource]) -> list[str]:
    """Delete expired jobs of these kinds without waiting until they are gone; return their names."""
    selector = f"{labels.MANAGED_BY}={labels.MANAGER},{labels.DELETE_AFTER}"
    raws: list[RawObject] = []
    for kind in kinds:
        # Without initialize-only requests, no role for Jobs is needed.
        with suppress(*((ForbiddenError,) if kind == resources.JOBS else ())):
            raws += api.list(kind, label_selector=selector, namespace=namespace)
    names = []
    for raw in select_expired(raws, datetime.now(timezone.utc)):
        job = parse_job(raw)
        if writer.request_deletion(job):
            names.append(job.name)
    return names
