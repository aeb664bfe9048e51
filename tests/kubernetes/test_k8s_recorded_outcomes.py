"""The outcome of a TrainJob is recorded in an annotation and is available after its pods are deleted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from fake_cluster import Cluster
from fake_cluster.answers import RefusedError

from trainer_core import CustomTrainer, KubernetesBackendConfig, Name, TrainerClient
from trainer_core.testing.training_functions import raise_error, return_value


@pytest.fixture
def cluster():
    with Cluster(namespaces=["team"]) as running:
        yield running


@pytest.fixture
def connect(cluster):
    """Return a factory of clients; each stands for a separate process."""
    return lambda: TrainerClient(
        KubernetesBackendConfig(namespace="team", client_configuration=cluster.configuration())
    )


def submit_and_wait(client, func, args):
    client.train(runtime="python", trainer=CustomTrainer(func=func, func_args=args), options=[Name("job")])
    return client.wait("job", timeout=300)


def delete_pods(cluster):
    for pod in cluster.objects("pods", "team"):
        # The controllers delete the pods of a failed job as well.
        with suppress(RefusedError):
            cluster.delete("pods", pod["metadata"]["name"], "team")
    cluster.until(lambda: not cluster.objects("pods", "team"))


def test_a_result_is_available_after_the_pods_are_deleted(cluster, connect):
    outcome = submit_and_wait(connect(), return_value, {"value": 3})
    delete_pods(cluster)

    assert connect().get_job_outcome("job") == outcome
    assert outcome.result == 3


def test_a_diagnosis_is_available_after_the_pods_are_deleted(cluster, connect):
    outcome = submit_and_wait(connect(), raise_error, {"reason": "no luck"})
    delete_pods(cluster)

    assert connect().get_job_outcome("job") == outcome
    assert "KeyError: 'no luck'" in outcome.diagnosis.reason
    assert "no luck" in connect().get_job("job").reason


def test_internal_annotations_are_not_in_the_annotations_of_a_job(connect):
    client = connect()
    submit_and_wait(client, return_value, {"value": 3})

    assert client.get_job("job").annotations == {}


def test_without_permission_to_record_it_the_outcome_is_still_returned(cluster, connect):
    cluster.forbid("patch", "trainjobs")

    assert submit_and_wait(connect(), return_value, {"value": 3}).result == 3


def count_patches(cluster):
    return sum(request.method == "PATCH" for request in cluster.requests)


def test_an_outcome_is_written_once_however_often_it_is_read(cluster, connect):
    client = connect()
    client.train(runtime="python", trainer=CustomTrainer(func=return_value), options=[Name("job")])
    with ThreadPoolExecutor(10) as pool:
        outcomes = list(pool.map(lambda _: client.wait("job", timeout=300), range(10)))
    assert len({outcome.to_json() for outcome in outcomes}) == 1
    assert count_patches(cluster) == 1
    for reader in (client, connect()):
        assert reader.get_job_outcome("job") == outcomes[0]
        assert reader.wait("job", timeout=300) == outcomes[0]
    assert count_patches(cluster) == 1
