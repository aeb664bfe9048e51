"""Search, then train the best, then promote: a learning rate is searched with short trainings."""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import Param, dag
from energy import CANDIDATE, DEFAULT_ARGS, forecast_trainer

from airflow_provider.operators.promote import PromoteModelOperator
from airflow_provider.operators.search import SearchOperator
from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import Objective, Search


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    params={"trials": Param(6, type="integer", minimum=1, description="Number of trials.")},
    default_args=DEFAULT_ARGS,
    tags=["trainjob", "example"],
)
def tune_forecast() -> None:
    """Find a learning rate with few steps, train with it to the end, and promote the model if it is better."""
    tune = SearchOperator(
        task_id="tune",
        runtime="python",
        trainer=forecast_trainer(steps=5),
        search_space={"learning_rate": Search.loguniform(0.01, 1)},
        objectives=[Objective("error")],
        trial_config={"num_trials": "{{ params.trials }}", "parallel_trials": 3},
        deferrable=True,
    )
    train = TrainJobOperator(
        task_id="train",
        runtime="python",
        trainer=forecast_trainer(),
        func_args=tune.output["parameters"],
        outlets=[CANDIDATE],
        deferrable=True,
    )
    promote = PromoteModelOperator(
        task_id="promote", job=train.output, model="energy-forecast", metric="error", mode="min"
    )
    train >> promote


tune_forecast()
