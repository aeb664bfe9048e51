"""Operators and sensor in DAG runs, with triggers, XComs and templates."""

from __future__ import annotations

import datetime
import itertools
import pathlib

import pytest
from airflow.sdk import DAG, task
from airflow_fakes import double, fail

from airflow_provider.operators.trainjob import InitializeOperator, TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from trainer_core import CustomTrainer, FileDatasetInitializer, Initializer, TrainerClient

_ids = itertools.count()


def a_dag(**arguments):
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    return DAG(f"dag_{next(_ids)}", schedule=None, start_date=start, **arguments)


def state_of(run, task_id):
    return str(run.get_task_instance(task_id).state)


def report(day: str, epochs: int, rates: list, final: bool) -> dict:
    import os

    return {"day": day, "epochs": epochs + 0, "rates": rates, "final": final, "team": os.environ["TEAM"]}


def braces(name: str) -> list:
    return [f"{{{name}}}", "{{ ds }}", "{% if %}", "{# note #}", {"a": {"b": "pa$$word `x`"}}]


def first_line(task: str) -> str:
    from trainer_core import dataset_path

    return f"{task}: {(dataset_path() / 'data.txt').read_text()}"


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_waiting_task_returns_the_result_and_pushes_its_xcoms(run_dag, xcom, client, deferrable):
    with a_dag() as dag:
        TrainJobOperator(
            task_id="train",
            runtime="python",
            trainer=CustomTrainer(func=double, func_args={"number": 21}),
            deferrable=deferrable,
        )
    run = run_dag(dag)
    assert xcom(run, "train")["doubled"] == 42
    assert xcom(run, "train", "status") == "Complete"
    assert xcom(run, "train", "metrics") == {"number": 21.0}
    assert xcom(run, "train", "artifacts") == {"model": "file:///model"}
    assert xcom(run, "train", "ref")["name"] == client.list_jobs()[0].name


def test_templates_in_arguments_and_environment_are_rendered_and_converted(run_dag, xcom):
    with a_dag(params={"epochs": 3, "rates": [0.1, 0.2], "final": True, "team": "vision"}) as dag:
        TrainJobOperator(
            task_id="train",
            runtime="python",
            trainer=CustomTrainer(
                func=report,
                func_args={
                    "day": "{{ ds }}",
                    "epochs": "{{ params.epochs }}",
                    "rates": "{{ params.rates }}",
                    "final": "{{ params.final }}",
                },
                env={"TEAM": "{{ params.team }}"},
                num_nodes="{{ params.epochs - 2 }}",
            ),
        )
    run = run_dag(dag, logical_date=datetime.datetime(2024, 5, 6, tzinfo=datetime.timezone.utc))
    expected = {"day": "2024-05-06", "epochs": 3, "rates": [0.1, 0.2], "final": True, "team": "vision"}
    assert xcom(run, "train") == expected


def test_braces_in_the_training_function_are_not_rendered(run_dag, xcom):
    with a_dag() as dag:
        TrainJobOperator(
            task_id="train", runtime="python", trainer=CustomTrainer(func=braces, func_args={"name": "{{ 'x' * 2 }}"})
        )
    assert xcom(run_dag(dag), "train") == braces("xx")


def test_fetch_train_and_wait_as_three_tasks(run_dag, xcom, tmp_path, client):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "data.txt").write_text("1 2 3")
    with a_dag() as dag:
        initialize = InitializeOperator(
            task_id="initialize", initializer=Initializer(dataset=FileDatasetInitializer(f"file://{tmp_path}/digits"))
        )
        train = TrainJobOperator(
            task_id="train",
            runtime="python",
            trainer=CustomTrainer(func=first_line, func_args={"task": "{{ task.task_id }}"}),
            initializer=Initializer(dataset=FileDatasetInitializer(str(initialize.output["dataset"]), link=True)),
            wait_for_completion=False,
        )
        wait = TrainJobSensor(task_id="wait", job=train.output, poke_interval=0.05)
        initialize >> train
    run = run_dag(dag)
    assert xcom(run, "initialize")["dataset"].startswith("file://")
    assert xcom(run, "train") == xcom(run, "train", "ref") == xcom(run, "wait", "ref")
    assert xcom(run, "wait") == "train: 1 2 3"
    assert wait.upstream_task_ids == {"train"}
    assert len(client.list_jobs()) == 2


@pytest.mark.parametrize("how", [{"mode": "poke"}, {"mode": "reschedule"}, {"deferrable": True}])
def test_a_sensor_returns_the_result_of_the_job(run_dag, xcom, how):
    with a_dag() as dag:
        train = TrainJobOperator(
            task_id="train",
            runtime="python",
            trainer=CustomTrainer(func=double, func_args={"number": 2}),
            wait_for_completion=False,
        )
        TrainJobSensor(
            task_id="wait", job="{{ ti.xcom_pull(task_ids='train', key='ref') }}", poke_interval=0.05, **how
        ).set_upstream(train)
    run = run_dag(dag)
    assert xcom(run, "wait")["doubled"] == 4
    assert xcom(run, "wait", "status") == "Complete"
    assert xcom(run, "wait", "metrics") == {"number": 2.0}


def test_a_sensor_fails_at_once_with_the_job(run_dag, xcom):
    with a_dag(default_args={"retries": 3}) as dag:
        train = TrainJobOperator(
            task_id="train",
            runtime="python",
            trainer=CustomTrainer(func=fail, func_args={"message": "no"}),
            wait_for_completion=False,
        )
        TrainJobSensor(task_id="wait", job=train.output, poke_interval=0.05)
    run = run_dag(dag)
    assert state_of(run, "wait") == "failed"
    assert xcom(run, "wait", "status") == "Failed"


def test_expand_accepts_plain_dicts(run_dag, xcom):
    with a_dag() as dag:
        importable = {"PYTHONPATH": str(pathlib.Path(__file__).parent)}
        TrainJobOperator.partial(task_id="train", runtime="python").expand(
            trainer=[
                {"func": "airflow_fakes:double", "func_args": {"number": number}, "env": importable}
                for number in (1, 2)
            ]
        )
    run = run_dag(dag)
    assert [xcom(run, "train", map_index=index)["doubled"] for index in (0, 1)] == [2, 4]


def test_an_upstream_result_is_an_argument_and_a_dependency(run_dag, xcom):
    with a_dag() as dag:
        first = TrainJobOperator(
            task_id="first",
            runtime="python",
            trainer=CustomTrainer(func=double, func_args={"number": 1}),
            multiple_outputs=True,
        )
        second = TrainJobOperator(
            task_id="second",
            runtime="python",
            trainer=CustomTrainer(func=double, func_args={"number": first.output["doubled"]}),
        )
    assert second.upstream_task_ids == {"first"}
    assert xcom(run_dag(dag), "second")["doubled"] == 4


def test_all_arguments_are_the_result_of_an_upstream_task(run_dag, xcom):
    with a_dag() as dag:
        first = task(task_id="first")(lambda: {"number": 2})()
        second = TrainJobOperator(
            task_id="second", runtime="python", trainer=CustomTrainer(func=double), func_args=first
        )
    assert second.upstream_task_ids == {"first"}
    assert xcom(run_dag(dag), "second")["doubled"] == 4


def test_an_upstream_result_that_is_no_dict_starts_no_job(run_dag):
    with a_dag() as dag:
        first = task(task_id="first")(lambda: None)()
        TrainJobOperator(task_id="second", runtime="python", trainer=CustomTrainer(func=double), func_args=first)
    assert run_dag(dag).get_task_instance("second").state == "failed"
    assert TrainerClient().list_jobs() == []
