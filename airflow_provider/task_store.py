"""Ref of a task's TrainJob in the storage that all tries of the task share (Airflow 3.3 and later).

A retry on a host that cannot see the TrainJob learns from it that one may be alive. Only refs with a host are saved:
where all hosts see the same TrainJobs, the next try finds them by their name.
"""

from __future__ import annotations

from typing import Any

from airflow_provider import task_owner
from trainer_core.model.jobs import TrainJobRef

_KEY = "trainjob_ref"
#: Set if the triggerer cannot see the TrainJob.
_WAITS_IN_WORKER = "waits_in_worker"


class SavedRef:
    """The saved ref of one task. Clearing the task makes it void."""

    def __init__(self, store: Any, ti: Any) -> None:
        self._store = store
        self._generation = task_owner.build_owner(ti)["generation"]
        saved = store.get(_KEY) if store is not None else None
        self._saved: dict[str, Any] = saved if saved and saved["generation"] == self._generation else {}
        self._is_announced = False

    @property
    def ref(self) -> TrainJobRef | None:
        """The ref; None if no try has saved one since the task was cleared."""
        return TrainJobRef.from_dict(self._saved["ref"]) if self._saved else None

    def announce(self, ref: TrainJobRef | None) -> None:
        """Save the ref of a TrainJob that is about to be created. If the worker is killed now, it may exist."""
        if ref is not None and ref.host is not None:
            self._write(ref)
            self._is_announced = True

    def withdraw(self) -> None:
        """Forget the announced TrainJob: it was not created."""
        if self._is_announced:
            self._delete()

    def save(self, ref: TrainJobRef) -> None:
        """Save the ref of a TrainJob that exists."""
        self._is_announced = False
        if ref.host is not None and ref != self.ref:
            self._write(ref)

    def forget(self, ref: TrainJobRef) -> None:
        """Forget a TrainJob that has failed or is cancelled: the next try may start another one on any host."""
        if ref == self.ref:
            self._delete()

    def wait_in_worker(self, ref: TrainJobRef) -> None:
        """Save that the triggerer cannot see a TrainJob, so that the next try does not defer its wait for it."""
        self._write(ref, **{_WAITS_IN_WORKER: True})

    def waits_in_worker(self, ref: TrainJobRef) -> bool:
        """Return whether a try has found that the triggerer cannot see a TrainJob."""
        return ref == self.ref and bool(self._saved.get(_WAITS_IN_WORKER))

    def _write(self, ref: TrainJobRef, **facts: bool) -> None:
        self._saved = {"generation": self._generation, "ref": ref.to_dict(), **facts}
        if self._store is not None:
            self._store.set(_KEY, self._saved)

    def _delete(self) -> None:
        self._saved = {}
        if self._store is not None:
            self._store.delete(_KEY)
