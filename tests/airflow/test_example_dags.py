"""The example DAGs: their imports, tasks and runs."""

from __future__ import annotations

import datetime
import importlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DAGS = Path(__file__).parents[2] / "dags"
MODULES = ("digits", "registry", "retraining", "ingest_digits", "retrain_digits", "retrain_digits_one_task")


@pytest.fixture
def dags(monkeypatch, home, tmp_path):
    """Import the DAG files again, with folders of this test."""
    monkeypatch.setenv("DIGITS_DATASET", str(tmp_path / "dataset"))
    monkeypatch.setenv("DIGITS_REGISTRY", str(tmp_path / "registry"))
    monkeypatch.syspath_prepend(str(DAGS))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def bag(airflow_db, dags):
    from airflow_provider.testing.compat import DagBag

    return DagBag(dag_folder=str(DAGS))


def test_the_dag_files_have_no_import_errors(bag):
    assert bag.import_errors == {}
    assert set(bag.dags) >= {"ingest_digits", "retrain_digits", "retrain_digits_one_task", "retrain_tracked"}


def test_every_task_of_every_dag_is_retried(bag):
    assert {task.retries for dag in bag.dags.values() for task in dag.tasks} == {2}


def test_the_retraining_has_the_expected_tasks_and_schedules(bag):
    dag = bag.dags["retrain_digits"]

    assert [task.task_id for task in dag.topological_sort()] == ["initialize", "train", "wait", "promote"]
    assert sorted(dag.params) == ["epochs", "learning_rate", "nodes", "processes_per_node"]
    assert type(dag.timetable).__name__ == "AssetOrTimeSchedule"


def test_parsing_the_dags_imports_no_client_library():
    program = f"""
import sys
sys.path.insert(0, {str(DAGS)!r})
for name in {sorted(path.stem for path in DAGS.glob("*.py"))!r}:
    __import__(name)
print(sorted({{"torch", "sklearn", "numpy", "kubernetes", "kfp"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_the_retraining_trains_promotes_and_keeps_types(run_dag, xcom, bag, dags, client):
    from digits import write_dataset

    registry = dags("registry")
    write_dataset(registry.dataset_folder())
    run = run_dag(bag.dags["retrain_digits"], run_conf={"epochs": 12, "learning_rate": 0.005})

    assert run.state == "success"
    result = xcom(run, "wait")
    assert result["accuracy"] >= 0.95
    assert (result["epochs"], result["world_size"]) == (12, 2)
    assert registry.latest()["metric"] == result["accuracy"]
    assert (registry.registry_folder() / registry.latest()["path"]).is_file()
    assert xcom(run, "train")["name"] in [job.name for job in client.list_jobs()]


def test_one_deferrable_task_gives_the_same_result(run_dag, xcom, bag, dags):
    from digits import write_dataset

    write_dataset(dags("registry").dataset_folder())
    run = run_dag(bag.dags["retrain_digits_one_task"], run_conf={"epochs": 1, "processes_per_node": 1})

    assert run.state == "success"
    assert xcom(run, "retrain", "status") == "Complete"
    assert xcom(run, "retrain", "metrics")["epochs"] == 1
    assert xcom(run, "retrain", "metrics")["accuracy"] > 0.1


def a_result(accuracy, tmp_path):
    model = tmp_path / f"model-{accuracy}" / "digits.pt"
    model.parent.mkdir(exist_ok=True)
    model.write_text(f"model of {accuracy}")
    return {"accuracy": accuracy, "loss": 0.1, "epochs": 3, "artifacts": {"model": model.as_uri()}}


def test_only_a_better_model_is_promoted(dags, tmp_path):
    registry = dags("registry")

    assert registry.promote(a_result(0.96, tmp_path), "one")["version"] == "one"
    assert registry.promote(a_result(0.96, tmp_path), "two") is None
    assert registry.promote(a_result(0.95, tmp_path), "three") is None
    assert registry.latest()["version"] == "one"
    assert registry.promote(a_result(0.97, tmp_path), "four")["version"] == "four"
    assert (registry.registry_folder() / registry.latest()["path"]).read_text() == "model of 0.97"


def test_a_retried_promotion_changes_nothing(dags, tmp_path):
    registry = dags("registry")
    first = registry.promote(a_result(0.96, tmp_path), "one")

    assert registry.promote(a_result(0.96, tmp_path), "one") == first
    assert json.loads((tmp_path / "registry" / "current.json").read_text()) == first


def test_the_best_of_models_promoted_at_the_same_time_is_current(dags, tmp_path):
    registry = dags("registry")
    accuracies = [0.90 + n / 1000 for n in (3, 9, 1, 7, 5, 8, 2, 6, 4, 0)]
    results = [a_result(accuracy, tmp_path) for accuracy in accuracies]

    with ThreadPoolExecutor(len(results)) as pool:
        list(pool.map(lambda result: registry.promote(result, f"job-{result['accuracy']}"), results))

    assert registry.latest()["metric"] == max(accuracies)
    names = sorted(path.name for path in registry.registry_folder().iterdir())
    assert names == ["current.json", "decisions", "lock", "versions"]


@pytest.fixture
def run_promotion(run_dag, dags, tmp_path):
    """Run the task `promote` for a training with this accuracy; return its state."""
    from airflow.sdk import DAG, task

    promote_if_better = dags("retraining").promote_if_better
    with DAG("promotion", schedule=None, start_date=datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)) as dag:

        @task
        def result(dag_run):
            return dag_run.conf

        @task
        def ref(dag_run):
            return {"name": f"job-{dag_run.conf['accuracy']}"}

        promote_if_better(result(), ref())

    def run(accuracy):
        return str(run_dag(dag, run_conf=a_result(accuracy, tmp_path)).get_task_instance("promote").state)

    return run


def test_only_a_promotion_updates_the_model_asset(run_promotion):
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    states = [run_promotion(accuracy) for accuracy in (0.96, 0.95, 0.97)]

    with create_session() as session:
        query = select(AssetEvent.extra).where(AssetEvent.source_dag_id == "promotion").order_by(AssetEvent.id)
        extras = session.scalars(query).all()
    assert states == ["success", "skipped", "success"]
    assert [extra["metrics"]["accuracy"] for extra in extras] == [0.96, 0.97]
    assert [extra["version"] for extra in extras] == ["job-0.96", "job-0.97"]
