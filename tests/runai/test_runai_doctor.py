"""`trainjob --backend runai doctor`, and the roles in deploy/."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from fake_cluster import Cluster
from runai_scene import NAMESPACE, a_client

from trainer_core import TrainingWorkloadSpec
from trainer_core.backends.runai.permissions import PERMISSIONS
from trainer_core.cli import main
from trainer_core.cluster import permissions

DEPLOYED = Path(__file__).parents[2] / "deploy" / "rbac-runai.yaml"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    with Cluster(namespaces=[NAMESPACE, "runai"], controllers=False) as made:
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig(tmp_path / "config")))
        yield made


@pytest.fixture
def doctor(capsys):
    def command():
        code = main(["--backend", "runai", "--namespace", NAMESPACE, "doctor", "-o", "json"])
        return code, {each["what"]: each for each in json.loads(capsys.readouterr().out)["checks"]}

    return command


def test_a_cluster_where_all_is_well(cluster, doctor):
    code, checks = doctor()
    assert (code, {each["state"] for each in checks.values()}) == (0, {"ok"})
    assert checks["run:ai"]["found"] == "run.ai/v2alpha1"
    assert NAMESPACE in checks["configuration"]["found"]


def test_templates_are_named(cluster, doctor):
    a_client(cluster).backend.create_template("team", TrainingWorkloadSpec(image="x"))
    assert doctor()[1]["templates of the project"]["found"] == "team"


def test_workloads_that_may_not_be_created_are_missing(cluster, doctor):
    cluster.forbid("create", "trainingworkloads")
    code, checks = doctor()
    assert (code, checks["may create trainingworkloads"]["state"]) == (6, "missing")


def test_pods_that_may_not_be_seen_cost_something(cluster, doctor):
    cluster.forbid("*", "pods")
    code, checks = doctor()
    assert code == 0
    assert "no results" in checks["may list, watch pods"]["cost"]


def test_the_deployed_role_grants_what_is_needed_and_no_more():
    documents = yaml.safe_load_all(DEPLOYED.read_text(encoding="utf-8"))
    roles = {each["metadata"]["name"]: each for each in documents if "rules" in each}
    assert roles["trainjob-runai-user"]["rules"] == permissions.rules(PERMISSIONS)
