"""Suspend, resume, cancel and delete jobs; delete expired jobs."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
from k8s_scene import CONTAINER, HF, a_client, a_request, a_stage, finished, seen, until_ended

from trainer_core.k8s import labels, resources
from trainer_core.k8s.errors import WriteConflictError
from trainer_core.k8s.job_writer import JobWriter
from trainer_core.model.jobs import Category, Diagnosis, Outcome
from trainer_core.model.request import KUEUE_QUEUE

QUEUED = {"metadata": {"labels": {KUEUE_QUEUE: "training"}}}
KUEUE_PATCH = {
    "manager": "kueue.x-k8s.io/manager",
    "time": "2026-01-01T00:00:00Z",
    "trainingRuntimeSpec": {
        "template": {"spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": {}}}}]}}
    },
}


@pytest.fixture
def stage():
    with a_stage("runs", grace=0.05) as made:
        yield made


@pytest.fixture
def queued():
    """A job that Kueue has suspended, on a cluster with Kueue."""
    with a_stage("runs", kueue=True) as (cluster, client):
        yield cluster, client, client.submit(a_request(**QUEUED))


def get_spec(cluster) -> dict:
    return cluster.get("TrainJob", "job")["spec"]


def wait_until_running(client, ref) -> None:
    seen(client, ref, lambda look: look.status == "Running")


def get_deleted_resources(cluster) -> set[str]:
    return {request.path.split("/")[-2] for request in cluster.requests if request.method == "DELETE"}


# Suspend and resume.


def test_a_suspended_job_has_no_pods_and_still_exists(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    wait_until_running(client, ref)
    client.suspend(ref)
    assert client.get_job("job").status == "Suspended"
    cluster.until(lambda: not cluster.objects("pods"))
    assert cluster.get("TrainJob", "job") is not None


def test_a_resume_that_read_the_job_before_it_was_cancelled_does_not_start_it(stage):
    cluster, client = stage
    ref = client.submit(a_request(suspend=True))
    api = client.backend._api
    read_before = api.get(resources.TRAINJOBS, "job", namespace=ref.namespace)
    client.cancel(ref)
    with pytest.raises(WriteConflictError):
        JobWriter(api, client.backend.adapter).set_suspended(read_before, suspended=False)
    client.resume(ref)
    assert get_spec(cluster)["suspend"] is True


def test_a_resumed_job_is_not_reported_as_suspended(stage):
    _, client = stage
    ref = client.submit(a_request(suspend=True))
    client.resume(ref)
    seen(client, ref, lambda look: look.status in ("Created", "Running"))
    wait_until_running(client, ref)


def test_suspending_or_resuming_twice_patches_the_job_once(stage):
    cluster, client = stage
    ref = client.submit(a_request(suspend=True))
    client.suspend(ref)
    client.resume(ref)
    client.resume(ref)
    assert cluster.counts["patch trainjobs"] == 1


def test_runtime_patches_of_other_managers_are_kept(stage):
    cluster, client = stage
    ref = client.submit(a_request(suspend=True))
    cluster.update("TrainJob", "job", lambda raw: raw["spec"].update(runtimePatches=[KUEUE_PATCH]))
    before = get_spec(cluster)["runtimePatches"]
    client.resume(ref)
    client.suspend(ref)
    client.cancel(ref)
    assert get_spec(cluster)["runtimePatches"] == before


# Kueue.


def test_a_job_that_kueue_has_suspended_is_queued_without_a_failure(queued):
    cluster, client, ref = queued
    assert get_spec(cluster)["suspend"] is True
    job = client.get_job("job")
    assert (job.status, job.reason) == ("Suspended", "queued: waits for admission by Kueue queue 'training'")
    assert client.observe(ref).pending_failure is None


def test_waiting_continues_while_a_job_is_queued(queued):
    cluster, client, ref = queued
    cluster.lives.set("*", "complete")
    done = []
    waiter = threading.Thread(target=lambda: done.append(finished(client, ref)))
    waiter.start()
    cluster.until(lambda: cluster.watches)
    cluster.admit("job")
    waiter.join()
    assert done[0].succeeded


def test_an_admitted_job_keeps_the_patch_of_kueue(queued):
    cluster, client, ref = queued
    cluster.admit("job")
    wait_until_running(client, ref)
    client.suspend(ref)
    assert [patch["manager"] for patch in get_spec(cluster)["runtimePatches"]] == ["kueue.x-k8s.io/manager"]


def test_submitting_a_queued_job_again_attaches_to_it(queued):
    _, client, ref = queued
    assert client.submit(a_request(**QUEUED)) == ref


def test_cancelling_a_queued_job_deletes_it_because_kueue_would_resume_it(queued):
    cluster, client, ref = queued
    requests = (client.get_job_request(ref), a_request())
    assert [client.backend.keeps_cancelled(request) for request in requests] == [False, True]
    client.cancel(ref)
    assert cluster.get("TrainJob", "job") is None


def test_waiting_for_a_queued_job_ends_when_it_is_deleted(queued):
    cluster, client, ref = queued
    done = []
    waiter = threading.Thread(target=lambda: done.append(finished(client, ref)))
    waiter.start()
    cluster.until(lambda: cluster.watches)
    a_client(cluster).cancel(ref)
    waiter.join()
    assert done[0].diagnosis.category is Category.DELETED


def test_a_queued_job_with_a_fatal_failure_is_deleted_without_a_warning(caplog):
    with a_stage("image-pull-error", kueue=True) as (cluster, client):
        ref = client.submit(a_request(**QUEUED))
        cluster.admit("job")
        outcome = finished(client, ref)
        assert cluster.get("TrainJob", "job") is None
    assert outcome.diagnosis.category is Category.IMAGE
    assert "could not be ended" not in caplog.text


# Cancel.


def test_a_cancelled_job_has_no_pods_and_keeps_its_record(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    wait_until_running(client, ref)
    client.cancel(ref)
    cluster.until(lambda: not cluster.objects("pods"))
    job = client.get_job("job")
    assert (job.status, job.reason) == ("Failed", "Deleted: it was cancelled")
    assert client.get_job_request(ref) == a_request()


def test_cancelling_twice_patches_the_job_once(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    client.cancel(ref)
    client.cancel(ref)
    assert cluster.counts["patch trainjobs"] == 1


def test_submitting_a_cancelled_job_again_attaches_to_it(stage):
    _, client = stage
    ref = client.submit(a_request())
    client.cancel(ref)
    assert client.submit(a_request()) == ref


# Delete.


def test_delete_returns_after_the_job_and_its_dependents_are_deleted(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    wait_until_running(client, ref)
    client.delete_job(ref)
    assert [cluster.objects(kind) for kind in ("TrainJob", "JobSet", "Job", "Pod")] == [[], [], [], []]


def test_delete_returns_after_the_jobset_is_deleted(stage):
    cluster, client = stage
    ref = client.submit(a_request(suspend=True))
    cluster.until(lambda: cluster.get("JobSet", "job"))
    client.delete_job(ref)
    assert cluster.get("JobSet", "job") is None


@pytest.mark.parametrize("resource", ["jobsets", "pods"])
def test_delete_works_without_access_to_the_dependents(stage, resource):
    cluster, client = stage
    ref = client.submit(a_request())
    wait_until_running(client, ref)
    cluster.forbid("*", resource)
    client.delete_job(ref)
    assert cluster.get("TrainJob", "job") is None


def test_delete_waits_for_finalizers(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    cluster.update("TrainJob", "job", lambda raw: raw["metadata"].update(finalizers=["example.com/backup"]))
    deleter = threading.Thread(target=lambda: client.delete_job(ref))
    deleter.start()
    cluster.until(lambda: "deletionTimestamp" in cluster.get("TrainJob", "job")["metadata"])
    assert deleter.is_alive()
    cluster.update("TrainJob", "job", lambda raw: raw["metadata"].pop("finalizers"))
    deleter.join()
    assert cluster.get("TrainJob", "job") is None


def test_only_trainjobs_are_deleted_and_never_a_jobset(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    wait_until_running(client, ref)
    for act in (client.suspend, client.resume, client.cancel, client.delete_job):
        act(ref)
    client.reap()
    assert get_deleted_resources(cluster) == {"trainjobs"}


# Expired jobs.


@pytest.fixture
def expired():
    """A cluster where a TrainJob and a Job have expired, and two other TrainJobs have not."""
    with a_stage("complete") as (cluster, client):
        keep = {"delete_after_seconds": 1}
        client.submit(a_request("fetch", runtime=None, trainer=None, initializer={"dataset": HF}, **keep))
        for name in ("job", "kept", "runs"):
            cluster.lives.set("runs", "runs")
            client.submit(a_request(name, **({} if name == "kept" else keep)))
        for name in ("job", "kept"):
            until_ended(cluster, name)
        cluster.until(lambda: (cluster.get("Job", "fetch").get("status") or {}).get("conditions"))
        for kind, name in (("TrainJob", "job"), ("TrainJob", "kept"), ("Job", "fetch")):
            cluster.update(kind, name, set_end_in_the_past)
        yield cluster, client


def set_end_in_the_past(raw: dict) -> None:
    for condition in raw["status"]["conditions"]:
        condition["lastTransitionTime"] = "2020-01-01T00:00:00Z"


def test_only_expired_jobs_are_reaped(expired):
    cluster, client = expired
    assert sorted(client.reap()) == ["fetch", "job"]
    cluster.until(lambda: {job["metadata"]["name"] for job in cluster.objects("TrainJob")} == {"kept", "runs"})


def test_trainjobs_are_reaped_where_listing_jobs_is_forbidden(expired):
    cluster, client = expired
    cluster.forbid("list", "jobs")
    assert client.reap() == ["job"]


def test_the_next_submit_deletes_expired_jobs(expired):
    cluster, _ = expired
    a_client(cluster).submit(a_request("next"))
    cluster.until(lambda: cluster.get("TrainJob", "job") is None)
    assert cluster.get("TrainJob", "kept") is not None


def test_a_submit_succeeds_where_deleting_expired_jobs_is_forbidden(expired):
    cluster, _ = expired
    cluster.forbid("delete", "trainjobs")
    a_client(cluster).submit(a_request("next"))
    assert cluster.get("TrainJob", "next") is not None


def test_a_cancelled_job_expires_after_its_cancellation(stage):
    cluster, client = stage
    ref = client.submit(a_request(delete_after_seconds=1))
    client.cancel(ref)
    cancelled = {labels.CANCELLED: "2020-01-01T00:00:00.000+00:00"}
    cluster.update("TrainJob", "job", lambda raw: raw["metadata"]["annotations"].update(cancelled))
    assert client.reap() == ["job"]


def test_jobs_of_other_tools_are_never_reaped(stage):
    cluster, client = stage
    cluster.lives.set("*", "complete")
    foreign = {
        "apiVersion": resources.TRAINJOBS.api_version,
        "kind": "TrainJob",
        "metadata": {"name": "foreign", "labels": {labels.DELETE_AFTER: "0"}},
        "spec": {"runtimeRef": {"name": "python"}, "trainer": {"image": CONTAINER["image"]}},
    }
    cluster.add(foreign)
    until_ended(cluster, "foreign")
    assert client.reap() == []


def test_a_job_with_the_largest_request_can_be_cancelled_and_keeps_its_outcome():
    room = 262_144 - 80 * 1024
    with a_stage("runs") as (cluster, client):
        annotations = client.render(a_request(metadata={"annotations": {"note": ""}}))["metadata"]["annotations"]
        # The value is in the request, too.
        filler = (room - sum(len(key) + len(value.encode()) for key, value in annotations.items())) // 2
        ref = client.submit(a_request(metadata={"annotations": {"note": "x" * filler}}))
        lines = tuple("é" * 5000 for _ in range(20))
        diagnosis = Diagnosis(category=Category.USER_CODE, reason="crashed", traceback="t" * 9000, log_tail=lines)
        client.backend.cancel(ref, diagnosis)
        large = Outcome(ref=ref.to_dict(), status="Failed", diagnosis=diagnosis, result="")
        filled = replace(large, diagnosis=None, result="x" * (65_000 - len(replace(large, diagnosis=None).to_json())))
        client.backend.store_outcome(filled)
        stored = cluster.get("TrainJob", "job")["metadata"]["annotations"]
    assert stored["trainjob-workflows/outcome"] == filled.to_json()
    kept = Diagnosis.from_dict(json.loads(stored["trainjob-workflows/diagnosis"]))
    assert (kept.reason, kept.traceback) == ("crashed", diagnosis.traceback)
