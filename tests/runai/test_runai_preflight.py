"""`trainjob --backend runai doctor`, and the role in deploy/."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from fake_cluster import Cluster
from runai_scene import NAMESPACE, create_client

from trainer_core import TrainingWorkloadSpec
from trainer_core.backends.runai.preflight import PERMISSIONS
from trainer_core.cli import main
from trainer_core.k8s import rbac

DEPLOYED = Path(__file__).parents[2] / "deploy" / "rbac-runai.yaml"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    with Cluster(namespaces=[NAMESPACE, "runai"], controllers=False) as fake:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig(tmp_path / "config")))
        yield fake


@pytest.fixture
def doctor(capsys):
    def command():
        code = main(["--backend", "runai", "--namespace", NAMESPACE, "doctor", "-o", "json"])
        return code, {each["what"]: each for each in json.loads(capsys.readouterr().out)["checks"]}

    return command


def test_every_check_of_a_working_cluster_is_ok(cluster, doctor):
    code, checks = doctor()
    assert (code, {each["state"] for each in checks.values()}) == (0, {"ok"})
    assert checks["run:ai"]["found"] == "run.ai/v2alpha1"
    assert NAMESPACE in checks["configuration"]["found"]


def test_the_report_lists_the_templates_of_the_project(cluster, doctor):
    create_client(cluster).backend.create_template("team", TrainingWorkloadSpec(image="x"))
    assert doctor()[1]["templates of the project"]["found"] == "team"


def test_a_missing_create_permission_fails_the_report(cluster, doctor):
    cluster.forbid("create", "trainingworkloads")
    code, checks = doctor()
    assert (code, checks["may create trainingworkloads"]["state"]) == (6, "missing")


def test_a_missing_pod_permission_is_reported_with_its_consequence(cluster, doctor):
    cluster.forbid("*", "pods")
    code, checks = doctor()
    assert code == 0
    assert "no results" in checks["may list, watch pods"]["cost"]


def test_the_deployed_role_grants_exactly_the_needed_permissions():
    documents = yaml.safe_load_all(DEPLOYED.read_text(encoding="utf-8"))
    roles = {each["metadata"]["name"]: each for each in documents if "rules" in each}
    assert roles["trainjob-runai-user"]["rules"] == rbac.build_rules(PERMISSIONS)
