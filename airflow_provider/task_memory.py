"""What a task remembers of its TrainJob: XComs, and the storage that all its tries share (Airflow 3.3 and later).

| key | where | content |
| --- | --- | --- |
| `ref` | XCom | ref of the last TrainJob of this try, with the place that the submitting process resolved |
| `trainjob_place` | storage | what the first try resolved; clearing the task keeps it |
| `trainjob_ref` | storage | ref of a TrainJob that only some hosts can see; void once the task was cleared |
| `trainjob_generation` | storage | generation of the last TrainJob, and whether a worker waits for it |
| `trainjob_log` | both | how much of the TrainJob's log is in the log of the task |
| `trainjob_trouble` | storage | state of the wait of a sensor between two pokes |

A submit is written in this order: place and ref of what is about to be created; place, ref and XCom of what exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from airflow_provider import xcom
from airflow_provider.task_log import LOG_KEY, LogPosition
from trainer_core.model.jobs import TrainJobRef

_PLACE_KEY, _REF_KEY, _GENERATION_KEY = "trainjob_place", "trainjob_ref", "trainjob_generation"
_WAIT_KEY = "trainjob_trouble"
#: Set if the triggerer cannot see the TrainJob.
_WAITS_IN_WORKER = "waits_in_worker"


class TaskMemory:
    """The memory of one task instance; empty before the task begins.

    Attributes:
        ref_data: The ref of the TrainJob of this try, with its place. Empty if there is none.
        generation: Generation of the task's TrainJob: `ti.max_tries`, unless a clear attached to the job of an earlier
            one.
    """

    def __init__(self, ti: Any = None, store: Any = None) -> None:
        self._ti, self._store = ti, store
        self.ref_data: dict[str, Any] = {}
        self._task_generation = str(ti.max_tries) if ti is not None else ""
        saved = self._read(_REF_KEY) or {}
        self._saved_ref: Mapping[str, Any] = saved if saved.get("generation") == self._task_generation else {}
        self._last: Mapping[str, Any] = self._read(_GENERATION_KEY) or {}
        is_same = self._last.get("task_generation") == self._task_generation
        self.generation: str = self._last["generation"] if is_same else self._task_generation
        self._announced: set[str] = set()

    @property
    def ref(self) -> TrainJobRef | None:
        """The TrainJob of this try."""
        return TrainJobRef.from_dict(self.ref_data) if self.ref_data else None

    @property
    def is_shared(self) -> bool:
        """Whether the tries of the task share a storage."""
        return self._store is not None

    @property
    def earlier_ref(self) -> TrainJobRef | None:
        """The TrainJob that a try has saved since the task was cleared, and that not all hosts can see."""
        return TrainJobRef.from_dict(self._saved_ref["ref"]) if self._saved_ref else None

    @cached_property
    def place(self) -> Mapping[str, Any] | None:
        """What the first try resolved; None if no try has submitted a TrainJob."""
        return self._read(_PLACE_KEY)

    @property
    def abandoned_job(self) -> TrainJobRef | None:
        """The job that a worker waited for when it was killed in the last try before a clear."""
        return self.cleared_job if self._last.get("waits") else None

    @property
    def cleared_job(self) -> TrainJobRef | None:
        """The last job before the task was cleared, if Airflow kept the state of the task."""
        is_cleared = self._last.get("task_generation") not in (None, self._task_generation)
        return TrainJobRef.from_dict(self._last["ref"]) if is_cleared else None

    def continue_cleared(self) -> None:
        """Use the generation of the job before the clear, in all tries until the next clear.

        Saved at once: if the worker is killed now, and the job completes meanwhile, the next try takes its result.
        """
        self.generation = self._last["generation"]
        self.record_wait(TrainJobRef.from_dict(self._last["ref"]), waits=self._last["waits"])

    def announce(self, place: Mapping[str, Any], ref: TrainJobRef | None) -> None:
        """Save what is about to be created. If the worker is killed now, it may exist."""
        if self.place is None:
            self._announced.add(_PLACE_KEY)
            self._write_place(place)
        if ref is not None and ref.host is not None:
            self._announced.add(_REF_KEY)
            self._write_ref(ref)

    def withdraw(self) -> None:
        """Forget what was announced: it was not created."""
        if _REF_KEY in self._announced:
            self._forget_ref()
        if _PLACE_KEY in self._announced:
            self.place = None
            self._delete(_PLACE_KEY)

    def record_submit(self, ref_data: Mapping[str, Any]) -> None:
        """Save a TrainJob that exists. If the worker is killed now, the next process reads it."""
        self.ref_data = dict(ref_data)
        ref = TrainJobRef.from_dict(ref_data)
        self._announced.clear()
        if self.place is None or "uid" not in self.place:
            self._write_place(ref_data)
        if ref.host is not None and ref != self.earlier_ref:
            self._write_ref(ref)
        self.push_ref(ref_data)

    def push_ref(self, ref_data: Mapping[str, Any]) -> None:
        """Push the TrainJob that the task waits for from now on."""
        self.ref_data = dict(ref_data)
        self._ti.xcom_push(key="ref", value=self.ref_data)

    def pull_ref(self) -> None:
        """Read the TrainJob that this try has pushed before it was deferred."""
        self.ref_data = xcom.pull(self._ti, "ref") or self.ref_data

    def record_wait(self, ref: TrainJobRef, *, waits: bool) -> None:
        """Save the last TrainJob, and whether this worker waits for it from now on."""
        saved = {
            "task_generation": self._task_generation,
            "generation": self.generation,
            "ref": ref.to_dict(),
            "waits": waits,
        }
        if saved != self._last and self._store is not None:
            self._last = saved
            self._store.set(_GENERATION_KEY, saved)

    def forget(self, ref: TrainJobRef) -> None:
        """Forget a TrainJob that has failed or is cancelled: the next try may start another one on any host."""
        if ref == self.earlier_ref:
            self._forget_ref()

    def wait_in_worker(self, ref: TrainJobRef) -> None:
        """Save that the triggerer cannot see a TrainJob, so that no try defers its wait for it."""
        self._write_ref(ref, **{_WAITS_IN_WORKER: True})

    def waits_in_worker(self, ref: TrainJobRef) -> bool:
        """Return whether a try has found that the triggerer cannot see a TrainJob."""
        return ref == self.earlier_ref and bool(self._saved_ref.get(_WAITS_IN_WORKER))

    def read_log_position(self, ref: TrainJobRef) -> LogPosition:
        """Return how much of a TrainJob's log the tries have written. The log must not fail the task."""
        with suppress(Exception):
            return LogPosition(ref, self._read(LOG_KEY))
        return LogPosition(ref)

    def save_log_position(self, position: LogPosition) -> None:
        """Save it. If that fails, the next try writes some lines again."""
        with suppress(Exception):
            self._set(LOG_KEY, position.to_dict())

    def push_log_position(self, ref: TrainJobRef) -> None:
        """Push the position at which the trigger starts: it reads this XCom, and Airflow logs an error without it."""
        self._ti.xcom_push(key=LOG_KEY, value=self.read_log_position(ref).to_dict())

    def read_wait(self, ref: TrainJobRef) -> dict[str, Any]:
        """Return what the last poke of mode="reschedule" stored for a TrainJob."""
        saved = self._read(_WAIT_KEY)
        return dict(saved["of"]) if saved and saved["uid"] == ref.uid else {}

    def save_wait(self, ref: TrainJobRef, state: Mapping[str, Any]) -> None:
        """Store the state of a wait for the next poke of mode="reschedule"."""
        self._set(_WAIT_KEY, {"uid": ref.uid, "of": state})

    def _write_place(self, place: Mapping[str, Any]) -> None:
        self.place = place
        self._set(_PLACE_KEY, dict(place))

    def _write_ref(self, ref: TrainJobRef, **facts: bool) -> None:
        self._saved_ref = {"generation": self._task_generation, "ref": ref.to_dict(), **facts}
        self._set(_REF_KEY, self._saved_ref)

    def _forget_ref(self) -> None:
        self._saved_ref = {}
        self._delete(_REF_KEY)

    def _read(self, key: str) -> Any:
        return self._store.get(key) if self._store is not None else None

    def _set(self, key: str, value: Mapping[str, Any]) -> None:
        if self._store is not None:
            self._store.set(key, value)

    def _delete(self, key: str) -> None:
        if self._store is not None:
            self._store.delete(key)
