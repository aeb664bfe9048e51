"""DAGs on Run:ai: only the connection differs from other backends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_cluster import Cluster

pytestmark = pytest.mark.slow
DAGS = Path(__file__).parents[2] / "dags"
NAMESPACE = "runai-team-a"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A Run:ai cluster for the connections of the examples."""
    with Cluster(namespaces=[NAMESPACE, "runai"]) as found:
        config = {"backend": "runai", "config_file": str(found.kubeconfig(tmp_path / "config")), "project": "team-a"}
        for name in ("CLUSTER", "RUNAI"):
            described = json.dumps({"conn_type": "trainjob", "extra": config})
            monkeypatch.setenv(f"AIRFLOW_CONN_TRAINJOB_{name}", described)
        yield found


@pytest.fixture
def dags(trainjob_dags):
    return trainjob_dags(DAGS)


def test_the_same_dag_runs_on_runai(dags, run_trainjob_dag, cluster):
    run = run_trainjob_dag(dags["train_anywhere"])

    assert run.states == {"train": "success", "try_out": "success"}
    assert [run.xcom(task, "ref")["backend"] for task in ("try_out", "train")] == ["local", "runai"]
    assert run.xcom("train")["error"] < run.xcom("try_out")["error"]
    (workload,) = cluster.objects("TrainingWorkload")
    assert (workload["metadata"]["namespace"], workload["status"]["phase"]) == (NAMESPACE, "Completed")


def test_the_runai_example_requests_a_fraction_of_a_gpu(dags, run_trainjob_dag, cluster):
    run = run_trainjob_dag(dags["train_on_runai"])

    assert run.states == {"train": "success"}
    (workload,) = cluster.objects("TrainingWorkload")
    assert workload["spec"]["gpu"] == {"value": "0.5"}
    assert workload["spec"]["nodePools"] == {"value": "a100 default"}
