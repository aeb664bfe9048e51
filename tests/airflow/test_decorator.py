"""``@task.trainjob`` in DAG runs."""

from __future__ import annotations

import datetime
import itertools
import json

import pytest
from airflow.sdk import DAG, dag, task, task_group

from airflow_provider.sensors.trainjob import TrainJobSensor
from airflow_provider.testing.compat import DagSerialization

# Each runs a DAG.
pytestmark = pytest.mark.slow

_ids = itertools.count()
_START = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)


def a_dag(**arguments):
    return DAG(f"decorated_{next(_ids)}", schedule=None, start_date=_START, **arguments)


@task.trainjob(runtime="python")
def train(lr: float, epochs: int = 1) -> dict:
    """Train a little."""
    return {"score": lr * epochs, "lr": lr, "epochs": epochs}


@task.trainjob(runtime="python")
def describe(value):
    return {"type": type(value).__name__, "value": value}


@task
def rates():
    return [0.5, 0.25]


@task
def a_rate():
    return 0.5


def type_of(run, xcom, task_id="describe"):
    return xcom(run, task_id)["type"]


@pytest.mark.parametrize("deferrable", [False, True])
def test_the_return_value_of_the_function_is_the_xcom(run_dag, xcom, deferrable):
    with a_dag() as dag_:
        train.override(deferrable=deferrable)(0.5, epochs=4)
    run = run_dag(dag_)
    assert xcom(run, "train") == {"score": 2.0, "lr": 0.5, "epochs": 4}
    assert xcom(run, "train", "status") == "Complete"
    assert xcom(run, "train", "metrics")["score"] == 2.0


def test_an_upstream_result_is_an_argument_and_a_dependency(run_dag, xcom):
    with a_dag() as dag_:
        trained = train(a_rate())
    assert trained.operator.upstream_task_ids == {"a_rate"}
    assert xcom(run_dag(dag_), "train")["lr"] == 0.5


def test_entries_of_a_declared_dict_are_separate_xcoms(run_dag, xcom):
    with a_dag() as dag_:
        describe(train(0.5)["score"])
    assert type_of(run_dag(dag_), xcom) == "float"


def test_a_result_keeps_its_type(run_dag, xcom):
    with a_dag() as dag_:
        describe([rates(), {"nested": a_rate()}])
    assert xcom(run_dag(dag_), "describe")["value"] == [[0.5, 0.25], {"nested": 0.5}]


def test_rendered_templates_are_converted_to_the_declared_types(run_dag, xcom):
    with a_dag(params={"lr": 0.5, "epochs": 2}) as dag_:
        train("{{ params.lr }}", "{{ params.epochs }}")
    assert xcom(run_dag(dag_), "train") == {"score": 1.0, "lr": 0.5, "epochs": 2}


def test_dag_parameters_can_be_arguments(run_dag, xcom):
    @dag(schedule=None, start_date=_START)
    def with_parameters(lr: float = 0.25, epochs: int = 4):
        train(lr, epochs)

    made = with_parameters()
    assert xcom(run_dag(made), "train")["score"] == 1.0
    assert xcom(run_dag(made, run_conf={"lr": 0.5, "epochs": 4}), "train")["score"] == 2.0


def test_expand_submits_one_job_for_each_entry(run_dag, xcom, client):
    with a_dag() as dag_:
        train.partial(epochs=2).expand(lr=[0.5, 0.25])
    run = run_dag(dag_)
    assert [xcom(run, "train", map_index=index)["score"] for index in (0, 1)] == [1.0, 0.5]
    assert len(client.list_jobs()) == 2


def test_expand_accepts_a_list_from_an_upstream_task(run_dag, xcom):
    with a_dag() as dag_:
        train.override(deferrable=True).expand(lr=rates())
    run = run_dag(dag_)
    assert [xcom(run, "train", map_index=index)["score"] for index in (0, 1)] == [0.5, 0.25]


def test_entries_of_a_result_do_not_overwrite_the_xcoms_of_the_job(run_dag, xcom, client):
    returned = {"status": {"ok": 1}, "diagnosis": {"x": {}}, "ref": "mine", "trainjob_conn_id": 1, "score": 0.5}

    @task.trainjob(runtime="python")
    def train(result: dict) -> dict:
        return result

    with a_dag() as dag:
        train(returned)
    dag_run = run_dag(dag)
    assert xcom(dag_run, "train") == returned
    assert (xcom(dag_run, "train", "status"), xcom(dag_run, "train", "score")) == ("Complete", 0.5)
    assert xcom(dag_run, "train", "ref")["name"] == client.list_jobs()[0].name
    assert [xcom(dag_run, "train", key) for key in ("diagnosis", "trainjob_conn_id")] == [None, "trainjob_default"]


def test_expand_kwargs_accepts_dicts_of_arguments(run_dag, xcom):
    with a_dag() as dag_:
        train.expand_kwargs([{"lr": 0.5, "epochs": 2}, {"lr": 0.25}])
    run = run_dag(dag_)
    assert [xcom(run, "train", map_index=index)["score"] for index in (0, 1)] == [1.0, 0.25]


def test_an_upstream_result_in_partial_is_a_dependency(run_dag, xcom):
    with a_dag() as dag_:
        trained = train.partial(lr=a_rate()).expand(epochs=[1, 2])
    assert trained.operator.upstream_task_ids == {"a_rate"}
    assert xcom(run_dag(dag_), "train", map_index=1)["score"] == 1.0


def test_results_of_a_mapped_task_arrive_as_a_list(run_dag, xcom):
    with a_dag() as dag_:
        describe(train.expand(lr=[0.5, 0.25]))
    found = xcom(run_dag(dag_), "describe")
    assert found["type"] == "list"
    assert [each["lr"] for each in found["value"]] == [0.5, 0.25]


def test_the_decorator_works_in_task_groups_and_mapped_task_groups(run_dag, xcom):
    @task_group
    def both(lr):
        describe(train(lr)["lr"])

    with a_dag() as dag_:
        both.expand(lr=[0.5, 0.25])
    run = run_dag(dag_)
    assert [xcom(run, "both.describe", map_index=index)["value"] for index in (0, 1)] == [0.5, 0.25]


def test_override_changes_one_call_only(run_dag, xcom, client):
    with a_dag() as dag_:
        train.override(task_id="other", env={"TEAM": "vision"}, num_nodes=1)(0.5)
        train(0.25)
    run = run_dag(dag_)
    assert (xcom(run, "other")["lr"], xcom(run, "train")["lr"]) == (0.5, 0.25)
    assert [dag_.get_task(name).spec["trainer"].get("env") for name in ("other", "train")] == [{"TEAM": "vision"}, None]


def test_without_waiting_the_result_is_the_ref(run_dag, xcom):
    with a_dag() as dag_:
        TrainJobSensor(task_id="wait", job=train.override(wait_for_completion=False)(0.5), poke_interval=0.05)
    run = run_dag(dag_)
    assert xcom(run, "train") == xcom(run, "train", "ref")
    assert xcom(run, "wait")["lr"] == 0.5


def test_arguments_of_trainer_and_operator_reach_the_request():
    @task.trainjob(
        backend="kubernetes",
        runtime="torch-distributed",
        num_nodes=2,
        packages=["scikit-learn"],
        resources_per_node={"gpu": 1},
        options=[{"QueueName": "nightly"}],
        initializer={"dataset": "hf://a/b"},
        retries=3,
    )
    def fit():
        return None

    with a_dag():
        operator = fit().operator
    assert operator.spec["runtime"] == {"name": "torch-distributed"}
    assert {key: operator.spec["trainer"][key] for key in ("num_nodes", "packages", "resources_per_node")} == {
        "num_nodes": 2,
        "packages": ["scikit-learn"],
        "resources_per_node": {"gpu": 1},
    }
    assert operator.spec["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "nightly"}
    assert operator.spec["initializer"]["dataset"]["storage_uri"] == "hf://a/b"
    assert operator.retries == 3


def test_the_packaged_source_has_no_decorator_and_no_globals_of_the_file():
    with a_dag():
        operator = train(0.5).operator
    assert "@task" not in operator.code_text
    assert "def train(lr: float, epochs: int = 1) -> dict:" in operator.code_text
    assert operator.doc_md == "Train a little."


def uses_a_name_of_the_file():
    return _START


def takes_the_context(ti=None, ds=None):
    return ds


async def is_async():
    return 1


def takes_by_position(x, /):
    return x


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (uses_a_name_of_the_file, "uses _START, defined outside it, which its source does not contain"),
        (takes_the_context, "parameter ti, ds is a context variable of Airflow"),
        (is_async, "is async"),
        (takes_by_position, r"has positional-only parameters \(x\)"),
    ],
)
def test_a_function_that_cannot_be_packaged_is_refused_at_its_decorator(function, message):
    with pytest.raises(ValueError, match=message) as refused:
        task.trainjob(runtime="python")(function)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: train(), TypeError, "missing a required argument: 'lr'"),
        (lambda: train(0.5, batch=3), TypeError, "batch"),
        (lambda: train.expand(rate=[1]), TypeError, "unexpected keyword argument 'rate'"),
        (lambda: train({1, 2}), ValueError, r"lr'?\]? is a set, which is not JSON"),
        (lambda: train.override(num_nodes=0)(1), ValueError, "num_nodes must be a whole number of at least 1"),
        (lambda: train.override(nodes=2)(1), TypeError, "nodes"),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(call, error, message):
    with a_dag(), pytest.raises(error, match=message):
        call()


def test_a_dag_with_the_decorator_can_be_serialized():
    with a_dag() as dag_:
        train(a_rate())
        train.override(task_id="mapped").partial(epochs=2).expand(lr=[0.5])
    written = json.dumps(DagSerialization.to_dict(dag_))
    back = DagSerialization.from_dict(json.loads(written))
    assert back.get_task("train").task_type == "TrainJobDecoratedOperator"
    assert back.get_task("train").operator_name == "@task.trainjob"
    assert " at 0x" not in written
