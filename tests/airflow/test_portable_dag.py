"""One DAG file, several backends: the connection selects the backend, `OnBackend` names what differs."""

from __future__ import annotations

import json
from pathlib import Path

import container_engine
import pytest
from airflow_fakes import double
from fake_cluster import Cluster

from airflow_provider.exceptions import TrainJobRejectedError
from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import CustomTrainer, OnBackend, QueueName, RuntimePatch

DAGS = Path(__file__).parents[2] / "dags"


@pytest.fixture
def connect(monkeypatch):
    """Define the connection of the example."""

    def define(**extra):
        described = json.dumps({"conn_type": "trainjob", "extra": extra})
        monkeypatch.setenv("AIRFLOW_CONN_TRAINJOB_CLUSTER", described)

    return define


@pytest.fixture
def cluster():
    with Cluster() as found:
        found.load_stock_runtimes()
        yield found


@pytest.fixture
def containers(tmp_path):
    """Client of the container engine; its jobs are deleted after the test."""
    client = container_engine.client(tmp_path)
    yield client
    for job in client.list_jobs():
        client.delete_job(job.name)


@pytest.mark.slow
def test_the_same_parsed_dag_runs_on_each_connection(trainjob_dags, run_trainjob_dag, connect, cluster, tmp_path):
    dag = trainjob_dags(DAGS)["train_anywhere"]
    connect(backend="local")
    run = run_trainjob_dag(dag)
    assert (run.state, run.xcom("train", "ref")["backend"]) == ("success", "local")

    connect(backend="kubernetes", config_file=str(cluster.kubeconfig(tmp_path / "config")), namespace="default")
    run = run_trainjob_dag(dag)
    assert (run.state, run.xcom("train", "ref")["backend"]) == ("success", "kubernetes")
    (job,) = cluster.objects("TrainJob")
    assert job["spec"]["runtimeRef"]["name"] == "torch-distributed"
    assert job["spec"]["trainer"]["resourcesPerNode"]["limits"] == {"cpu": "1", "memory": "1Gi"}
    assert job["metadata"]["labels"]["model"] == "energy-forecast"


def test_the_same_parsed_dag_runs_in_containers(trainjob_dags, run_trainjob_dag, connect, containers):
    config = containers.config
    connect(backend="container", container_host=config.container_host, namespace=config.namespace)
    run = run_trainjob_dag(trainjob_dags(DAGS)["train_anywhere"], run_conf={"image": container_engine.IMAGE})
    assert (run.state, run.xcom("train", "ref")["backend"]) == ("success", "container")
    assert run.xcom("train")["error"] < run.xcom("try_out")["error"]


def create_task(**arguments):
    return TrainJobOperator(
        task_id="train", trainer=CustomTrainer(double, {"number": 1}), trainjob_conn_id="trainjob_cluster", **arguments
    )


def test_the_backend_of_the_connection_decides_about_an_option(run_trainjob_task, connect, cluster, tmp_path):
    task = create_task(options=[QueueName("nightly")], runtime="python")
    connect(backend="local")
    done = run_trainjob_task(task)
    assert isinstance(done.error, TrainJobRejectedError)
    assert "QueueName option is not compatible with LocalProcessBackend" in str(done.error)

    connect(backend="kubernetes", config_file=str(cluster.kubeconfig(tmp_path / "config")), namespace="default")
    cluster.load_stock_runtimes()
    assert run_trainjob_task(create_task(options=[QueueName("nightly")], wait_for_completion=False)).error is None
    (job,) = cluster.objects("TrainJob")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "nightly"


@pytest.mark.parametrize(
    "options",
    [
        [OnBackend("kubernetes", QueueName("nightly"))],
        [{"OnBackend": {"backend": "kubernetes", "options": [{"QueueName": "nightly"}]}}],
        "- OnBackend:\n    backend: kubernetes\n    options:\n    - QueueName: nightly",
    ],
)
def test_an_option_for_another_backend_is_skipped(run_trainjob_task, connect, options, home):
    connect(backend="local")
    assert run_trainjob_task(create_task(options=options, runtime="python")).returned["doubled"] == 2


def test_a_dag_that_names_its_backend_is_checked_when_it_is_parsed():
    with pytest.raises(ValueError, match="RuntimePatch option is not compatible with LocalProcessBackend"):
        create_task(options=[RuntimePatch()], backend="local")
