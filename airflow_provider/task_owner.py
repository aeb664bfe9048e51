"""Owner of a task's TrainJob: one task instance of one DAG run.

The try number is not part of the key, so that a retry finds the job that the previous try created. `ti.max_tries` is
the generation: a retry keeps it, and clearing the task increases it.
"""

from __future__ import annotations

from typing import Any


def build_owner(ti: Any, generation: str | None = None) -> dict[str, str]:
    """Return the owner of a task instance's TrainJob, in the form of `TrainJobRequest.owner`."""
    return {"key": build_owner_key(ti), "slug": ti.task_id, "generation": generation or str(ti.max_tries)}


def build_owner_key(ti: Any) -> str:
    """Return the key that identifies a task instance: ``dag_id/run_id/task_id/map_index``."""
    parts = (ti.dag_id, ti.run_id, ti.task_id, str(-1 if ti.map_index is None else ti.map_index))
    return "/".join(_escape(part) for part in parts)


def _escape(part: str) -> str:
    """Escape slashes, because a slash separates the parts of the key."""
    return part.replace("%", "%25").replace("/", "%2F")
