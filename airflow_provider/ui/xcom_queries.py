"""Database queries of the TrainJobs page: the XComs of tasks that submitted TrainJobs.

Airflow's tables are not a public interface, so all queries are in this module.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import and_, select
from sqlalchemy.orm import aliased

from airflow_provider import owner
from airflow_provider.links import CONN_ID_KEY, DashboardLink, LogsLink
from trainer_core.jobs import TrainJobRef

if TYPE_CHECKING:
    from sqlalchemy.orm import Session
    from sqlalchemy.sql import Select

__all__ = ["SubmittedJob", "TaskKey", "get_submitted_job", "list_dag_ids", "list_submitted_jobs", "record_deletion"]

#: XCom that the page writes when a user deletes a job; like all XComs of the task, it is removed by the next try.
_DELETION_KEY = "trainjob_deleted"
_KEYS = (
    *("status", "progress", "metrics", "artifacts", "diagnosis"),
    *(CONN_ID_KEY, DashboardLink.xcom_key, LogsLink.xcom_key, _DELETION_KEY),
)


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
    statement = _build_statement().where(
        XComModel.dag_id == task.dag_id,
        XComModel.run_id == task.run_id,
        XComModel.task_id == task.task_id,
        XComModel.map_index == task.map_index,
    )
    return next(_read_jobs(session, statement), None)


def list_submitted_jobs(
    session: Session, dags: Collection[str], before: datetime | None, limit: int
) -> Iterator[SubmittedJob]:
    """Yield the jobs of these DAGs, newest first."""
    statement = _build_statement().where(XComModel.dag_id.in_(dags))
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


def _build_statement() -> Select[Any]:
    """Return the query with one row for each job: its ref, its task's state, and its other XComs or null."""
    ref = XComModel
    others = [aliased(XComModel) for _ in _KEYS]
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
    for key, other in zip(_KEYS, others, strict=True):
        same = (other.dag_run_id == ref.dag_run_id, other.task_id == ref.task_id, other.map_index == ref.map_index)
        # Sensors and suspend operators also push a ref; only a task that submitted a job pushes the connection id.
        statement = statement.join(other, and_(*same, other.key == key), isouter=key != CONN_ID_KEY)
    return statement.where(ref.key == "ref")


def _read_jobs(session: Session, statement: Select[Any]) -> Iterator[SubmittedJob]:
    for dag_id, run_id, task_id, map_index, at, state, *values in session.execute(statement):
        ref, *others = map(_parse_value, values)
        try:
            job = TrainJobRef.from_dict(ref)
        except ValueError:
            continue  # An XCom with the key "ref" of an unrelated task.
        xcoms = {key: value for key, value in zip(_KEYS, others, strict=True) if value is not None}
        yield SubmittedJob(TaskKey(dag_id, run_id, task_id, map_index), job, at, state and str(state), xcoms)


def _parse_value(value: Any) -> Any:
    """Return a stored value as plain data. Airflow's own deserializer would import the class that the value names."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
