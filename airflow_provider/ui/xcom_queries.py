"""Database queries of the TrainJobs page: the XComs of tasks that submitted TrainJobs.

Airflow's tables are not a public interface, so all queries are in this module.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import and_, select
from sqlalchemy.orm import aliased

from airflow_provider import owner
from airflow_provider.links import CONN_ID_KEY, DashboardLink, LogsLink, MlflowLink
from trainer_core.jobs import COMPLETE, FAILED, TrainJobRef

if TYPE_CHECKING:
    from sqlalchemy.orm import Session
    from sqlalchemy.sql import Select

__all__ = ["SubmittedJob", "TaskKey", "get_submitted_job", "list_dag_ids", "list_submitted_jobs", "record_deletion"]

#: XCom that the page writes when a user deletes a job; like all XComs of the task, it is removed by the next try.
_DELETION_KEY = "trainjob_deleted"
#: XComs of every task that has waited for a job.
_OUTCOME_KEYS = ("status", "metrics", "artifacts", "diagnosis")
_KEYS = (
    *(*_OUTCOME_KEYS, "progress"),
    *(CONN_ID_KEY, DashboardLink.xcom_key, LogsLink.xcom_key, MlflowLink.xcom_key, _DELETION_KEY),
)
_ENDED = (COMPLETE, FAILED)


@dataclass(frozen=True)
class TaskKey:
    """Key of a task instance. `map_index` is -1 if the task is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def owner_key(self) -> str:
        """Owner key of the task's TrainJobs."""
        return owner.build_owner_key(self)


@dataclass(frozen=True)
class SubmittedJob:
    """A job, from the XComs of its task.

    Attributes:
        task: Key of the task.
        ref: Ref of the job, as the task claims it.
        at: When the task pushed the ref.
        task_state: Current state of the task; None if it has none.
        xcoms: The existing XComs of `_KEYS`.
    """

    task: TaskKey
    ref: TrainJobRef
    at: datetime
    task_state: str | None
    xcoms: dict[str, Any]

    @property
    def conn_id(self) -> str | None:
        """Id of the task's connection; None without one."""
        conn_id = self.xcoms.get(CONN_ID_KEY)
        return conn_id if isinstance(conn_id, str) else None

    @property
    def deletion(self) -> dict[str, Any] | None:
        """Who deleted the job on the page, and when; None if it was not deleted."""
        return self.xcoms.get(_DELETION_KEY)


def get_submitted_job(session: Session, task: TaskKey) -> SubmittedJob | None:
    """Return the job of a task; None if it has none."""
    statement = _build_statement(_KEYS, CONN_ID_KEY).where(
        XComModel.dag_id == task.dag_id,
        XComModel.run_id == task.run_id,
        XComModel.task_id == task.task_id,
        XComModel.map_index == task.map_index,
    )
    return next(iter(_read_jobs(session, statement)), None)


def list_submitted_jobs(
    session: Session, dags: Collection[str], before: datetime | None, limit: int
) -> list[SubmittedJob]:
    """Return the jobs of these DAGs, newest first."""
    statement = _build_statement(_KEYS, CONN_ID_KEY).where(XComModel.dag_id.in_(dags))
    if before is not None:
        statement = statement.where(XComModel.timestamp < before)
    return _read_jobs(session, statement.order_by(XComModel.timestamp.desc()).limit(limit))


def list_dag_ids(session: Session, dags: Collection[str]) -> list[str]:
    """Return the ids of those of these DAGs that have jobs."""
    statement = select(XComModel.dag_id).where(XComModel.key == CONN_ID_KEY, XComModel.dag_id.in_(dags)).distinct()
    return sorted(session.scalars(statement))


def record_deletion(session: Session, task: TaskKey, by: str) -> None:
    """Record that a user deleted the job of a task."""
    XComModel.set(
        _DELETION_KEY,
        {"by": by, "at": datetime.now(timezone.utc).isoformat(timespec="seconds")},
        dag_id=task.dag_id,
        task_id=task.task_id,
        run_id=task.run_id,
        map_index=task.map_index,
        session=session,
    )


def _build_statement(keys: Sequence[str], required: str) -> Select[Any]:
    """Return the query with one row for each ref: the ref, its task's state, and the task's other XComs or null.

    Args:
        keys: Keys of the other XComs.
        required: Key that a task must have. Sensors and suspend operators also push a ref; only a task that submitted a
            job pushes the connection id, and only one that has seen a job pushes a status.
    """
    ref = XComModel
    others = [aliased(XComModel) for _ in keys]
    columns = (ref.dag_id, ref.run_id, ref.task_id, ref.map_index, ref.timestamp, TaskInstance.state, ref.value)
    statement = select(*columns, *(other.value for other in others)).join(
        TaskInstance,
        and_(
            TaskInstance.dag_id == ref.dag_id,
            TaskInstance.run_id == ref.run_id,
            TaskInstance.task_id == ref.task_id,
            TaskInstance.map_index == ref.map_index,
        ),
    )
    for key, other in zip(keys, others, strict=True):
        same = (other.dag_run_id == ref.dag_run_id, other.task_id == ref.task_id, other.map_index == ref.map_index)
        statement = statement.join(other, and_(*same, other.key == key), isouter=key != required)
    return statement.where(ref.key == "ref")


def _read_jobs(session: Session, statement: Select[Any]) -> list[SubmittedJob]:
    """Return the jobs, each with what its own task knows, or a sensor of the same run that has seen its end."""
    jobs = list(_parse_rows(_KEYS, session.execute(statement)))
    runs = {(job.task.dag_id, job.task.run_id) for job in jobs if job.xcoms.get("status") not in _ENDED}
    if not runs:
        return jobs
    waiting = _build_statement(_OUTCOME_KEYS, "status").where(
        XComModel.dag_id.in_({dag for dag, _ in runs}), XComModel.run_id.in_({run for _, run in runs})
    )
    seen = _parse_rows(_OUTCOME_KEYS, session.execute(waiting))
    ends = {(each.task.dag_id, each.ref): each.xcoms for each in seen if each.xcoms.get("status") in _ENDED}
    return [replace(job, xcoms={**job.xcoms, **ends.get((job.task.dag_id, job.ref), {})}) for job in jobs]


def _parse_rows(keys: Sequence[str], rows: Iterable[Any]) -> Iterator[SubmittedJob]:
    for dag_id, run_id, task_id, map_index, at, state, *values in rows:
        ref, *others = map(_parse_value, values)
        try:
            job = TrainJobRef.from_dict(ref)
        except ValueError:
            continue  # An XCom with the key "ref" of an unrelated task.
        xcoms = {key: value for key, value in zip(keys, others, strict=True) if value is not None}
        yield SubmittedJob(TaskKey(dag_id, run_id, task_id, map_index), job, at, state and str(state), xcoms)


def _parse_value(value: Any) -> Any:
    """Return a stored value as plain data. Airflow's own deserializer would import the class that the value names."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
