"""What tasks wrote down about their TrainJobs: reads Airflow's database, and nothing else does.

Airflow's tables are no public interface, so every query of the page stands here.
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

from airflow_provider import identity
from airflow_provider.links import CONN_ID, DashboardLink, LogsLink
from trainer_core.ref import TrainJobRef

if TYPE_CHECKING:
    from sqlalchemy.orm import Session
    from sqlalchemy.sql import Select

__all__ = ["Pushed", "Task", "dag_ids", "deleted", "newest", "one"]

#: XCom that the page itself writes when somebody deletes a job; a next try of the task removes it, as all its XComs.
_DELETED = "trainjob_deleted"
_KEYS = (
    *("status", "progress", "metrics", "artifacts", "diagnosis"),
    *(CONN_ID, DashboardLink.xcom_key, LogsLink.xcom_key, _DELETED),
)


@dataclass(frozen=True)
class Task:
    """A task instance: what a job is addressed by. `map_index` is -1 where the task is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def owner_key(self) -> str:
        """The key that its jobs carry."""
        return identity.key(self)


@dataclass(frozen=True)
class Pushed:
    """What a task wrote down about its job.

    Attributes:
        task: The task.
        ref: Its job, as far as the task says.
        at: When it was submitted, or found again.
        task_state: What Airflow says of the task now.
        left: The XComs of `_KEYS` that there are.
    """

    task: Task
    ref: TrainJobRef
    at: datetime
    task_state: str | None
    left: dict[str, Any]

    @property
    def conn_id(self) -> str | None:
        """The connection by which the task reaches its job."""
        found = self.left.get(CONN_ID)
        return found if isinstance(found, str) else None

    @property
    def deletion(self) -> dict[str, Any] | None:
        """Who deleted the job and when, if somebody did on this page."""
        return self.left.get(_DELETED)


def one(session: Session, task: Task) -> Pushed | None:
    """Return what one task wrote, None if it has no job."""
    statement = _statement().where(
        XComModel.dag_id == task.dag_id,
        XComModel.run_id == task.run_id,
        XComModel.task_id == task.task_id,
        XComModel.map_index == task.map_index,
    )
    return next(_read(session, statement), None)


def newest(session: Session, dags: Collection[str], before: datetime | None, limit: int) -> Iterator[Pushed]:
    """Yield what the tasks of these DAGs wrote, newest first."""
    statement = _statement().where(XComModel.dag_id.in_(dags))
    if before is not None:
        statement = statement.where(XComModel.timestamp < before)
    return _read(session, statement.order_by(XComModel.timestamp.desc()).limit(limit))


def dag_ids(session: Session, dags: Collection[str]) -> list[str]:
    """Return those of these DAGs that have jobs."""
    statement = select(XComModel.dag_id).where(XComModel.key == CONN_ID, XComModel.dag_id.in_(dags)).distinct()
    return sorted(session.scalars(statement))


def deleted(session: Session, task: Task, by: str) -> None:
    """Write down that somebody deleted the job of a task."""
    XComModel.set(
        _DELETED,
        {"by": by, "at": datetime.now(timezone.utc).isoformat(timespec="seconds")},
        dag_id=task.dag_id,
        task_id=task.task_id,
        run_id=task.run_id,
        map_index=task.map_index,
        session=session,
    )


def _statement() -> Select[Any]:
    """One row for each job: its ref, the state of its task, and each of the other XComs or null."""
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
        # Who only waits for a job, or suspends it, has its ref too; but only who submits says how it is reached.
        statement = statement.join(other, and_(*same, other.key == key), isouter=key != CONN_ID)
    return statement.where(ref.key == "ref")


def _read(session: Session, statement: Select[Any]) -> Iterator[Pushed]:
    for dag_id, run_id, task_id, map_index, at, state, *values in session.execute(statement):
        ref, *others = map(_plain, values)
        try:
            job = TrainJobRef.from_dict(ref)
        except ValueError:
            continue  # Some other task's XCom of that name.
        left = {key: value for key, value in zip(_KEYS, others, strict=True) if value is not None}
        yield Pushed(Task(dag_id, run_id, task_id, map_index), job, at, state and str(state), left)


def _plain(value: Any) -> Any:
    """A stored value as plain data. Airflow itself would load the class that a task says it is of."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
