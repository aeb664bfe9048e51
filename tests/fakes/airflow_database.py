"""Many TrainJobs in Airflow's metadata database, and the number of rows that are read from it."""

from __future__ import annotations

import contextlib
import datetime
import json
import types
import uuid

_DAGS, _PREFIX = 20, "many_jobs_"


@contextlib.contextmanager
def many_jobs(jobs, ended, sensors=0):
    """Have the DAG runs, tasks and XComs of jobs in the database: the first ones ended, the others last seen running.

    Args:
        jobs: Number of jobs.
        ended: Number of these that ended.
        sensors: Number of the others whose end a sensor of the same DAG run has seen.
    """
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import delete, func, insert, select

    runs, tasks, xcoms = [], [], []
    with create_session(scoped=False) as session:
        first = (session.scalar(select(func.max(DagRun.id))) or 0) + 1
        for number in range(jobs):
            run, of_tasks, of_xcoms = _build_rows(
                number, first + number, number < ended, ended <= number < ended + sensors
            )
            runs.append(run)
            tasks += of_tasks
            xcoms += of_xcoms
        session.add(DagBundleModel(name=_PREFIX))
        session.flush()
        dags = (f"{_PREFIX}{number}" for number in range(_DAGS))
        session.add_all(DagModel(dag_id=dag, bundle_name=_PREFIX, fileloc="/many.py") for dag in dags)
        session.flush()
        for model, rows in ((DagRun, runs), (TaskInstance, tasks), (XComModel, xcoms)):
            session.execute(insert(model), rows)
    try:
        yield
    finally:
        with create_session(scoped=False) as session:
            for model in (XComModel, TaskInstance, DagRun, DagModel):
                session.execute(delete(model).where(model.dag_id.startswith(_PREFIX)))
            session.execute(delete(DagBundleModel).where(DagBundleModel.name == _PREFIX))


def _build_rows(number, run_pk, has_ended, has_sensor):
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(minutes=number)
    key = {"dag_id": f"{_PREFIX}{number % _DAGS}", "run_id": f"run_{number}"}
    times = {"run_after": at, "logical_date": at}
    run = {**key, **times, "id": run_pk, "run_type": "manual", "state": "success", "clear_number": 0}
    ref = {"version": 1, "backend": "kubernetes", "namespace": "team", "name": f"train-{number}", "uid": "uid"}
    xcoms = {
        "train": {
            "ref": ref,
            "trainjob_conn_id": "no_such_connection",
            "status": "Complete" if has_ended else "Running",
            "metrics": {"loss": 1 / (number + 1), "accuracy": 0.5},
            "artifacts": {"model": "s3://models/1"},
            "parameters": {"lr": "0.1", "optimizer.name": "adam"},
            "duration": number,
        }
    }
    if has_sensor:
        xcoms["wait"] = {"ref": ref, "status": "Complete"}
    state = {"state": "success", "pool": "default_pool", "pool_slots": 1}
    tasks = [{**key, **state, "id": uuid.uuid4(), "task_id": task, "map_index": -1} for task in xcoms]
    return (
        run,
        tasks,
        [
            {
                **key,
                "dag_run_id": run_pk,
                "task_id": task,
                "map_index": -1,
                "timestamp": at,
                "key": name,
                "value": value,
            }
            for task, values in xcoms.items()
            for name, value in ((name, json.dumps(value)) for name, value in values.items())
        ],
    )


@contextlib.contextmanager
def count_rows():
    """Counts the rows that SQLite returns; Airflow's check of permissions reads one for each DAG."""
    from airflow import settings
    from sqlalchemy import event

    counted = types.SimpleNamespace(rows=0)

    def count(cursor, row):
        counted.rows += 1
        return row

    def use(connection, *_):
        connection.row_factory = count

    def release(connection, *_):
        connection.row_factory = None

    event.listen(settings.engine, "checkout", use)
    event.listen(settings.engine, "checkin", release)
    try:
        yield counted
    finally:
        event.remove(settings.engine, "checkout", use)
        event.remove(settings.engine, "checkin", release)


def count_dags():
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    with create_session(scoped=False) as session:
        return session.scalar(select(func.count()).select_from(DagModel)) + _DAGS
