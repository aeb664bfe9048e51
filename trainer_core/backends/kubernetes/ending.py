"""Suspend, resume, cancel, delete, and the jobs whose time is over: everything that changes a job that exists."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

from trainer_core.backends.kubernetes import history, observe
from trainer_core.backends.kubernetes.facts import JobFacts
from trainer_core.cluster import kinds, marks
from trainer_core.cluster.answers import ForbiddenError, NotInstalledError, NotThereError, StaleError
from trainer_core.cluster.api import Api
from trainer_core.cluster.kinds import Kind
from trainer_core.cluster.pods import JOBSET_LABEL
from trainer_core.cluster.raw import Raw
from trainer_core.errors import BackendUnavailableError, JobNotFoundError
from trainer_core.observation import COMPLETE, FAILED
from trainer_core.outcome import Diagnosis, Outcome

__all__ = ["cancel", "delete", "expired", "note", "suspend", "sweep"]

_ENDED = frozenset({COMPLETE, FAILED})
#: Characters of an outcome to keep: a result is 4 KiB at most, a diagnosis has twenty lines of a log.
_MAX_NOTE = 65_536
#: Seconds until a deleted job is gone: its pods have a grace period of 30 seconds, unless their runtime says more.
_MAX_SECONDS_GONE = 120.0


def suspend(api: Api, raw: Raw, suspend: bool) -> None:
    """End what runs of a job but keep it, or start it again; nothing, if it has ended."""
    job = observe.read(raw)
    if observe.status_of(job) in _ENDED or job.suspend == suspend:
        return
    _change(api, job, {"spec": {"suspend": suspend}})


def cancel(api: Api, raw: Raw, because: Diagnosis | None = None) -> None:
    """End a job for good and keep its record; nothing, if it has ended.

    Suspended, with a mark that it shall stay so. One that Kueue has queued is deleted: Kueue would start it again.

    Args:
        api: The cluster.
        raw: The job.
        because: Of what it will be said to have failed; None for being cancelled.
    """
    job = observe.read(raw)
    if observe.status_of(job) in _ENDED:
        return
    if job.queue:
        delete(api, raw)
        return
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    annotations = {marks.CANCELLED: now, **({marks.DIAGNOSIS: because.model_dump_json()} if because else {})}
    _change(api, job, {"metadata": {"annotations": annotations}, "spec": {"suspend": True}})


def note(api: Api, outcome: Outcome) -> None:
    """Write on a job that has ended what it left: its pods, which know it, may be gone in an hour."""
    text, ref = outcome.to_json(), outcome.job
    if len(text) > _MAX_NOTE:
        return
    change = {"metadata": {"uid": ref.uid, "annotations": {marks.OUTCOME: text}}}
    for kind in (kinds.TRAINJOBS, kinds.JOBS):
        with suppress(NotThereError, StaleError):
            api.patch(kind, ref.name, change, namespace=ref.namespace)
            return


def delete(api: Api, raw: Raw) -> None:
    """Remove a job and all it owns, and wait until its name is free and its pods are gone.

    Raises:
        BackendUnavailableError: It does not go: something holds it.
    """
    from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_exponential

    job = observe.read(raw)
    _remove(api, job)
    waits = Retrying(
        retry=retry_if_result(bool), stop=stop_after_delay(_MAX_SECONDS_GONE), wait=wait_exponential(0.05, max=2.0)
    )
    try:
        waits(lambda: _is_there(api, job))
    except RetryError as error:
        name, namespace = job.name, job.namespace
        raise BackendUnavailableError(
            f"TrainJob {name!r} was told to go and a part of it is still there after {_MAX_SECONDS_GONE:.0f} s; see "
            f"what holds it: kubectl get trainjobs,jobs,pods -n {namespace} (finalizers, machines that are away)"
        ) from error


def expired(raws: Sequence[Raw], now: datetime) -> list[Raw]:
    """Return the jobs that have ended longer ago than their mark says they shall be kept. Pure."""
    found = []
    for raw in raws:
        job = observe.read(raw)
        keep, ended = job.labels.get(marks.DELETE_AFTER, ""), history.ended_at(job)
        if keep.isdecimal() and ended is not None and ended + timedelta(seconds=int(keep)) <= now:
            found.append(raw)
    return found


def sweep(api: Api, namespace: str) -> list[str]:
    """Delete the jobs whose time is over, without waiting for them to be gone; return their names.

    Trainer has no time to live for TrainJobs: each submit does it, and `trainjob reap`.
    """
    raws = [
        raw
        for kind in (kinds.TRAINJOBS, kinds.JOBS)
        for raw in api.list(
            kind, labels=f"{marks.MANAGED_BY}={marks.MANAGER},{marks.DELETE_AFTER}", namespace=namespace
        )
    ]
    names = []
    for raw in expired(raws, datetime.now(timezone.utc)):
        job = observe.read(raw)
        if _remove(api, job):
            names.append(job.name)
    return names


def _change(api: Api, job: JobFacts, change: dict[str, Any]) -> None:
    # With its uid: a job of the same name that came after it is left alone.
    metadata = {**change.get("metadata", {}), "uid": job.uid}
    try:
        api.patch(_kind(job), job.name, {**change, "metadata": metadata}, namespace=job.namespace)
    except (NotThereError, StaleError) as error:
        raise JobNotFoundError(f"TrainJob {job.name!r} is gone") from error


def _remove(api: Api, job: JobFacts) -> bool:
    """Have a job deleted, and by the garbage collector what it owns; say whether it was there."""
    # Not in the foreground: up to 2.3, Trainer makes the JobSet of a TrainJob anew when it is deleted, also of one that
    # is being deleted and only waits for it. The Job controller knows better.
    foreground = job.kind == kinds.JOBS.kind
    return api.delete(_kind(job), job.name, uid=job.uid, foreground=foreground, namespace=job.namespace)


def _is_there(api: Api, job: JobFacts) -> bool:
    try:
        return bool(api.get(_kind(job), job.name, namespace=job.namespace)["metadata"]["uid"] == job.uid)
    except NotThereError:
        return job.kind == kinds.TRAINJOBS.kind and _left_something(api, job)


def _left_something(api: Api, job: JobFacts) -> bool:
    """Say whether a TrainJob that is gone has a JobSet or pods still, as far as that may be seen.

    To Trainer they would be those of the next job of that name, and so would be how they ended.
    """
    with suppress(ForbiddenError):
        if api.list(kinds.PODS, labels=f"{JOBSET_LABEL}={job.name}", namespace=job.namespace):
            return True
    with suppress(NotThereError, NotInstalledError, ForbiddenError):
        owners = api.get(kinds.JOBSETS, job.name, namespace=job.namespace)["metadata"].get("ownerReferences") or ()
        return any(owner.get("uid") == job.uid for owner in owners)
    return False


def _kind(job: JobFacts) -> Kind:
    return kinds.JOBS if job.kind == kinds.JOBS.kind else kinds.TRAINJOBS
