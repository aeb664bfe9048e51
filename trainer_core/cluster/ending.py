"""Suspended, cancelled, deleted, noted: everything that changes a job that exists."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from trainer_core.cluster import kinds, marks, observe
from trainer_core.cluster.answers import ForbiddenError, NotInstalledError, NotThereError, StaleError
from trainer_core.cluster.api import Api
from trainer_core.cluster.dialect import Dialect
from trainer_core.cluster.jobfacts import JobFacts
from trainer_core.cluster.raw import Raw
from trainer_core.errors import BackendUnavailableError, JobNotFoundError
from trainer_core.observation import COMPLETE, FAILED
from trainer_core.outcome import Diagnosis, Outcome

__all__ = ["Changes"]

_ENDED = frozenset({COMPLETE, FAILED})
#: Characters of an outcome to keep: a result is 4 KiB at most, a diagnosis has twenty lines of a log.
_MAX_NOTE = 65_536
#: Seconds until a deleted job is gone: its pods have a grace period of 30 seconds, unless their runtime says more.
_MAX_SECONDS_GONE = 120.0


class Changes:
    """Changes jobs.

    Args:
        api: The cluster.
        dialect: How jobs are spelled there.
    """

    def __init__(self, api: Api, dialect: Dialect) -> None:
        self._api = api
        self._dialect = dialect

    def suspend(self, raw: Raw, suspend: bool) -> None:
        """End what runs of a job but keep it, or start it again; nothing, if it has ended."""
        job = self._dialect.read(raw)
        if observe.status_of(job) in _ENDED or job.suspend == suspend:
            return
        self._change(job, self._dialect.suspension(job, suspend))

    def cancel(self, raw: Raw, because: Diagnosis | None = None) -> None:
        """End a job for good and keep its record; nothing, if it has ended.

        Suspended, with a mark that it shall stay so. One that Kueue has queued is deleted: Kueue would start it again.

        Args:
            raw: The job.
            because: Of what it will be said to have failed; None for being cancelled.
        """
        job = self._dialect.read(raw)
        if observe.status_of(job) in _ENDED:
            return
        if job.queue:
            self.delete(raw)
            return
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        annotations = {marks.CANCELLED: now, **({marks.DIAGNOSIS: because.model_dump_json()} if because else {})}
        self._change(job, {"metadata": {"annotations": annotations}, **self._dialect.suspension(job, True)})

    def note(self, outcome: Outcome) -> None:
        """Write on a job that has ended what it left: its pods, which know it, may be gone in an hour."""
        text, ref = outcome.to_json(), outcome.job
        if len(text) > _MAX_NOTE:
            return
        change = {"metadata": {"uid": ref.uid, "annotations": {marks.OUTCOME: text}}}
        for kind in self._dialect.pod_labels:
            with suppress(NotThereError, NotInstalledError, StaleError):
                self._api.patch(kind, ref.name, change, namespace=ref.namespace)
                return

    def delete(self, raw: Raw) -> None:
        """Remove a job and all it owns, and wait until its name is free and its pods are gone.

        Raises:
            BackendUnavailableError: It does not go: something holds it.
        """
        from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_exponential

        job = self._dialect.read(raw)
        self.remove(job)
        waits = Retrying(
            retry=retry_if_result(bool), stop=stop_after_delay(_MAX_SECONDS_GONE), wait=wait_exponential(0.05, max=2.0)
        )
        try:
            waits(lambda: self._is_there(job))
        except RetryError as error:
            name, namespace, plural = job.name, job.namespace, self._dialect.kind(job).plural
            listed = ",".join(dict.fromkeys((plural, "jobs", "pods")))
            raise BackendUnavailableError(
                f"TrainJob {name!r} was told to go and a part of it is still there after {_MAX_SECONDS_GONE:.0f} s; "
                f"see what holds it: kubectl get {listed} -n {namespace} (finalizers, machines that are away)"
            ) from error

    def remove(self, job: JobFacts) -> bool:
        """Have a job deleted, and by the garbage collector what it owns; say whether it was there."""
        kind = self._dialect.kind(job)
        foreground = kind in self._dialect.foreground
        return self._api.delete(kind, job.name, uid=job.uid, foreground=foreground, namespace=job.namespace)

    def _change(self, job: JobFacts, change: dict[str, Any]) -> None:
        # With its uid: a job of the same name that came after it is left alone.
        metadata = {**change.get("metadata", {}), "uid": job.uid}
        try:
            self._api.patch(
                self._dialect.kind(job), job.name, {**change, "metadata": metadata}, namespace=job.namespace
            )
        except (NotThereError, StaleError) as error:
            raise JobNotFoundError(f"TrainJob {job.name!r} is gone") from error

    def _is_there(self, job: JobFacts) -> bool:
        kind = self._dialect.kind(job)
        try:
            return bool(self._api.get(kind, job.name, namespace=job.namespace)["metadata"]["uid"] == job.uid)
        except NotThereError:
            return kind not in self._dialect.foreground and self._left_something(job)

    def _left_something(self, job: JobFacts) -> bool:
        """Say whether a job that is gone has pods still, or other parts, as far as that may be seen.

        To its controller they would be those of the next job of that name, and so would be how they ended.
        """
        with suppress(ForbiddenError):
            if self._api.list(kinds.PODS, labels=self._dialect.selector(job), namespace=job.namespace):
                return True
        return any(self._owns(job, kind) for kind in self._dialect.parts)

    def _owns(self, job: JobFacts, kind: kinds.Kind) -> bool:
        with suppress(NotThereError, NotInstalledError, ForbiddenError):
            part = self._api.get(kind, job.name, namespace=job.namespace)
            return any(owner.get("uid") == job.uid for owner in part["metadata"].get("ownerReferences") or ())
        return False
