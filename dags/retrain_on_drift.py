"""Started from outside Airflow: a monitor that detects drift writes a file, and the file starts the retraining.

The triggerer watches for the file and deletes it, so that each report starts one run. For a message queue, use
``MessageQueueTrigger`` of the provider ``common.messaging`` instead of the file trigger.
"""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.providers.standard.triggers.file import FileDeleteTrigger
from airflow.sdk import Asset, AssetWatcher, dag
from energy import CANDIDATE, DEFAULT_ARGS, drift_file, forecast_trainer

from airflow_provider.operators.trainjob import TrainJobOperator

DRIFT = Asset(
    "energy-drift",
    watchers=[
        AssetWatcher(name="drift-monitor", trigger=FileDeleteTrigger(filepath=str(drift_file()), poke_interval=2)),
    ],
)


@dag(
    schedule=[DRIFT],
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    max_active_runs=1,
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example"],
)
def retrain_on_drift() -> None:
    """Train the forecast again; `promote_forecast` compares the candidate."""
    TrainJobOperator(
        task_id="train", runtime="python", trainer=forecast_trainer(), outlets=[CANDIDATE], deferrable=True
    )


retrain_on_drift()
