"""What the roles grant is what the backend asks a cluster for."""

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
from trainer_core.backends.kubernetes.permissions import PERMISSIONS

GRANTED = {(verb, each.kind.group, each.resource) for each in PERMISSIONS for verb in each.verbs}
PATH = re.compile(
    r"/(api/v1|apis/(?P<group>[^/]+)/[^/]+)(/namespaces/[^/]+)?/(?P<plural>[^/]+)(/[^/]+(/(?P<part>[^/]+))?)?"
)


@pytest.fixture(scope="module")
def cluster():
    with Cluster(namespaces=["team"]) as made:
        yield made


@pytest.fixture
def client(cluster, tmp_path):
    config = cluster.kubeconfig(tmp_path / "config", "team")
    cluster.forget_requests()
    return TrainerClient(KubernetesBackendConfig(config_file=str(config)))


def asked(cluster):
    """What was asked for: verb, group and resource as a role names them."""
    return {(request.verb, *resource(request.path)) for request in cluster.requests if request.verb}


def resource(path):
    match = PATH.fullmatch(path)
    return match["group"] or "", f"{match['plural']}/{match['part']}" if match["part"] else match["plural"]


def train():
    print("trained")
    return 3


def wait_forever():
    import time

    time.sleep(600)


def test_the_life_of_a_train_job_takes_what_is_granted(client, cluster):
    name = client.train(runtime="python", trainer=CustomTrainer(func=train))
    client.wait(client.ref(name), timeout=60)
    list(client.get_job_logs(name))
    client.get_job_events(name)
    client.list_jobs()
    client.list_runtimes()
    client.get_runtime("python")
    client.delete_job(name)

    assert asked(cluster) - GRANTED == set()


def test_suspending_and_cancelling_take_what_is_granted(client, cluster):
    name = client.train(runtime="python", trainer=CustomTrainer(func=wait_forever))
    client.suspend(name)
    client.resume(name)
    client.cancel(client.ref(name))
    client.delete_job(name)

    assert ("patch", "trainer.kubeflow.org", "trainjobs") in asked(cluster)
    assert asked(cluster) - GRANTED == set()


def test_initializing_on_its_own_takes_what_is_granted(client, cluster):
    dataset = HuggingFaceDatasetInitializer("hf://tatsu-lab/alpaca", access_token="hf_secret")
    name = client.initialize(Initializer(dataset=dataset))
    client.get_job(name)
    client.cancel(client.ref(name))
    client.delete_job(name)

    made = {resource for verb, _, resource in asked(cluster) if verb == "create"}
    assert made == {"jobs", "persistentvolumeclaims", "secrets"}
    assert asked(cluster) - GRANTED == set()
