"""Suspend, resume, cancel, delete, and jobs whose time is over."""

from __future__ import annotations

import threading

import pytest
from k8s_crds import needs_crds
from k8s_scene import CONTAINER, HF, a_client, a_request, a_stage, finished, seen, until_ended

from trainer_core.cluster import kinds, marks
from trainer_core.errors import JobFailedError
from trainer_core.options.scheduling import KUEUE_QUEUE
from trainer_core.outcome import Category, Diagnosis

pytestmark = needs_crds
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


def spec(cluster) -> dict:
    return cluster.get("TrainJob", "job")["spec"]


def runs(client, ref) -> None:
    seen(client, ref, lambda look: look.status == "Running")


def deletions(cluster) -> set[str]:
    return {request.path.split("/")[-2] for request in cluster.requests if request.method == "DELETE"}


# Suspend and resume.


def test_a_suspended_job_has_no_pods_and_is_still_there(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    runs(client, ref)
    client.suspend(ref)
    assert client.get_job("job").status == "Suspended"
    cluster.until(lambda: not cluster.objects("pods"))
    assert cluster.get("TrainJob", "job") is not None


def test_a_resumed_job_runs_again(stage):
    _, client = stage
    ref = client.submit(a_request())
    client.suspend(ref)
    client.resume(ref)
    runs(client, ref)


def test_right_after_it_is_resumed_a_job_is_not_said_to_be_suspended(stage):
    _, client = stage
    ref = client.submit(a_request(suspend=True))
    client.resume(ref)
    seen(client, ref, lambda look: look.status in ("Created", "Running"))
    runs(client, ref)


def test_suspending_and_resuming_twice_changes_nothing(stage):
    cluster, client = stage
    ref = client.submit(a_request(suspend=True))
    client.suspend(ref)
    client.resume(ref)
    client.resume(ref)
    assert cluster.counts["patch trainjobs"] == 1


def test_a_job_that_has_ended_is_neither_suspended_nor_resumed():
    with a_stage("complete") as (cluster, client):
        ref = client.submit(a_request())
        until_ended(cluster)
        for act in (client.suspend, client.resume, client.cancel):
            act(ref)
        assert cluster.counts["patch trainjobs"] == 0
        assert client.get_job("job").status == "Complete"


def test_patches_of_other_managers_survive_ours(stage):
    cluster, client = stage
    ref = client.submit(a_request(suspend=True))
    cluster.update("TrainJob", "job", lambda raw: raw["spec"].update(runtimePatches=[KUEUE_PATCH]))
    before = spec(cluster)["runtimePatches"]
    client.resume(ref)
    client.suspend(ref)
    client.cancel(ref)
    assert spec(cluster)["runtimePatches"] == before


# Kueue.


def test_a_job_that_kueue_has_suspended_is_queued_and_nothing_is_wrong(queued):
    cluster, client, ref = queued
    assert spec(cluster)["suspend"] is True
    job = client.get_job("job")
    assert (job.status, job.reason) == ("Suspended", "queued: it waits until Kueue admits it from the queue 'training'")
    assert client.observe(ref).trouble is None


def test_whoever_waits_goes_on_waiting_while_a_job_is_queued(queued):
    cluster, client, ref = queued
    cluster.lives.set("*", "complete")
    done = []
    waiter = threading.Thread(target=lambda: done.append(finished(client, ref)))
    waiter.start()
    cluster.until(lambda: cluster.watches)
    cluster.admit("job")
    waiter.join()
    assert done[0].succeeded


def test_a_job_that_kueue_admits_keeps_the_patch_of_kueue(queued):
    cluster, client, ref = queued
    cluster.admit("job")
    runs(client, ref)
    client.suspend(ref)
    assert [patch["manager"] for patch in spec(cluster)["runtimePatches"]] == ["kueue.x-k8s.io/manager"]


def test_submitting_a_queued_job_again_attaches_to_it(queued):
    _, client, ref = queued
    assert client.submit(a_request(**QUEUED)) == ref


def test_a_queued_job_that_is_cancelled_is_deleted_for_kueue_would_start_it(queued):
    cluster, client, ref = queued
    client.cancel(ref)
    assert cluster.get("TrainJob", "job") is None


def test_whoever_waits_for_a_queued_job_hears_that_it_was_deleted(queued):
    cluster, client, ref = queued
    done = []
    waiter = threading.Thread(target=lambda: done.append(finished(client, ref)))
    waiter.start()
    cluster.until(lambda: cluster.watches)
    a_client(cluster).cancel(ref)
    waiter.join()
    assert done[0].diagnosis.category is Category.DELETED


def test_a_queued_job_that_cannot_get_well_is_ended_and_nothing_is_said_to_have_failed_in_that(caplog):
    with a_stage("image-pull-error", kueue=True) as (cluster, client):
        ref = client.submit(a_request(**QUEUED))
        cluster.admit("job")
        outcome = finished(client, ref)
        assert cluster.get("TrainJob", "job") is None
    assert outcome.diagnosis.category is Category.IMAGE
    assert "could not be ended" not in caplog.text


# Cancel.


def test_a_cancelled_job_ends_what_runs_and_stays_with_its_record(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    runs(client, ref)
    client.cancel(ref)
    cluster.until(lambda: not cluster.objects("pods"))
    job = client.get_job("job")
    assert (job.status, job.reason) == ("Failed", "Deleted: it was cancelled")
    assert client.backend.request(ref) == a_request()


def test_cancelling_twice_changes_nothing(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    client.cancel(ref)
    client.cancel(ref)
    assert cluster.counts["patch trainjobs"] == 1


def test_a_cancelled_job_is_not_resumed(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    client.cancel(ref)
    client.resume(ref)
    assert spec(cluster)["suspend"] is True


def test_a_job_that_is_cancelled_for_a_reason_says_that_reason_to_everybody(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    because = Diagnosis(category=Category.IMAGE, reason="its image cannot be pulled", step="node-0")
    client.backend.cancel(ref, because)
    assert a_client(cluster).outcome("job").diagnosis == because


def test_a_name_of_a_cancelled_job_is_not_free(stage):
    _, client = stage
    ref = client.submit(a_request())
    client.cancel(ref)
    assert client.submit(a_request()) == ref


def test_waiting_for_a_status_that_a_cancelled_job_never_has_is_an_error(stage):
    _, client = stage
    client.cancel(client.submit(a_request()))
    with pytest.raises(JobFailedError, match="it was cancelled"):
        client.wait_for_job_status("job", timeout=60)


# Delete.


def test_a_deleted_job_is_gone_with_all_its_parts_when_delete_returns(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    runs(client, ref)
    client.backend.delete(ref)
    assert [cluster.objects(kind) for kind in ("TrainJob", "JobSet", "Job", "Pod")] == [[], [], [], []]


def test_the_name_of_a_deleted_job_is_free_for_trainer_too(stage):
    cluster, client = stage
    old = client.submit(a_request(suspend=True))
    cluster.until(lambda: cluster.get("JobSet", "job"))
    client.backend.delete(old)
    assert cluster.get("JobSet", "job") is None


@pytest.mark.parametrize("resource", ["jobsets", "pods"])
def test_a_job_is_deleted_by_whoever_may_not_see_what_it_owns(stage, resource):
    cluster, client = stage
    ref = client.submit(a_request())
    runs(client, ref)
    cluster.forbid("*", resource)
    client.backend.delete(ref)
    assert cluster.get("TrainJob", "job") is None


def test_delete_waits_for_whoever_holds_the_job(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    cluster.update("TrainJob", "job", lambda raw: raw["metadata"].update(finalizers=["example.com/backup"]))
    deleter = threading.Thread(target=lambda: client.backend.delete(ref))
    deleter.start()
    cluster.until(lambda: "deletionTimestamp" in cluster.get("TrainJob", "job")["metadata"])
    assert deleter.is_alive()
    cluster.update("TrainJob", "job", lambda raw: raw["metadata"].pop("finalizers"))
    deleter.join()
    assert cluster.get("TrainJob", "job") is None


def test_deleting_a_job_that_is_gone_succeeds(stage):
    _, client = stage
    ref = client.submit(a_request())
    client.backend.delete(ref)
    client.backend.delete(ref)
    client.delete_job("job")


def test_only_the_very_job_is_deleted(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    cluster.delete("TrainJob", "job")
    second = client.submit(a_request())
    client.backend.delete(ref)
    assert cluster.get("TrainJob", "job")["metadata"]["uid"] == second.uid


def test_whatever_ends_a_job_no_jobset_is_ever_deleted_by_us(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    runs(client, ref)
    for act in (client.suspend, client.resume, client.cancel, client.backend.delete):
        act(ref)
    client.backend.reap()
    assert deletions(cluster) == {"trainjobs"}


# Jobs whose time is over.


@pytest.fixture
def old():
    """A cluster with an ended job of each kind, that were to be deleted a second after their end, a minute ago."""
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
            cluster.update(kind, name, a_minute_ago)
        yield cluster, client


def a_minute_ago(raw: dict) -> None:
    for condition in raw["status"]["conditions"]:
        condition["lastTransitionTime"] = "2020-01-01T00:00:00Z"


def test_a_job_whose_time_is_over_is_reaped_and_no_other(old):
    cluster, client = old
    assert sorted(client.backend.reap()) == ["fetch", "job"]
    cluster.until(lambda: {job["metadata"]["name"] for job in cluster.objects("TrainJob")} == {"kept", "runs"})


def test_whoever_has_no_role_for_jobs_reaps_trainjobs(old):
    cluster, client = old
    cluster.forbid("list", "jobs")
    assert client.backend.reap() == ["job"]


def test_whoever_submits_next_sweeps(old):
    cluster, _ = old
    a_client(cluster).submit(a_request("next"))
    cluster.until(lambda: cluster.get("TrainJob", "job") is None)
    assert cluster.get("TrainJob", "kept") is not None


def test_a_submit_does_not_fail_of_what_cannot_be_swept(old):
    cluster, _ = old
    cluster.forbid("delete", "trainjobs")
    a_client(cluster).submit(a_request("next"))
    assert cluster.get("TrainJob", "next") is not None


def test_a_cancelled_job_is_reaped_by_the_time_when_it_was_cancelled(stage):
    cluster, client = stage
    ref = client.submit(a_request(delete_after_seconds=1))
    client.cancel(ref)
    old = {marks.CANCELLED: "2020-01-01T00:00:00.000+00:00"}
    cluster.update("TrainJob", "job", lambda raw: raw["metadata"]["annotations"].update(old))
    assert client.backend.reap() == ["job"]


def test_jobs_of_others_are_never_reaped(stage):
    cluster, client = stage
    cluster.lives.set("*", "complete")
    foreign = {
        "apiVersion": kinds.TRAINJOBS.api_version,
        "kind": "TrainJob",
        "metadata": {"name": "foreign", "labels": {marks.DELETE_AFTER: "0"}},
        "spec": {"runtimeRef": {"name": "python"}, "trainer": {"image": CONTAINER["image"]}},
    }
    cluster.add(foreign)
    until_ended(cluster, "foreign")
    assert client.backend.reap() == []
