"""Sweeps: a task mapped over arguments, and the selection of the best result."""

from __future__ import annotations

import datetime
import itertools
import json

import pytest
from airflow.sdk import DAG, task

from airflow_provider.best_of import best_of
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.testing.compat import DagSerialization
from trainer_core import CustomTrainer

pytestmark = pytest.mark.slow

_ids = itertools.count()


def a_dag(**arguments):
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    return DAG(f"sweep_{next(_ids)}", schedule=None, start_date=start, **arguments)


def train(lr: float, epochs: int = 1, note: str = "") -> dict:
    if lr > 1:
        raise ValueError("it diverged")
    return {"lr": lr, "metrics": {"accuracy": 1 - abs(lr - 0.1)}, "epochs": epochs, "note": note}


def sweep(**arguments):
    trainer = CustomTrainer(train, {"epochs": 2})
    return TrainJobOperator.partial(task_id="train", runtime="python", trainer=trainer, **arguments)


@task
def grid():
    return [{"lr": 0.5, "note": "{{ not a template }}"}, {"lr": 0.1}]


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_sweep_over_arguments_selects_the_best_result(run_dag, xcom, client, deferrable):
    with a_dag() as dag:
        trained = sweep(deferrable=deferrable).expand(func_args=[{"lr": 0.5}, {"lr": 0.1, "epochs": 3}, {"lr": 0.9}])
        best_of(trained.output, metric="accuracy")
    run = run_dag(dag)
    assert xcom(run, "best_of")["lr"] == 0.1
    assert [xcom(run, "train", map_index=index)["epochs"] for index in range(3)] == [2, 3, 2]
    assert len(client.list_jobs()) == 3


def test_arguments_from_an_upstream_task_are_not_rendered(run_dag, xcom):
    with a_dag() as dag:
        sweep().expand(func_args=grid())
    run = run_dag(dag)
    assert xcom(run, "train", map_index=0)["note"] == "{{ not a template }}"


def test_templates_of_the_dag_file_reach_mapped_arguments(run_dag, xcom):
    with a_dag(params={"lr": 0.25}) as dag:
        sweep().expand(func_args=[{"lr": "{{ params.lr }}"}])
    assert xcom(run_dag(dag), "train", map_index=0)["lr"] == 0.25


def test_failed_tasks_of_a_sweep_are_skipped(run_dag, xcom):
    @task(trigger_rule="all_done")
    def pick(results):
        return best_of(results, metric="accuracy", mode="min")

    with a_dag() as dag:
        pick(sweep().expand(func_args=[{"lr": 0.2}, {"lr": 9.0}, {"lr": 0.8}]).output)
    assert xcom(run_dag(dag), "pick")["lr"] == 0.8


RESULTS = [
    {"metrics": {"accuracy": 0.5}, "lr": 1},
    {"accuracy": 0.9, "lr": 2},
    {"metrics": {"accuracy": 0.9}, "lr": 3},
    {"metrics": {"accuracy": float("nan")}, "lr": 4},
    {"metrics": {}, "lr": 5},
    None,
]


@pytest.mark.parametrize(("mode", "lr"), [("max", 2), ("min", 1)])
def test_the_first_of_equal_results_is_selected(mode, lr):
    assert best_of(RESULTS, metric="accuracy", mode=mode)["lr"] == lr


@pytest.mark.parametrize(
    ("results", "arguments", "message"),
    [
        (RESULTS, {"metric": "loss"}, "metric 'loss' is in no result; the results have: accuracy, lr"),
        ([], {"metric": "loss"}, "the results have: none"),
        (RESULTS, {"metric": "lr", "mode": "best"}, "mode must be one of max, min; got 'best'"),
    ],
)
def test_best_of_refuses_unknown_metrics_and_modes(results, arguments, message):
    with pytest.raises(ValueError, match=message):
        best_of(results, **arguments)


@pytest.mark.parametrize("result", [{"accuracy": 0.9}, {"metrics": {"accuracy": 0.9}}, None, 0.9, "text"])
def test_the_result_of_a_task_that_is_not_mapped_is_refused(result):
    with pytest.raises(ValueError, match=r"best_of takes the results of a mapped task, and got one result: use"):
        best_of(result, metric="accuracy")


@pytest.mark.parametrize("value", [None, "0.9", float("inf"), [0.9]])
def test_a_result_whose_metric_is_no_finite_number_is_never_the_best(value):
    results = [{"accuracy": value, "lr": 1}, {"accuracy": 0.1, "lr": 2}]
    assert best_of(results, metric="accuracy")["lr"] == 2


def test_a_sweep_has_the_same_serialized_dag_in_every_process():
    with a_dag() as dag:
        sweep().expand(func_args=[{"lr": 0.5}])
    assert " at 0x" not in json.dumps(DagSerialization.to_dict(dag))
