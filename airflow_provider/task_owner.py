"""Owner of a task's TrainJob: one task instance of one DAG run.

The try number is not part of the key, so that a retry finds the job that the previous try created. `ti.max_tries` is
the generation: a retry keeps it, and clearing the task increases it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_core.model.jobs import TrainJobRef

_KEY = "trainjob_generation"


def build_owner(ti: Any, generation: str | None = None) -> dict[str, str]:
    """Return the owner of a task instance's TrainJob, in the form of `TrainJobRequest.owner`."""
    return {"key": build_owner_key(ti), "slug": ti.task_id, "generation": generation or str(ti.max_tries)}


class TaskGeneration:
    """Generation of a task's TrainJob in the storage that all tries of the task share (Airflow 3.3 and later).

    It is `ti.max_tries`, unless a clear attached to the job of a worker that was killed: then that job's generation.
    """

    def __init__(self, store: Any, ti: Any) -> None:
        self._store = store
        self._task_generation = str(ti.max_tries)
        self._saved: Mapping[str, Any] = (store.get(_KEY) if store is not None else None) or {}
        is_same = self._saved.get("task_generation") == self._task_generation
        self.value: str = self._saved["generation"] if is_same else self._task_generation

    @property
    def abandoned_job(self) -> TrainJobRef | None:
        """The job that a worker waited for when it was killed in the last try before a clear; None if there is none."""
        return self.cleared_job if self._saved.get("waits") else None

    @property
    def cleared_job(self) -> TrainJobRef | None:
        """The last job before the task was cleared, if Airflow kept the state of the task; None otherwise."""
        is_cleared = self._saved.get("task_generation") not in (None, self._task_generation)
        return TrainJobRef.from_dict(self._saved["ref"]) if is_cleared else None

    def continue_cleared(self) -> None:
        """Use the generation of the job before the clear, in all tries until the next clear.

        Saved at once: if the worker is killed now, and the job completes meanwhile, the next try takes its result.
        """
        self.value = self._saved["generation"]
        self.save(TrainJobRef.from_dict(self._saved["ref"]), waits=self._saved["waits"])

    def save(self, ref: TrainJobRef, *, waits: bool) -> None:
        """Save the job, and whether this worker waits for it from now on."""
        saved = {
            "task_generation": self._task_generation,
            "generation": self.value,
            "ref": ref.to_dict(),
            "waits": waits,
        }
        if self._store is not None and saved != self._saved:
            self._saved = saved
            self._store.set(_KEY, saved)


def build_owner_key(ti: Any) -> str:
    """Return the key that identifies a task instance: ``dag_id/run_id/task_id/map_index``."""
    parts = (ti.dag_id, ti.run_id, ti.task_id, str(-1 if ti.map_index is None else ti.map_index))
    return "/".join(_escape(part) for part in parts)


def _escape(part: str) -> str:
    """Escape slashes, because a slash separates the parts of the key."""
    return part.replace("%", "%25").replace("/", "%2F")
