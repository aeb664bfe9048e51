"""What a TrainJob left outlives its pods."""

from __future__ import annotations

import pytest
from fake_cluster import Cluster

from trainer_core import CustomTrainer, KubernetesBackendConfig, Name, TrainerClient
from trainer_core.testing.functions import fails, returns


@pytest.fixture
def cluster():
    with Cluster(namespaces=["team"]) as running:
        yield running


@pytest.fixture
def connect(cluster):
    """Makes clients, each as a later process would have one."""
    return lambda: TrainerClient(
        KubernetesBackendConfig(namespace="team", client_configuration=cluster.configuration())
    )


def waited_for(client, func, args):
    client.train(runtime="python", trainer=CustomTrainer(func=func, func_args=args), options=[Name("job")])
    return client.wait("job", timeout=60)


def without_pods(cluster):
    for pod in cluster.objects("pods", "team"):
        cluster.delete("pods", pod["metadata"]["name"], "team")


def test_a_result_outlives_the_pods(cluster, connect):
    outcome = waited_for(connect(), returns, {"value": 3})
    without_pods(cluster)

    assert connect().outcome("job") == outcome
    assert outcome.result == 3


def test_a_diagnosis_outlives_the_pods(cluster, connect):
    outcome = waited_for(connect(), fails, {"reason": "no luck"})
    without_pods(cluster)

    assert connect().outcome("job") == outcome
    assert "KeyError: 'no luck'" in outcome.diagnosis.reason
    assert "no luck" in connect().get_job("job").reason


def test_what_we_write_on_a_job_is_not_shown_as_its_annotations(connect):
    client = connect()
    waited_for(client, returns, {"value": 3})

    assert client.get_job("job").annotations == {}


def test_who_may_not_write_it_still_has_the_outcome(cluster, connect):
    cluster.forbid("patch", "trainjobs")

    assert waited_for(connect(), returns, {"value": 3}).result == 3
