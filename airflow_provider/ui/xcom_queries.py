"""Database queries of the TrainJobs page: the XComs and Assets of tasks that submitted TrainJobs.

Airflow's tables are not a public interface, so all queries are in this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow.models.asset import AssetModel, TaskOutletAssetReference
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import String, and_, cast, func, or_, select
from sqlalchemy.orm import aliased

from airflow_provider import task_owner
from airflow_provider.job_location import PARTITION_KEY
from airflow_provider.links import CONN_ID_KEY, DashboardLink, LogsLink, MlflowLink
from airflow_provider.person_actions import ACTION_KEY
from airflow_provider.xcom import DURATION_KEY, PARAMETERS_KEY, SUMMARY_KEY, TRIALS_KEY
from trainer_core.model.jobs import COMPLETE, FAILED, TrainJobRef

if TYPE_CHECKING:
    from sqlalchemy.orm import Session
    from sqlalchemy.sql import Select, Subquery
    from sqlalchemy.sql.elements import ColumnElement

#: XCom that the page writes when a user deletes a job; like all XComs of the task, it is removed by the next try.
_DELETION_KEY = "trainjob_deleted"
#: XComs of every task that has waited for a job.
_OUTCOME_KEYS = ("status", "metrics", "artifacts", "diagnosis", DURATION_KEY)
_KEYS = (
    *(*_OUTCOME_KEYS, "progress", "resumed_from", PARAMETERS_KEY, SUMMARY_KEY),
    *(CONN_ID_KEY, DashboardLink.xcom_key, LogsLink.xcom_key, MlflowLink.xcom_key, _DELETION_KEY),
)
_ENDED = (COMPLETE, FAILED)
#: Types of XComs; those without one are dicts of plain values.
_TYPES: dict[str, type] = {
    **dict.fromkeys(("status", SUMMARY_KEY, CONN_ID_KEY), str),
    **dict.fromkeys((DashboardLink.xcom_key, LogsLink.xcom_key, MlflowLink.xcom_key), str),
    **dict.fromkeys((DURATION_KEY, "resumed_from"), int),
    TRIALS_KEY: list,
}
#: Largest number of rows that are read for the jobs whose end a sensor has seen, and for the ids of DAGs.
_MAX_SEEN, _MAX_DAGS = 40, 60


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
        return task_owner.build_owner_key(self)


@dataclass(frozen=True)
class SubmittedJob:
    """A job, from the XComs of its task."""

    task: TaskKey
    #: Ref of the job, as the task claims it.
    ref: TrainJobRef
    #: When the task pushed the ref.
    at: datetime
    task_state: str | None
    #: The existing XComs of `_KEYS`.
    xcoms: dict[str, Any]
    #: Of a search, key, slug and generation; `ref` is then that of its first trial. None for a job.
    search: Mapping[str, Any] | None = None
    partition: str | None = None

    @property
    def conn_id(self) -> str | None:
        """Id of the task's connection; None without one."""
        conn_id = self.xcoms.get(CONN_ID_KEY)
        return conn_id if isinstance(conn_id, str) else None

    @property
    def deletion(self) -> dict[str, Any] | None:
        """Who deleted the job on the page, and when; None if it was not deleted."""
        return self.xcoms.get(_DELETION_KEY)


@dataclass(frozen=True)
class JobFilter:
    """Which jobs to list.

    The database compares text, status and partition approximately, so a job that it returns may not match.
    """

    dags: Collection[str]
    #: Part of the name of the job, DAG, run or task. Default: any.
    text: str = ""
    status: str | None = None
    partition: str = ""
    #: The task submitted the job at this time or later. Default: at any time.
    since: datetime | None = None
    before: datetime | None = None


def get_submitted_job(session: Session, task: TaskKey) -> SubmittedJob | None:
    """Return the job of a task; None if it has none."""
    marker = aliased(XComModel)
    found = _select_tasks(marker).where(
        marker.key == CONN_ID_KEY,
        marker.dag_id == task.dag_id,
        marker.run_id == task.run_id,
        marker.task_id == task.task_id,
        marker.map_index == task.map_index,
    )
    keys = (*_KEYS, TRIALS_KEY)
    return next(iter(_read_jobs(session, session.execute(_build_statement(keys, found.subquery())), keys)), None)


def list_submitted_jobs(
    session: Session, wanted: JobFilter, limit: int
) -> tuple[list[SubmittedJob], datetime | None, int]:
    """Return the newest jobs, newest first, without those that a user deleted.

    Also returns when the last of them was submitted, if there can be older ones, and the number of those that cannot
    be read.
    """
    marker = aliased(XComModel)
    newest = _select_tasks(marker).where(*_build_conditions(marker, wanted)).order_by(marker.timestamp.desc())
    rows = session.execute(_build_statement(_KEYS, newest.limit(limit).subquery())).all()
    jobs = _read_jobs(session, rows, _KEYS)
    return jobs, rows[-1].timestamp if len(rows) == limit else None, len(rows) - len(jobs)


def count_submitted_jobs(session: Session, wanted: JobFilter) -> int:
    """Return the number of jobs, without those that a user deleted."""
    marker = aliased(XComModel)
    statement = select(func.count()).select_from(marker).where(*_build_conditions(marker, wanted))
    return session.scalar(statement) or 0


def list_dag_ids(session: Session, dags: Collection[str]) -> list[str]:
    """Return the ids of those of these DAGs that have jobs; of many, those with the newest jobs."""
    statement = select(XComModel.dag_id).where(XComModel.key == CONN_ID_KEY, XComModel.dag_id.in_(dags))
    newest = statement.group_by(XComModel.dag_id).order_by(func.max(XComModel.timestamp).desc())
    return sorted(session.scalars(newest.limit(_MAX_DAGS)))


def list_assets(session: Session, task: TaskKey) -> list[tuple[int, str]]:
    """Return id and name of the Assets among the outlets of a task."""
    outlet = TaskOutletAssetReference
    statement = select(AssetModel.id, AssetModel.name).join(outlet, outlet.asset_id == AssetModel.id)
    found = statement.where(outlet.dag_id == task.dag_id, outlet.task_id == task.task_id).order_by(AssetModel.name)
    return [(asset_id, name) for asset_id, name in session.execute(found)]


def record_action(session: Session, job: SubmittedJob, action: str, by: str) -> None:
    """Record that a user is about to suspend, resume or delete a job, for the logs of its task and of its sensors."""
    for task in (job.task, *_list_sensors(session, job)):
        _set_xcom(session, task, ACTION_KEY, {"action": action, "by": by})
    session.commit()  # The process that waits for the job may see the change before this request ends.


def _list_sensors(session: Session, job: SubmittedJob) -> list[TaskKey]:
    """Return the other tasks of a job's run that have a ref of the job: they wait for it, or change it."""
    ref = aliased(XComModel)
    found = select(ref.dag_id, ref.run_id, ref.task_id, ref.map_index).where(
        ref.key == "ref",
        ref.dag_id == job.task.dag_id,
        ref.run_id == job.task.run_id,
        cast(ref.value, String).contains(job.ref.uid, autoescape=True),
    )
    return [task for row in session.execute(found) if (task := TaskKey(*row)) != job.task]


def record_deletion(session: Session, task: TaskKey, by: str, reached: Mapping[str, Any]) -> None:
    """Record that a user deleted the job of a task, and the step that its training had reached."""
    _set_xcom(session, task, _DELETION_KEY, {"by": by, **reached})


def _set_xcom(session: Session, task: TaskKey, key: str, value: Mapping[str, Any]) -> None:
    XComModel.set(
        key,
        {**value, "at": datetime.now(timezone.utc).isoformat(timespec="seconds")},
        dag_id=task.dag_id,
        task_id=task.task_id,
        run_id=task.run_id,
        map_index=task.map_index,
        serialize=False,  # Else the model stores a string, which workers read as such.
        session=session,
    )


def _select_tasks(marker: Any) -> Select[Any]:
    """Return the query for tasks by one of their XComs.

    Selected before any XCom is joined: joining first would read the XComs of every job to return the newest ones.
    """
    return select(marker.dag_run_id, marker.task_id, marker.map_index, marker.timestamp)


def _build_conditions(marker: Any, wanted: JobFilter) -> list[ColumnElement[bool]]:
    """Return the conditions for XComs that mark a task as one that submitted a job.

    Sensors and suspend operators also push a ref; only a task that submitted a job pushes the connection id.
    """
    conditions = [marker.key == CONN_ID_KEY, marker.dag_id.in_(wanted.dags), ~_has_xcom(marker, _DELETION_KEY)]
    if wanted.since is not None:
        conditions.append(marker.timestamp >= wanted.since)
    if wanted.before is not None:
        conditions.append(marker.timestamp < wanted.before)
    if wanted.status is not None:
        # The backend knows the status of the others.
        conditions.append(~_has_xcom(marker, "status", *({*_ENDED} - {wanted.status})))
    # Of the partition, a part that no database escapes in the JSON of the ref.
    parts = re.findall(r"[A-Za-z0-9 ._:/-]+", wanted.partition)
    if parts:
        conditions.append(_has_xcom(marker, "ref", max(parts, key=len)))
    if wanted.text and wanted.text.isascii():  # SQLite compares other letters with case
        text = wanted.text.lower()
        ids = (marker.dag_id, marker.run_id, marker.task_id)
        found = [func.lower(column).contains(text, autoescape=True) for column in ids]
        conditions.append(or_(*found, _has_xcom(marker, "ref", text)))
    return conditions


def _has_xcom(marker: Any, key: str, *strings: str) -> ColumnElement[bool]:
    """Return the condition that the task of an XCom has an XCom of this key whose JSON contains one of the strings."""
    other = aliased(XComModel)
    found = select(other.key).where(*_belong_together(other, marker), other.key == key)
    if strings:
        value = func.lower(cast(other.value, String))
        found = found.where(or_(*(value.contains(text.lower(), autoescape=True) for text in strings)))
    return found.exists()


def _belong_together(one: Any, other: Any) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that XComs belong to the same task; they are the beginning of the primary key."""
    return one.dag_run_id == other.dag_run_id, one.task_id == other.task_id, one.map_index == other.map_index


def _build_statement(keys: Sequence[str], tasks: Subquery) -> Select[Any]:
    """Return the query with one row for each task: its ref, its state, and its other XComs or null, newest first."""
    ref = aliased(XComModel)
    others = [aliased(XComModel) for _ in keys]
    columns = (ref.dag_id, ref.run_id, ref.task_id, ref.map_index, tasks.c.timestamp, TaskInstance.state, ref.value)
    statement = (
        select(*columns, *(other.value for other in others))
        .select_from(tasks)
        .join(ref, and_(*_belong_together(ref, tasks.c), ref.key == "ref"))
        .join(
            TaskInstance,
            and_(
                TaskInstance.dag_id == ref.dag_id,
                TaskInstance.run_id == ref.run_id,
                TaskInstance.task_id == ref.task_id,
                TaskInstance.map_index == ref.map_index,
            ),
        )
    )
    for key, other in zip(keys, others, strict=True):
        statement = statement.outerjoin(other, and_(*_belong_together(other, tasks.c), other.key == key))
    return statement.order_by(tasks.c.timestamp.desc())


def _read_jobs(session: Session, rows: Iterable[Any], keys: Sequence[str]) -> list[SubmittedJob]:
    """Return the jobs, each with what its own task knows, or a sensor of the same run that has seen its end."""
    jobs = list(_parse_rows(keys, rows))
    runs = {(job.task.dag_id, job.task.run_id) for job in jobs if job.xcoms.get("status") not in _ENDED}
    if not runs:
        return jobs
    status = aliased(XComModel)
    waiting = _select_tasks(status).where(
        status.key == "status",
        status.dag_id.in_({dag for dag, _ in runs}),
        status.run_id.in_({run for _, run in runs}),
        _has_xcom(status, "status", *_ENDED),
        ~_has_xcom(status, CONN_ID_KEY),
    )
    newest = waiting.order_by(status.timestamp.desc()).limit(_MAX_SEEN).subquery()
    seen = _parse_rows(_OUTCOME_KEYS, session.execute(_build_statement(_OUTCOME_KEYS, newest)))
    ends = {(each.task.dag_id, each.ref): each.xcoms for each in seen if each.xcoms.get("status") in _ENDED}
    return [replace(job, xcoms={**job.xcoms, **ends.get((job.task.dag_id, job.ref), {})}) for job in jobs]


def _parse_rows(keys: Sequence[str], rows: Iterable[Any]) -> Iterator[SubmittedJob]:
    for dag_id, run_id, task_id, map_index, at, state, *values in rows:
        ref, *others = map(_parse_value, values)
        try:
            job = TrainJobRef.from_dict(ref)
        except ValueError:
            continue  # An XCom with the key "ref" of an unrelated task.
        xcoms = {key: value for key, value in zip(keys, others, strict=True) if _has_type(key, value)}
        search = ref.get("search") if isinstance(ref.get("search"), Mapping) else None
        partition = str(ref[PARTITION_KEY]) if ref.get(PARTITION_KEY) else None
        task = TaskKey(dag_id, run_id, task_id, map_index)
        yield SubmittedJob(task, job, at, state and str(state), xcoms, search, partition)


def _has_type(key: str, value: Any) -> bool:
    """Return whether an XCom has the type of what the provider pushes; a task can push anything by this key."""
    kind = _TYPES.get(key, dict)
    if kind is not dict or not isinstance(value, dict):
        return isinstance(value, kind)
    plain = (int, float) if key == "metrics" else (str, int, float, type(None))
    return all(isinstance(each, plain) or (name == "metrics" and _has_type(name, each)) for name, each in value.items())


def _parse_value(value: Any) -> Any:
    """Return a stored value as plain data. Airflow's own deserializer would import the class that the value names."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
