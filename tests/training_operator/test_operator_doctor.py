"""What `trainjob doctor` says of a cluster with the Training Operator, and that the roles grant what is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from fake_cluster import Cluster
from operator_scene import a_client, a_request
from test_operator_jobs import before_suspend

from trainer_core import TrainingOperatorBackendConfig
from trainer_core.backends.training_operator.permissions import PERMISSIONS
from trainer_core.cluster import permissions
from trainer_core.cluster.permissions import AIRFLOW, KFP
from trainer_core.doctor import examine

RBAC = Path(__file__).parents[2] / "deploy" / "rbac-training-operator.yaml"
ROLES = {
    f"trainjob-training-operator-{name}": user for name, user in (("airflow-worker", AIRFLOW), ("kfp-runner", KFP))
}


@pytest.fixture
def cluster():
    with Cluster() as made:
        if not made.validates:
            pytest.skip("the CRDs are absent; set TRAINJOB_CRD_DIR")
        yield made


def report(cluster, **settings):
    return examine(TrainingOperatorBackendConfig(client_configuration=cluster.configuration(), **settings))


def check(found, what):
    return next(each for each in found.checks if each.what == what)


def test_a_cluster_that_has_everything_is_fit(cluster):
    found = report(cluster)
    assert found.fit
    assert {each.state for each in found.checks} == {"ok"}
    assert check(found, "training operator").found == "serves PyTorchJob, 1.9 or later"
    assert check(found, "runtimes").found == "python, torch-distributed"


def test_an_operator_that_cannot_suspend_is_limited(cluster):
    cluster.add(before_suspend(cluster))
    found = check(report(cluster), "training operator")
    assert (found.state, "only deleted" in found.cost) == ("limited", True)


def test_what_is_not_permitted_comes_with_the_role_that_grants_it(cluster):
    cluster.forbid("create", "pytorchjobs")
    found = report(cluster)
    assert not found.fit
    (role, _) = found.repair
    assert role["rules"] == [{"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": ["create"]}]


def test_the_environment_may_name_the_folder_of_runtimes(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINJOB_RUNTIMES", str(tmp_path))
    assert TrainingOperatorBackendConfig().runtimes_folder == tmp_path
    assert TrainingOperatorBackendConfig(runtimes="/mine").runtimes_folder == Path("/mine")


def test_a_folder_of_runtimes_that_is_not_there_is_missing(cluster, tmp_path):
    found = report(cluster, runtimes=tmp_path / "absent")
    assert check(found, "runtimes").state == "missing"


@pytest.mark.parametrize("role", ROLES)
def test_a_deployed_role_grants_what_its_user_needs_and_no_more(role):
    needed = [each for each in PERMISSIONS if ROLES[role] in each.users]
    granted = yaml.safe_load_all(RBAC.read_text(encoding="utf-8"))
    rules = next(each["rules"] for each in granted if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", role))
    assert rules == permissions.rules(needed)


def test_the_life_of_a_job_takes_what_is_granted(cluster):
    client = a_client(cluster)
    cluster.lives.set("*", "complete")
    cluster.forget_requests()
    ref = client.submit(a_request())
    client.wait(ref, timeout=60)
    list(client.get_job_logs("job"))
    client.get_job_events("job")
    client.list_jobs()
    client.suspend("job")
    client.delete_job("job")
    granted = {f"{verb} {each.kind.plural}" for each in PERMISSIONS for verb in each.verbs}
    assert {said for said in cluster.counts if not said.startswith(" ")} - granted == set()
