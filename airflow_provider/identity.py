"""What a TrainJob belongs to: one task, of one run, of one DAG.

The try number is not part of it: all tries of a task are attempts at one thing, so a retry finds the job that the
try before it left. `ti.max_tries` is the generation: a retry keeps it, and a person who clears the task changes it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["key", "owner"]


def owner(ti: Any) -> dict[str, str]:
    """Return the owner of a task instance's TrainJob, as a request carries it."""
    return {"key": key(ti), "slug": ti.task_id, "generation": str(ti.max_tries)}


def key(ti: Any) -> str:
    """Return what tells a task instance's TrainJob from those of all others."""
    parts = (ti.dag_id, ti.run_id, ti.task_id, str(-1 if ti.map_index is None else ti.map_index))
    return "/".join(_escaped(part) for part in parts)


def _escaped(part: str) -> str:
    """A slash inside a part must not be read as one between parts."""
    return part.replace("%", "%25").replace("/", "%2F")
