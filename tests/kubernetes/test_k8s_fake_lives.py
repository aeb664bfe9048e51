"""Scripted lives of pods and jobs look like what they play."""

from __future__ import annotations

import pytest
from fake_cluster import Cluster
from fake_cluster.job_scripts import ANNOTATION, JOB_LIVES
from fake_cluster.pod_scripts import POD_LIVES


@pytest.fixture
def cluster():
    with Cluster(delay=0.005, backoff=0.005) as made:
        yield made


def job(name: str = "job", **metadata) -> dict:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name, **metadata},
        "spec": {"runtimeRef": {"name": "python"}},
    }


def start(cluster, *lives: str) -> None:
    cluster.lives.set("job", *lives)
    cluster.add(job())


def conditions(cluster) -> dict[str, str]:
    found = (cluster.get("TrainJob", "job").get("status") or {}).get("conditions") or ()
    return {one["type"]: one["reason"] for one in found if one["status"] == "True"}


def waiting(cluster) -> dict | None:
    states = [
        pod["status"]["containerStatuses"][0]["state"]
        for pod in cluster.objects("pods")
        if "containerStatuses" in pod["status"]
    ]
    return next((state["waiting"] for state in states if "waiting" in state), None)


def events(cluster) -> dict[str, str]:
    return {event["reason"]: event["message"] for event in cluster.objects("events")}


@pytest.mark.parametrize("life", ["complete", "preempted", "evicted", "node-lost", "kueue"])
def test_a_job_that_gets_through_is_complete(cluster, life):
    start(cluster, life)
    cluster.until(lambda: "Complete" in conditions(cluster))


@pytest.mark.parametrize(
    ("life", "reason"), [("crash-loop", "FailedJobs"), ("oom", "FailedJobs"), ("deadline", "DeadlineExceeded")]
)
def test_a_job_that_does_not_get_through_has_failed(cluster, life, reason):
    start(cluster, life)
    assert cluster.until(lambda: conditions(cluster).get("Failed")) == reason


@pytest.mark.parametrize(
    ("life", "reason", "event"),
    [
        ("image-pull-error", "ErrImagePull", "Failed"),
        ("image-pull-error", "ImagePullBackOff", "BackOff"),
        ("invalid-image-name", "InvalidImageName", "InspectFailed"),
        ("create-container-config-error", "CreateContainerConfigError", "Failed"),
        ("crash-loop", "CrashLoopBackOff", "BackOff"),
    ],
)
def test_a_container_that_cannot_run_says_why(life, reason, event):
    with Cluster(delay=None, backoff_limit=100_000) as cluster:
        start(cluster, life)
        cluster.until(lambda: cluster.tick() is not None and (waiting(cluster) or {}).get("reason") == reason)
        assert event in events(cluster)


def test_a_pod_without_a_node_says_what_is_lacking(cluster):
    start(cluster, "pending-unschedulable")
    cluster.until(lambda: "FailedScheduling" in events(cluster))
    (pod,) = cluster.objects("pods")
    assert pod["status"]["conditions"][0]["reason"] == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in pod["status"]["conditions"][0]["message"]


def test_exhausted_memory_is_reported_by_the_container():
    with Cluster(delay=None) as cluster:
        start(cluster, "oom")
        cluster.until(lambda: cluster.objects("pods"))
        for _ in range(4):
            cluster.tick()
        (pod,) = cluster.objects("pods")
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"


def test_a_pod_that_is_preempted_is_marked_before_it_goes():
    with Cluster(delay=None) as cluster:
        start(cluster, "preempted")
        cluster.until(lambda: cluster.objects("pods"))
        for _ in range(4):
            cluster.tick()
        (pod,) = cluster.objects("pods")
    marks = [one["reason"] for one in pod["status"]["conditions"] if one["type"] == "DisruptionTarget"]
    assert marks == ["PreemptionByScheduler"]


def test_a_quota_keeps_pods_away_until_it_is_raised(cluster):
    start(cluster, "quota")
    cluster.until(lambda: "exceeded quota" in events(cluster).get("FailedCreate", ""))
    assert cluster.objects("pods") == []
    cluster.lives.set("job", "complete")
    cluster.until(lambda: "Complete" in conditions(cluster))


def test_rejected_children_are_reported_by_an_event_without_times(cluster):
    start(cluster, "rejected-children")
    event = cluster.until(lambda: cluster.objects("events"))[0]
    assert (event["reason"], event["lastTimestamp"]) == ("TrainJobResourcesCreationFailed", None)
    assert cluster.objects("jobsets") == []


def test_a_process_can_take_the_place_of_a_played_pod(cluster):
    cluster.lives.set("job", "preempted", "process")
    raw = job()
    raw["spec"]["trainer"] = {"command": ["echo", "real"]}
    cluster.add(raw)
    cluster.until(lambda: "Complete" in conditions(cluster))
    (pod,) = cluster.objects("pods")
    assert "message" not in pod["status"]["containerStatuses"][0]["state"]["terminated"]


def test_an_annotation_chooses_a_life(cluster):
    cluster.add(job(annotations={ANNOTATION: "crash-loop"}))
    cluster.until(lambda: "Failed" in conditions(cluster))


def test_a_played_pod_has_a_log(cluster):
    start(cluster, "complete")
    cluster.until(lambda: "Complete" in conditions(cluster))
    from fake_cluster.raw_client import RawClient

    name = cluster.objects("pods")[0]["metadata"]["name"]
    with RawClient(cluster.url) as client:
        assert client.send("GET", f"/api/v1/namespaces/default/pods/{name}/log").data == b"epoch 1\nepoch 2\n"


def test_an_unknown_life_is_refused(cluster):
    with pytest.raises(LookupError, match="no life 'second': there are complete"):
        cluster.lives.set("job", "second")


@pytest.mark.parametrize("life", [*POD_LIVES, *JOB_LIVES])
def test_every_life_can_be_cut_short(cluster, life):
    start(cluster, life)
    cluster.delete("TrainJob", "job")
    cluster.until(lambda: not cluster.objects("pods") and not cluster.objects("trainjobs"))
