"""What works with a role that lacks permissions, and the errors of what does not."""

from __future__ import annotations

import asyncio
import time

import pytest
from k8s_scene import a_client, a_request, a_request_with_a_token, a_stage, finished, seen, until_ended

from trainer_core.base.errors import BackendUnavailableError, TrainerError
from trainer_core.k8s import job_reader
from trainer_core.k8s.errors import ForbiddenError
from trainer_core.model.jobs import Category
from trainer_core.model.request import Owner

#: Resources without which jobs can still be read.
OPTIONAL = (
    "pods",
    "pods/log",
    "events",
    "jobsets",
    "jobs",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
)


@pytest.fixture
def stage():
    with a_stage("complete") as made:
        yield made


@pytest.mark.parametrize("resource", OPTIONAL)
def test_submit_wait_and_reads_work_without_access_to(stage, resource):
    cluster, client = stage
    cluster.forbid("*", resource)
    ref = client.submit(a_request(owner=Owner(key="dag/run/task").model_dump()))
    assert finished(client, ref).succeeded
    assert client.get_job("job").status == "Complete"
    assert [job.status for job in client.list_jobs()] == ["Complete"]
    assert client.observe(ref).outcome.succeeded
    assert client.get_job_events("job")[0].reason == "Created"


@pytest.mark.parametrize("resource", OPTIONAL)
def test_suspend_resume_cancel_and_delete_work_without_access_to(resource):
    with a_stage("runs") as (cluster, client):
        cluster.forbid("*", resource)
        ref = client.submit(a_request())
        client.suspend(ref)
        assert seen(client, ref, lambda look: look.status) == "Suspended"
        client.resume(ref)
        client.cancel(ref)
        assert client.get_job_outcome(ref).diagnosis.category is Category.DELETED
        client.delete_job("job")
        assert client.list_jobs() == []


def test_without_access_to_pods_a_job_has_steps_without_pod_names(stage):
    cluster, client = stage
    client.submit(a_request())
    until_ended(cluster)
    cluster.forbid("list", "pods")
    (step,) = client.get_job("job").steps
    assert (step.name, step.pod_name, step.status) == ("node-0", "", "Succeeded")


def test_without_access_to_pods_events_explain_a_job_that_cannot_start():
    with a_stage("image-pull-error") as (cluster, client):
        cluster.forbid("*", "pods")
        ref = client.submit(a_request())
        failure = seen(
            client,
            ref,
            lambda look: look.pending_failure if look.pending_failure and look.pending_failure.grace == 0 else None,
        )
    assert failure.diagnosis.category is Category.IMAGE
    assert "not found" in failure.diagnosis.reason


@pytest.mark.parametrize("resource", ["trainjobs", "pods"])
def test_waiting_polls_where_the_watch_is_forbidden(stage, resource):
    cluster, client = stage
    cluster.forbid("watch", resource)
    assert finished(client, client.submit(a_request())).succeeded


async def observe_all(followers, timeout: float) -> None:
    await asyncio.gather(*(follower.next_observation_async(timeout) for follower in followers))


def test_all_waiters_together_have_one_polling_rate_where_jobs_cannot_be_watched(monkeypatch):
    monkeypatch.setattr(job_reader, "_UNCACHED_READS_PER_SECOND", 1.0)
    monkeypatch.setattr(job_reader, "_UNCACHED_READ_SECONDS", 0.1)
    with a_stage("runs") as (cluster, client):
        cluster.forbid("list", "trainjobs")
        cluster.forbid("watch", "trainjobs")
        followers = [client.follow(client.submit(a_request(f"job-{number}"))) for number in range(20)]
        asyncio.run(observe_all(followers, 60))
        cluster.forget_requests()
        begin = time.monotonic()
        for _ in range(5):
            asyncio.run(observe_all(followers, 0.2))
        reads, seconds = cluster.counts["get trainjobs"], time.monotonic() - begin
        for follower in followers:
            follower.close()
    # At this rate each may be read once in twenty seconds, and not after each wait.
    assert reads <= len(followers) + seconds


def test_waiting_works_where_listing_jobs_is_forbidden(stage):
    cluster, client = stage
    cluster.forbid("list", "trainjobs")
    assert finished(client, client.submit(a_request())).succeeded


def test_without_access_to_events_and_logs_pods_explain_a_failure():
    with a_stage("crash-loop", backoff_limit=1000) as (cluster, client):
        cluster.forbid("*", "events")
        cluster.forbid("*", "pods/log")
        outcome = finished(client, client.submit(a_request()))
    assert outcome.diagnosis.reason == "ValueError: no such column"


def submit_another(client, ref):
    client.submit(a_request("other"))


def read_logs(client, ref):
    list(client.get_job_logs(ref.name))


DENIED_CALLS = {
    "create trainjobs": submit_another,
    "get trainjobs": lambda client, ref: client.get_job(ref.name),
    "list trainjobs": lambda client, ref: client.list_jobs(),
    "patch trainjobs": lambda client, ref: client.suspend(ref),
    "delete trainjobs": lambda client, ref: client.delete_job(ref.name),
    "get clustertrainingruntimes": submit_another,
    "get pods/log": read_logs,
    "create secrets": lambda client, ref: client.submit(a_request_with_a_token("secret")),
}


@pytest.mark.parametrize("missing", DENIED_CALLS)
def test_a_denied_call_names_the_verb_and_the_resource_in_one_line(missing):
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        seen(client, ref, lambda look: look.status == "Running")
        verb, resource = missing.split()
        cluster.forbid(verb, resource)
        with pytest.raises(ForbiddenError, match=f"may {verb} {resource}") as denied:
            DENIED_CALLS[missing](client, ref)
    assert "\n" not in str(denied.value)


def test_a_denied_call_raises_a_trainer_error_that_is_not_transient(stage):
    cluster, client = stage
    cluster.forbid("create", "trainjobs")
    with pytest.raises(TrainerError) as denied:
        client.submit(a_request())
    assert isinstance(denied.value, BackendUnavailableError)
    assert not denied.value.transient


def test_a_fatal_failure_is_reported_where_cancelling_is_forbidden():
    with a_stage("invalid-image-name") as (cluster, client):
        ref = client.submit(a_request())
        cluster.forbid("patch", "trainjobs")
        assert finished(client, ref).diagnosis.category is Category.IMAGE


def test_the_crd_is_read_where_the_server_has_no_openapi_document():
    with a_stage("complete") as (cluster, client):
        cluster.faults.next(status=404, path="/openapi/v3", times=100)
        assert finished(client, client.submit(a_request())).succeeded
        assert "get customresourcedefinitions" in cluster.counts


def test_cluster_runtimes_are_found_where_namespace_runtimes_are_forbidden(stage):
    cluster, client = stage
    cluster.forbid("*", "trainingruntimes")
    assert [runtime.name for runtime in client.list_runtimes()] == ["fetches", "python", "torch-distributed"]
    assert finished(client, client.submit(a_request())).succeeded


def test_permissions_in_another_namespace_only_are_enough(stage):
    cluster, _ = stage
    cluster.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    cluster.forbid("*", "trainjobs", namespace="default")
    client = a_client(cluster, "team")
    assert finished(client, client.submit(a_request())).succeeded
