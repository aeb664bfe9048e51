"""PyTorchJobs on a cluster: what goes wrong is said, what is left is ended, and old operators are borne with."""

from __future__ import annotations

import copy
import logging

import pytest
from fake_cluster import Cluster
from operator_scene import a_client, a_request, a_stage
from pydantic import SecretStr

from trainer_core import CustomTrainer, Initializer, Name, RuntimeNotFoundError
from trainer_core.initializers import HuggingFaceDatasetInitializer
from trainer_core.observation import COMPLETE, CREATED, SUSPENDED
from trainer_core.outcome import Category

ELASTIC = {"elastic_policy": {"minReplicas": 1, "maxReplicas": 3}}


def fails_on_the_second_node():
    import os
    import time

    if os.environ["RANK"] == "1":
        raise KeyError("no luck")
    time.sleep(3600)


def condition(cluster, kind):
    found = ((cluster.get("PyTorchJob", "job") or {}).get("status") or {}).get("conditions") or ()
    return next((one for one in found if (one["type"], one["status"]) == (kind, "True")), None)


@pytest.mark.parametrize(
    ("life", "category", "retryable"),
    [
        ("fails", Category.USER_CODE, False),
        ("oom", Category.OUT_OF_MEMORY, False),
        ("image-pull-error", Category.IMAGE, False),
        ("preempted", Category.PREEMPTED, True),
    ],
)
def test_a_job_that_cannot_get_well_is_given_up_with_the_reason(life, category, retryable):
    with a_stage(life) as (_, client):
        outcome = client.wait(client.submit(a_request()), timeout=60)
    assert (outcome.diagnosis.category, outcome.diagnosis.retryable) == (category, retryable)


def test_pods_that_may_not_be_made_are_known_by_the_events_of_the_operator():
    with a_stage("quota") as (cluster, client):
        ref = client.submit(a_request())
        trouble = cluster.until(lambda: client.observe(ref).trouble)
    assert trouble.diagnosis.category is Category.SCHEDULING
    assert "exceeded quota" in trouble.diagnosis.reason


def test_the_nodes_of_an_elastic_job_are_all_workers():
    with a_stage("complete") as (cluster, client):
        request = a_request(runtime="torch-distributed", trainer={"num_nodes": 2}, pytorch_job=ELASTIC)
        outcome = client.wait(client.submit(request), timeout=60)
        job = client.get_job("job")
        pods = [pod["metadata"]["name"] for pod in cluster.objects("pods")]
    assert (outcome.status, outcome.result) == ("Complete", {"loss": 0.25})
    assert [step.name for step in job.steps] == ["node-0", "node-1"]
    assert pods == ["job-worker-0", "job-worker-1"]


def test_a_failed_job_leaves_no_node_that_waits_for_the_others():
    with Cluster() as cluster:
        client = a_client(cluster)
        trainer = CustomTrainer(func=fails_on_the_second_node, num_nodes=2)
        outcome = client.wait(client.ref(client.train("python", trainer=trainer, options=[Name("job")])), timeout=60)
        cluster.until(lambda: [pod["metadata"]["name"] for pod in cluster.objects("pods")] == ["job-worker-0"])
    assert (outcome.diagnosis.step, outcome.diagnosis.reason) == ("node-1", "KeyError: 'no luck'")


def test_nodes_of_a_failed_job_stay_where_the_job_says_so():
    with a_stage("fails") as (cluster, client):
        policy = {"run_policy": {"cleanPodPolicy": "None"}}
        client.wait(client.submit(a_request(pytorch_job=policy)), timeout=60)
        assert cluster.get("PyTorchJob", "job")["spec"]["runPolicy"]["cleanPodPolicy"] == "None"


def test_a_job_in_a_queue_waits_until_it_is_admitted():
    with a_stage("complete", kueue=True) as (cluster, client):
        labels = {"labels": {"kueue.x-k8s.io/queue-name": "nightly"}}
        ref = client.submit(a_request(metadata=labels))
        cluster.until(lambda: client.observe(ref).status == SUSPENDED)
        assert "waits until Kueue admits it" in client.get_job("job").reason
        cluster.admit("job")
        assert client.wait(ref, timeout=60).status == COMPLETE


def test_a_job_whose_time_to_live_is_over_is_deleted_by_the_operator():
    with a_stage("complete") as (cluster, client):
        ref = client.submit(a_request(delete_after_seconds=1))
        cluster.until(lambda: cluster.get("PyTorchJob", "job") is None)
        client.backend.delete(ref)


def test_an_operator_that_cannot_suspend_has_a_cancelled_job_deleted():
    with a_stage("runs") as (cluster, client):
        if not cluster.validates:
            pytest.skip("the CRDs are absent; set TRAINJOB_CRD_DIR")
        ref = client.submit(a_request())
        cluster.add(before_suspend(cluster))
        client.cancel(ref)
        assert cluster.get("PyTorchJob", "job") is None


def before_suspend(cluster):
    """The definition of PyTorchJob as it was before 1.7."""
    definition = copy.deepcopy(cluster.get("CustomResourceDefinition", "pytorchjobs.kubeflow.org", None))
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    policy = schema["properties"]["spec"]["properties"]["runPolicy"]["properties"]
    for name in ("suspend", "managedBy"):
        del policy[name]
    definition["metadata"] = {"name": definition["metadata"]["name"]}
    return definition


def test_what_may_not_be_seen_is_left_out():
    with a_stage("complete") as (cluster, client):
        for resource in ("pods", "events", "pods/log"):
            cluster.forbid("*", resource)
        ref = client.submit(a_request())
        cluster.until(lambda: condition(cluster, "Succeeded"))
        assert client.wait(ref, timeout=60).result is None
        assert [step.name for step in client.get_job("job").steps] == ["node-0"]


def test_a_server_that_is_away_for_a_while_fails_nobody(caplog):
    caplog.set_level(logging.CRITICAL)
    with a_stage("complete") as (cluster, client):
        ref = client.submit(a_request())
        cluster.faults.next(status=503, method="GET", times=3)
        cluster.break_watches()
        assert client.wait(ref, timeout=60).succeeded


def test_submitting_after_a_lost_answer_makes_one_job():
    with a_stage("runs") as (cluster, client):
        cluster.faults.next(reset=True, after=True, method="POST", path="pytorchjobs")
        request = a_request()
        assert client.submit(request) == client.submit(request)
        assert len(cluster.objects("PyTorchJob")) == 1


def test_events_of_an_earlier_job_of_the_same_name_are_not_told():
    with a_stage("complete") as (cluster, client):
        client.wait(client.submit(a_request()), timeout=60)
        client.delete_job("job")
        pod = {"kind": "Pod", "name": "job-master-0", "namespace": "default", "uid": "old"}
        old = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "old", "namespace": "default"},
            "involvedObject": pod,
            "reason": "Failed",
            "message": "of long ago",
            "type": "Warning",
            "lastTimestamp": "2020-01-01T00:00:00Z",
        }
        cluster.add(old)
        client.wait(client.submit(a_request()), timeout=60)
        assert "of long ago" not in [event.message for event in client.get_job_events("job")]


def test_fetching_on_its_own_is_a_job_with_a_volume():
    with Cluster() as cluster:
        client = a_client(cluster)
        dataset = HuggingFaceDatasetInitializer("hf://owner/data", access_token="hf_secret")
        client.initialize(Initializer(dataset=dataset), [Name("fetch")])
        assert client.get_job("fetch").status in (CREATED, "Running", COMPLETE, "Failed")
        assert cluster.get("Job", "fetch") is not None
        assert cluster.get("persistentvolumeclaims", "fetch") is not None
        client.cancel("fetch")
        client.delete_job("fetch")


def test_an_initializer_is_a_step_of_the_job():
    with a_stage("complete") as (_, client):
        fetch = {"dataset": {"storage_uri": "hf://owner/data"}}
        client.submit(a_request(initializer=fetch, suspend=True))
        assert [step.name for step in client.get_job("job").steps] == ["dataset-initializer", "node-0"]


def test_an_unknown_runtime_is_answered_with_the_known_ones():
    with Cluster(controllers=False) as cluster, pytest.raises(RuntimeNotFoundError, match="there are python, torch"):
        a_client(cluster).submit(a_request(runtime="absent"))


def test_a_secret_of_training_given_as_text_is_a_secret_of_the_job():
    with Cluster() as cluster:
        client = a_client(cluster)
        asked = a_request(trainer={"command": ["python3", "-c", "import os; print(os.environ['KEY'])"]})
        client.submit(asked.model_copy(update={"literal_secrets": {"trainer.KEY": SecretStr("s3cret")}}))
        client.wait("job", timeout=60)
        assert list(client.get_job_logs("job")) == ["s3cret"]
        assert "s3cret" not in str(cluster.get("PyTorchJob", "job"))
        client.delete_job("job")
        cluster.until(lambda: cluster.get("secrets", "job-initializer") is None)
