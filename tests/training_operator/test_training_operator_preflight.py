"""`trainjob doctor` on a cluster with the Training Operator, and the roles in deploy/."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from fake_cluster import Cluster
from test_training_operator_backend import build_crd_without_suspend
from training_operator_scene import build_request, create_client

from trainer_core import TrainingOperatorBackendConfig
from trainer_core.backends.training_operator.preflight import PERMISSIONS
from trainer_core.frontend.preflight import check_backend
from trainer_core.k8s import rbac
from trainer_core.k8s.rbac import AIRFLOW, KFP

RBAC = Path(__file__).parents[2] / "deploy" / "rbac-training-operator.yaml"
ROLES = {
    f"trainjob-training-operator-{name}": user for name, user in (("airflow-worker", AIRFLOW), ("kfp-runner", KFP))
}


@pytest.fixture
def cluster():
    with Cluster() as fake:
        yield fake


def run_checks(cluster, **settings):
    return check_backend(TrainingOperatorBackendConfig(client_configuration=cluster.configuration(), **settings))


def get_check(report, what):
    return next(each for each in report.checks if each.what == what)


def test_every_check_of_a_working_cluster_is_ok(cluster):
    report = run_checks(cluster)
    assert report.fit
    assert {each.state for each in report.checks} == {"ok"}
    assert get_check(report, "training operator").found == "serves PyTorchJob, 1.9 or later"
    assert get_check(report, "runtimes").found == "python, torch-distributed, trl-llm"


def test_an_operator_without_suspend_is_limited(cluster):
    cluster.add(build_crd_without_suspend(cluster))
    operator = get_check(run_checks(cluster), "training operator")
    assert (operator.state, "cancelling deletes" in operator.cost) == ("limited", True)


def test_a_missing_permission_is_reported_with_the_role_that_grants_it(cluster):
    cluster.forbid("create", "pytorchjobs")
    report = run_checks(cluster)
    assert not report.fit
    (role, _) = report.repair
    assert role["rules"] == [{"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": ["create"]}]


def test_the_folder_of_runtimes_is_an_environment_variable_or_a_setting(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINJOB_RUNTIMES", str(tmp_path))
    assert TrainingOperatorBackendConfig().runtimes_folder == tmp_path
    assert TrainingOperatorBackendConfig(runtimes="/mine").runtimes_folder == Path("/mine")


def test_a_missing_folder_of_runtimes_is_reported(cluster, tmp_path):
    report = run_checks(cluster, runtimes=tmp_path / "absent")
    assert get_check(report, "runtimes").state == "missing"


@pytest.mark.parametrize("role", ROLES)
def test_a_deployed_role_grants_exactly_the_permissions_of_its_user(role):
    needed = [each for each in PERMISSIONS if ROLES[role] in each.users]
    granted = yaml.safe_load_all(RBAC.read_text(encoding="utf-8"))
    rules = next(each["rules"] for each in granted if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", role))
    assert rules == rbac.build_rules(needed)


def test_the_lifecycle_of_a_job_uses_only_granted_permissions(cluster):
    client = create_client(cluster)
    cluster.lives.set("*", "complete")
    cluster.forget_requests()
    ref = client.submit(build_request())
    client.wait(ref, timeout=300)
    list(client.get_job_logs("job"))
    client.get_job_events("job")
    client.list_jobs()
    client.suspend("job")
    client.delete_job("job")
    granted = {f"{verb} {each.api_resource.plural}" for each in PERMISSIONS for verb in each.verbs}
    assert {request for request in cluster.counts if not request.startswith(" ")} - granted == set()
