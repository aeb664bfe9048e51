"""DAGs on the Training Operator: only the connection differs from other backends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_cluster import Cluster

pytestmark = pytest.mark.slow
DAGS = Path(__file__).parents[2] / "dags"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A cluster for the connections of two examples."""
    with Cluster() as found:
        config = {
            "backend": "training-operator",
            "config_file": str(found.kubeconfig(tmp_path / "config")),
            "namespace": "default",
        }
        for name in ("CLUSTER", "OPERATOR"):
            described = json.dumps({"conn_type": "trainjob", "extra": config})
            monkeypatch.setenv(f"AIRFLOW_CONN_TRAINJOB_{name}", described)
        yield found


@pytest.fixture
def dags(trainjob_dags):
    return trainjob_dags(DAGS)


def test_the_dag_that_ran_on_a_trainjob_runs_on_a_pytorchjob(dags, run_trainjob_dag, cluster):
    run = run_trainjob_dag(dags["train_anywhere"])

    assert run.states == {"train": "success", "try_out": "success"}
    assert run.xcom("train", "ref")["backend"] == "training-operator"
    assert run.xcom("train")["error"] < run.xcom("try_out")["error"]
    (job,) = cluster.objects("PyTorchJob")
    assert job["metadata"]["name"] == run.xcom("train", "ref")["name"]


def test_pytorchjob_options_reach_the_manifest(dags, run_trainjob_dag, cluster):
    run = run_trainjob_dag(dags["train_on_pytorchjobs"])

    (job,) = cluster.objects("PyTorchJob")
    replica = job["spec"]["pytorchReplicaSpecs"]["Master"]
    assert run.state == "success"
    assert (job["spec"]["runPolicy"]["backoffLimit"], replica["restartPolicy"]) == (3, "ExitCode")
    assert replica["template"]["spec"]["nodeSelector"] == {"pool": "spot"}
