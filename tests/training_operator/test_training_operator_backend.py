"""TrainingOperatorBackend on the fake cluster: failures, elastic jobs, queues, initializers and old operators."""

from __future__ import annotations

import copy
import logging

import pytest
from fake_cluster import Cluster
from pydantic import SecretStr
from training_operator_scene import build_request, create_client, run_cluster

from trainer_core import CustomTrainer, Initializer, Name, RuntimeNotFoundError
from trainer_core.definition.initializers import HuggingFaceDatasetInitializer
from trainer_core.model.jobs import COMPLETE, CREATED, SUSPENDED, Category

ELASTIC = {"elastic_policy": {"minReplicas": 1, "maxReplicas": 3}}


def fails_on_the_second_node():
    import os
    import time

    if os.environ["RANK"] == "1":
        raise KeyError("no luck")
    time.sleep(3600)


def get_condition(cluster, kind):
    conditions = ((cluster.get("PyTorchJob", "job") or {}).get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if (each["type"], each["status"]) == (kind, "True")), None)


@pytest.mark.parametrize(
    ("life", "category", "retryable"),
    [
        ("fails", Category.USER_CODE, False),
        ("oom", Category.OUT_OF_MEMORY, False),
        ("image-pull-error", Category.IMAGE, False),
        ("preempted", Category.PREEMPTED, True),
    ],
)
def test_a_failure_is_diagnosed_with_its_category(life, category, retryable):
    with run_cluster(life) as (_, client):
        outcome = client.wait(client.submit(build_request()), timeout=300)
    assert (outcome.diagnosis.category, outcome.diagnosis.retryable) == (category, retryable)


def test_a_refused_pod_is_diagnosed_from_the_events_of_the_operator():
    with run_cluster("quota") as (cluster, client):
        ref = client.submit(build_request())
        failure = cluster.until(lambda: client.observe(ref).pending_failure)
    assert failure.diagnosis.category is Category.SCHEDULING
    assert "exceeded quota" in failure.diagnosis.reason


def test_the_nodes_of_an_elastic_job_are_all_workers():
    with run_cluster("complete") as (cluster, client):
        request = build_request(runtime="torch-distributed", trainer={"num_nodes": 2}, pytorch_job=ELASTIC)
        outcome = client.wait(client.submit(request), timeout=300)
        job = client.get_job("job")
        pods = [pod["metadata"]["name"] for pod in cluster.objects("pods")]
    assert (outcome.status, outcome.result) == ("Complete", {"loss": 0.25})
    assert [step.name for step in job.steps] == ["node-0", "node-1"]
    assert pods == ["job-worker-0", "job-worker-1"]


def test_the_running_nodes_of_a_failed_job_are_deleted():
    with Cluster() as cluster:
        client = create_client(cluster)
        trainer = CustomTrainer(func=fails_on_the_second_node, num_nodes=2)
        outcome = client.wait(
            client.get_job_ref(client.train("python", trainer=trainer, options=[Name("job")])), timeout=300
        )
        cluster.until(lambda: [pod["metadata"]["name"] for pod in cluster.objects("pods")] == ["job-worker-0"])
    assert (outcome.diagnosis.step, outcome.diagnosis.reason) == ("node-1", "KeyError: 'no luck'")


def test_a_clean_pod_policy_of_the_job_is_kept():
    with run_cluster("fails") as (cluster, client):
        policy = {"run_policy": {"cleanPodPolicy": "None"}}
        client.wait(client.submit(build_request(pytorch_job=policy)), timeout=300)
        assert cluster.get("PyTorchJob", "job")["spec"]["runPolicy"]["cleanPodPolicy"] == "None"


def test_a_queued_job_waits_until_kueue_admits_it():
    with run_cluster("complete", kueue=True) as (cluster, client):
        labels = {"labels": {"kueue.x-k8s.io/queue-name": "nightly"}}
        ref = client.submit(build_request(metadata=labels))
        cluster.until(lambda: client.observe(ref).status == SUSPENDED)
        assert "waits for admission by Kueue" in client.get_job("job").reason
        cluster.admit("job")
        assert client.wait(ref, timeout=300).status == COMPLETE


def test_the_operator_deletes_a_job_after_its_ttl():
    with run_cluster("complete") as (cluster, client):
        ref = client.submit(build_request(delete_after_seconds=1))
        cluster.until(lambda: cluster.get("PyTorchJob", "job") is None)
        client.delete_job(ref)


def test_cancel_deletes_the_job_if_the_operator_cannot_suspend():
    with run_cluster("runs") as (cluster, client):
        ref = client.submit(build_request())
        cluster.add(build_crd_without_suspend(cluster))
        client.cancel(ref)
        assert cluster.get("PyTorchJob", "job") is None


def build_crd_without_suspend(cluster):
    """Return the CRD of PyTorchJob without the fields that operators before 1.7 do not have."""
    crd = copy.deepcopy(cluster.get("CustomResourceDefinition", "pytorchjobs.kubeflow.org", None))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    policy = schema["properties"]["spec"]["properties"]["runPolicy"]["properties"]
    for name in ("suspend", "managedBy"):
        del policy[name]
    crd["metadata"] = {"name": crd["metadata"]["name"]}
    return crd


def test_a_job_works_without_access_to_pods_and_events():
    with run_cluster("complete") as (cluster, client):
        for resource in ("pods", "events", "pods/log"):
            cluster.forbid("*", resource)
        ref = client.submit(build_request())
        cluster.until(lambda: get_condition(cluster, "Succeeded"))
        assert client.wait(ref, timeout=300).result is None
        assert [step.name for step in client.get_job("job").steps] == ["node-0"]


def test_waiting_survives_an_unavailable_server(caplog):
    caplog.set_level(logging.CRITICAL)
    with run_cluster("complete") as (cluster, client):
        ref = client.submit(build_request())
        cluster.faults.next(status=503, method="GET", times=3)
        cluster.break_watches()
        assert client.wait(ref, timeout=300).succeeded


def test_a_lost_response_creates_no_second_job():
    with run_cluster("runs") as (cluster, client):
        cluster.faults.next(reset=True, after=True, method="POST", path="pytorchjobs")
        request = build_request()
        assert client.submit(request) == client.submit(request)
        assert len(cluster.objects("PyTorchJob")) == 1


def test_events_of_an_earlier_job_of_the_same_name_are_not_listed():
    with run_cluster("complete") as (cluster, client):
        client.wait(client.submit(build_request()), timeout=300)
        client.delete_job("job")
        pod = {"kind": "Pod", "name": "job-master-0", "namespace": "default", "uid": "old"}
        old_event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "old", "namespace": "default"},
            "involvedObject": pod,
            "reason": "Failed",
            "message": "of an earlier job",
            "type": "Warning",
            "lastTimestamp": "2020-01-01T00:00:00Z",
        }
        cluster.add(old_event)
        client.wait(client.submit(build_request()), timeout=300)
        assert "of an earlier job" not in [event.message for event in client.get_job_events("job")]


def test_initialize_creates_a_job_and_a_volume_claim():
    with Cluster() as cluster:
        client = create_client(cluster)
        dataset = HuggingFaceDatasetInitializer("hf://owner/data", access_token="hf_secret")
        client.initialize(Initializer(dataset=dataset), [Name("fetch")])
        assert client.get_job("fetch").status in (CREATED, "Running", COMPLETE, "Failed")
        assert cluster.get("Job", "fetch") is not None
        assert cluster.get("persistentvolumeclaims", "fetch") is not None
        client.cancel("fetch")
        client.delete_job("fetch")


def test_an_initializer_is_a_step_of_the_job():
    with run_cluster("complete") as (_, client):
        fetch = {"dataset": {"storage_uri": "hf://owner/data"}}
        client.submit(build_request(initializer=fetch, suspend=True))
        assert [step.name for step in client.get_job("job").steps] == ["dataset-initializer", "node-0"]


def test_an_unknown_runtime_is_refused_with_the_known_ones():
    with Cluster(controllers=False) as cluster, pytest.raises(RuntimeNotFoundError, match="available: python, torch"):
        create_client(cluster).submit(build_request(runtime="absent"))


def test_a_literal_token_becomes_a_secret_of_the_job():
    with Cluster() as cluster:
        client = create_client(cluster)
        request = build_request(trainer={"command": ["python3", "-c", "import os; print(os.environ['KEY'])"]})
        client.submit(request.with_fields(literal_secrets={"trainer.KEY": SecretStr("s3cret")}))
        client.wait("job", timeout=300)
        assert list(client.get_job_logs("job")) == ["s3cret"]
        assert "s3cret" not in str(cluster.get("PyTorchJob", "job"))
        client.delete_job("job")
        cluster.until(lambda: cluster.get("secrets", "job-initializer") is None)
