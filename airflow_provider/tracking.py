"""Tracking of a task's TrainJob: the server, the tags of the task, and what the task shows of the run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from airflow_provider import links
from airflow_provider.compat import AirflowException
from airflow_provider.exceptions import TrainJobConnectionUnreadableError
from airflow_provider.hooks.mlflow import MlflowHook
from airflow_provider.hooks.trainjob import TrainJobHook
from trainer_core.base.errors import JobNotFoundError, TrainerError
from trainer_core.model.jobs import Outcome, TrainJobRef

#: XCom with the id of the MLflow run.
RUN_ID_KEY = "mlflow_run_id"


def configure(hook: TrainJobHook, mlflow_conn_id: str | None, asked: bool = False) -> bool:
    """Set the MLflow server of a connection on the hook's client; return whether jobs are tracked."""
    try:
        server = MlflowHook(mlflow_conn_id).get_server()
    except TrainJobConnectionUnreadableError as error:
        # Tracking must not fail a training.
        hook.log.warning("the job is not tracked on the server of %s", error)
        server = None
    is_tracked = server is not None or asked or "MLFLOW_TRACKING_URI" in os.environ
    if is_tracked:
        hook.client.runs.server = server
        hook.client.runs.redact = _mask
    return is_tracked


def add_task_tags(data: Mapping[str, Any], ti: Any, experiment: str | None) -> dict[str, Any]:
    """Return a request as plain data whose run has the tags of the task, in the experiment of the DAG by default."""
    given = data.get("tracking") or {}
    url = links.JobLink().get_link(None, ti_key=ti)
    tags = {
        "airflow.dag_id": ti.dag_id,
        "airflow.run_id": ti.run_id,
        "airflow.task_id": ti.task_id,
        "airflow.map_index": str(-1 if ti.map_index is None else ti.map_index),
        "airflow.try_number": str(ti.try_number),
        "mlflow.note.content": f"[TrainJob in Airflow]({url}): `{ti.dag_id}` / `{ti.run_id}` / `{ti.task_id}`",
    }
    tracking = {"experiment": experiment or ti.dag_id, **given, "tags": {**tags, **given.get("tags", {})}}
    return {**data, "tracking": tracking}


def push_run(ti: Any, hook: TrainJobHook, ref: TrainJobRef) -> str:
    """Push the id of the run of a submitted job, and return the run's address; empty without a run."""
    run = hook.client.get_run(ref) if hook.client.runs.is_tracked(ref) else None
    if run is None:
        return ""
    ti.xcom_push(key=RUN_ID_KEY, value=run.id)
    hook.client.flush_tracking()  # Airflow ends the process of a task without exit handlers.
    return run.url


def track_outcome(hook: TrainJobHook, mlflow_conn_id: str | None, outcome: Outcome, asked: bool, log: Any) -> str:
    """Report how a job ended to its run, and return the run's address; empty without a run. Never fails the task."""
    try:
        if not configure(hook, mlflow_conn_id, asked) and not hook.client.runs.is_tracked(outcome.job):
            return ""
        run = hook.client.get_run(outcome.job)
    except JobNotFoundError:
        return ""
    except (TrainerError, ValueError, AirflowException) as error:
        log.warning("TrainJob %s: its run is not completed: %s", outcome.job.name, error)
        return ""
    # The job can be tracked by its option alone, which only its stored request has.
    hook.client.runs.report_outcome(outcome)
    return run.url if run else ""


def _mask(text: str) -> str:
    from airflow.sdk._shared.secrets_masker import redact  # Only workers need it, and they have imported it already.

    return str(redact(text))
