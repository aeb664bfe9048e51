"""The deployed roles grant every permission that the backend uses."""

from __future__ import annotations

import re

import pytest
from fake_cluster import Cluster

from trainer_core import (
    CustomTrainer,
    HuggingFaceDatasetInitializer,
    Initializer,
    KubernetesBackendConfig,
    TrainerClient,
)
from trainer_core.backends.trainer_v2.preflight import PERMISSIONS

GRANTED = {(verb, each.api_resource.group, each.resource_name) for each in PERMISSIONS for verb in each.verbs}
PATH = re.compile(
    r"/(api/v1|apis/(?P<group>[^/]+)/[^/]+)(/namespaces/[^/]+)?/(?P<plural>[^/]+)(/[^/]+(/(?P<part>[^/]+))?)?"
)


@pytest.fixture(scope="module")
def cluster():
    with Cluster(namespaces=["team"]) as created:
        yield created


@pytest.fixture
def client(cluster, tmp_path):
    config = cluster.kubeconfig(tmp_path / "config", "team")
    cluster.forget_requests()
    return TrainerClient(KubernetesBackendConfig(config_file=str(config)))


def get_used_permissions(cluster):
    """Return verb, group and resource of every request, as a role names them."""
    return {(request.verb, *parse_resource(request.path)) for request in cluster.requests if request.verb}


def parse_resource(path):
    match = PATH.fullmatch(path)
    return match["group"] or "", f"{match['plural']}/{match['part']}" if match["part"] else match["plural"]


def train():
    print("trained")
    return 3


def wait_forever():
    import time

    time.sleep(600)


def test_the_role_allows_all_requests_of_train_wait_read_and_delete(client, cluster):
    name = client.train(runtime="python", trainer=CustomTrainer(func=train))
    client.wait(client.get_job_ref(name), timeout=300)
    list(client.get_job_logs(name))
    client.get_job_events(name)
    client.list_jobs()
    client.list_runtimes()
    client.get_runtime("python")
    client.delete_job(name)

    assert get_used_permissions(cluster) - GRANTED == set()


def test_the_role_allows_all_requests_of_suspend_resume_and_cancel(client, cluster):
    name = client.train(runtime="python", trainer=CustomTrainer(func=wait_forever))
    client.suspend(name)
    client.resume(name)
    client.cancel(client.get_job_ref(name))
    client.delete_job(name)

    assert ("patch", "trainer.kubeflow.org", "trainjobs") in get_used_permissions(cluster)
    assert get_used_permissions(cluster) - GRANTED == set()


def test_the_role_allows_all_requests_of_initialize(client, cluster):
    dataset = HuggingFaceDatasetInitializer("hf://tatsu-lab/alpaca", access_token="hf_secret")
    name = client.initialize(Initializer(dataset=dataset))
    client.get_job(name)
    client.cancel(client.get_job_ref(name))
    client.delete_job(name)

    created = {resource for verb, _, resource in get_used_permissions(cluster) if verb == "create"}
    assert created == {"jobs", "persistentvolumeclaims", "secrets"}
    assert get_used_permissions(cluster) - GRANTED == set()
