"""DAGs of `make airflow-hosts`. Each trains until the file in the run's configuration exists.

`waiting` and `deferred` run on a queue that both workers serve, and each host has its own state folder. The others run
on the queue of one worker (`_pinned`), or the hosts share the state folder (`_shared`).
"""

from __future__ import annotations

import datetime
import os
from typing import Any

from airflow.sdk import DAG

from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import CustomTrainer


def train(gate: str) -> str:
    import pathlib
    import socket
    import time

    while not pathlib.Path(gate).exists():
        time.sleep(0.1)
    return socket.gethostname()


def create_dag(name: str, **arguments: Any) -> DAG:
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    with DAG(name, schedule=None, start_date=start) as dag:
        TrainJobOperator(
            task_id="train",
            runtime="python",
            trainer=CustomTrainer(train, {"gate": "{{ dag_run.conf['gate'] }}"}),
            retries=20,
            retry_delay=datetime.timedelta(seconds=5),
            **arguments,
        )
    return dag


shared_folder = {"home": os.environ["HOSTS_SHARED_FOLDER"]}
waiting = create_dag("waiting", deferrable=False, queue="any")
deferred = create_dag("deferred", deferrable=True, queue="any")
waiting_pinned = create_dag("waiting_pinned", deferrable=False, queue="host-a")
deferred_pinned = create_dag("deferred_pinned", deferrable=True, queue="host-a")
waiting_shared = create_dag("waiting_shared", deferrable=False, queue="any", backend_config=shared_folder)
deferred_shared = create_dag("deferred_shared", deferrable=True, queue="any", backend_config=shared_folder)
