"""DAGs of test_standalone.py. Each trains until the file in the run's configuration exists."""

from __future__ import annotations

import datetime

from airflow.sdk import DAG

from airflow_provider.operators.search import SearchOperator
from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import CustomTrainer, Search, TrialConfig


def train(gate: str, x: float = 0.03) -> dict:
    import pathlib
    import time

    print("training begins", flush=True)
    while not pathlib.Path(gate).exists():
        time.sleep(0.05)
    return {"accuracy": 1 - x}


class EndsAfterSubmit(TrainJobOperator):
    """Task whose timeout passes some seconds after the submission, however long that takes on a busy machine."""

    def _submit(self):
        submitted = super()._submit()
        passed = datetime.datetime.now(datetime.timezone.utc) - self._ti.start_date
        self.execution_timeout = self._waiting._limit = passed + datetime.timedelta(seconds=5)
        return submitted


def a_dag(name: str, dag_arguments: dict | None = None, operator: type = TrainJobOperator, **arguments) -> DAG:
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    with DAG(name, schedule=None, start_date=start, **(dag_arguments or {})) as dag:
        operator(
            task_id="train",
            runtime="python",
            trainer=CustomTrainer(train, {"gate": "{{ dag_run.conf['gate'] }}"}),
            **arguments,
        )
    return dag


waiting = a_dag("waiting", retries=1, retry_delay=datetime.timedelta(seconds=1))
deferred = a_dag("deferred", deferrable=True)
# With a retry, the DAGs of tasks that are cleared: see the test of `cleared`.
cleared = a_dag("cleared", deferrable=True, retries=1, retry_delay=datetime.timedelta(seconds=1))
kept = a_dag("kept", deferrable=True, on_kill="keep")
asked = a_dag("asked", deferrable=True, on_clear="ask", retries=1, retry_delay=datetime.timedelta(seconds=1))
searching = a_dag(
    "searching",
    operator=SearchOperator,
    deferrable=True,
    search_space={"x": Search.uniform(0, 1)},
    objectives=[{"metric": "accuracy", "direction": "maximize"}],
    trial_config=TrialConfig(num_trials=4, parallel_trials=2),
    retries=1,
    retry_delay=datetime.timedelta(seconds=1),
)
out_of_time = a_dag(
    "out_of_time", operator=EndsAfterSubmit, deferrable=True, execution_timeout=datetime.timedelta(hours=1)
)
run_out_of_time = a_dag("run_out_of_time", {"dagrun_timeout": datetime.timedelta(hours=1)}, deferrable=True)
