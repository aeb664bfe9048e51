"""DAGs of test_ui_page.py: trainings with progress that run until the file in the run's configuration exists."""

from __future__ import annotations

import datetime
import os

from airflow.sdk import DAG

from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import CustomTrainer


def train(gate: str) -> dict:
    import itertools
    import math
    import pathlib
    import time

    from trainer_core import progress

    total = 1500
    # Repeats its steps, so that the job runs as long as the test.
    for step in itertools.cycle(range(1, total + 1)):
        loss = 2.3 * math.exp(-step / 60) + 0.08 + 0.02 * math.sin(step)
        accuracy = 1 - 0.9 * math.exp(-step / 50)
        progress(step=step, total=total, metrics={"loss": loss, "accuracy": accuracy, "lr": 1e-3 * 0.99**step})
        if step % 5 == 1:
            print(f"step {step:4d}  loss {loss:.4f}  <img src=x onerror=alert(1)>", flush=True)
        if pathlib.Path(gate).exists():
            break
        time.sleep(0.1)
    return {"metrics": {"accuracy": accuracy, "loss": loss}, "artifacts": {"model": "s3://models/digits/17"}}


def fail(gate: str) -> None:
    print("loading the dataset", flush=True)
    raise FileNotFoundError("no such file: /data/digits.npz")


def a_dag(name: str, func, **arguments) -> DAG:
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    with DAG(name, schedule=None, start_date=start) as dag:
        TrainJobOperator(
            task_id="train",
            runtime="python",
            trainer=CustomTrainer(func, {"gate": "{{ dag_run.conf['gate'] }}"}),
            deferrable=True,
            **arguments,
        )
    return dag


train_digits = a_dag("train_digits", train)
train_broken = a_dag("train_broken", fail)
#: State folder that only the tasks use.
train_elsewhere = a_dag("train_elsewhere", train, backend_config={"home": f"{os.environ['AIRFLOW_HOME']}/elsewhere"})
