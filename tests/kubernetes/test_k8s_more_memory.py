"""MoreMemory on a cluster: what the kubelet ends for lack of memory is followed by an attempt with more."""

from __future__ import annotations

import json

from k8s_scene import CONTAINER, a_request, a_stage, finished

from trainer_core.k8s import labels
from trainer_core.model.jobs import AttemptMemory, Category
from trainer_core.model.request import Owner

TASK = Owner(key="dag/run/task", slug="train", generation="1")


def ask(name=None, **fields):
    trainer = {**CONTAINER, "resources_per_node": {"cpu": 2, "memory": "8Gi"}}
    policy = {"more_memory": {"limit": "32Gi"}, "owner": TASK, **fields}
    return a_request(name, "torch-distributed", trainer=trainer, **policy)


def get_resources(cluster, ref):
    return cluster.get("TrainJob", ref.name)["spec"]["trainer"]["resourcesPerNode"]


def test_a_job_that_the_kubelet_killed_for_lack_of_memory_is_followed_by_one_with_more(caplog):
    caplog.set_level("INFO", logger="trainer_core")
    with a_stage("oom", backoff_limit=100_000) as (cluster, client):
        first = client.submit(ask())
        failed = finished(client, first)
        cluster.lives.set("*", "complete")
        second = client.submit(ask())
        complete = finished(client, second)
        asked = [get_resources(cluster, ref) for ref in (first, second)]
        annotations = cluster.get("TrainJob", second.name)["metadata"]["annotations"]
    assert f"TrainJob {second.name!r} asks for 12Gi (asked 8Gi) of memory: an earlier attempt ran out" in caplog.text
    assert (failed.diagnosis.category, failed.diagnosis.retryable) == (Category.OUT_OF_MEMORY, True)
    assert "8Gi was not enough, the next attempt asks for 12Gi" in failed.diagnosis.reason
    per_node = [{"cpu": "2", "memory": memory} for memory in ("8Gi", "12Gi")]
    assert asked == [{"requests": each, "limits": each} for each in per_node]
    assert complete.memory == AttemptMemory(amount="12Gi", asked="8Gi", next="18Gi")
    assert json.loads(annotations[labels.MEMORY]) == {"amount": "12Gi", "asked": "8Gi", "next": "18Gi"}


def test_the_outcome_of_a_deleted_attempt_has_no_part_in_the_next_one():
    with a_stage("oom") as (cluster, client):
        first = client.submit(ask())
        finished(client, first)
        client.delete_job(first)
        cluster.lives.set("*", "complete")
        second = client.submit(ask())
        assert get_resources(cluster, second)["limits"]["memory"] == "8Gi"


def test_a_person_who_retries_gets_the_memory_of_the_next_attempt():
    with a_stage("oom") as (cluster, client):
        first = client.submit(ask(owner=None, name="nightly"))
        finished(client, first)
        second = client.retry(first)
        finished(client, second)
        third = client.retry(first)
        assert [ref.name for ref in (second, third)] == ["nightly-1", "nightly-2"]
        amounts = [get_resources(cluster, ref)["limits"]["memory"] for ref in (first, second, third)]
    assert amounts == ["8Gi", "12Gi", "18Gi"]
