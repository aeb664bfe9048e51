"""Approval by a person: the UI shows the metrics of the training, and the model is promoted only after approval.

Waiting for the answer uses no worker and no TrainJob.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import dag, get_current_context, task
from energy import DEFAULT_ARGS, PROMOTED, forecast_trainer

from airflow_provider.operators.trainjob import TrainJobOperator


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example"],
)
def approve_forecast() -> None:
    """Train a forecast, and promote it after a person has approved it."""
    train = TrainJobOperator(task_id="train", runtime="python", trainer=forecast_trainer(), deferrable=True)
    approve = ApprovalOperator(
        task_id="approve",
        subject="Promote the energy forecast of {{ run_id }}?",
        body="Error: **{{ '%.4f' | format(ti.xcom_pull(task_ids='train', key='metrics')['error']) }}**\n\n"
        "Model: `{{ ti.xcom_pull(task_ids='train', key='artifacts')['model'] }}`",
        response_timeout=timedelta(days=3),
    )

    @task(outlets=[PROMOTED])
    def promote(result: dict[str, Any], ref: dict[str, Any]) -> str:
        uri = str(result["artifacts"]["model"])
        extra = {"metrics": {"error": result["error"]}, "artifact_uri": uri, "ref": ref, "job": ref["name"]}
        get_current_context()["outlet_events"][PROMOTED].extra = extra
        return uri

    train >> approve >> promote(train.output, train.output["ref"])


approve_forecast()
