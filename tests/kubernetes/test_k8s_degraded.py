"""What goes on with a role that lacks something, and what is said of the rest."""

from __future__ import annotations

import pytest
from k8s_crds import needs_crds
from k8s_scene import a_client, a_request, a_request_with_a_token, a_stage, finished, seen, until_ended

from trainer_core.cluster.answers import ForbiddenError
from trainer_core.errors import BackendUnavailableError, TrainerError
from trainer_core.outcome import Category
from trainer_core.request import Owner

pytestmark = needs_crds
#: What a look at jobs can do without.
DETAILS = ("pods", "pods/log", "events", "jobsets", "jobs", "secrets", "configmaps", "persistentvolumeclaims")


@pytest.fixture
def stage():
    with a_stage("complete") as made:
        yield made


@pytest.mark.parametrize("resource", DETAILS)
def test_a_job_is_submitted_waited_for_and_looked_at_without(stage, resource):
    cluster, client = stage
    cluster.forbid("*", resource)
    ref = client.submit(a_request(owner=Owner(key="dag/run/task").model_dump()))
    assert finished(client, ref).succeeded
    assert client.get_job("job").status == "Complete"
    assert [job.status for job in client.list_jobs()] == ["Complete"]
    assert client.observe(ref).outcome.succeeded
    assert client.get_job_events("job")[0].reason == "Created"


@pytest.mark.parametrize("resource", DETAILS)
def test_a_job_is_suspended_resumed_cancelled_and_deleted_without(resource):
    with a_stage("runs") as (cluster, client):
        cluster.forbid("*", resource)
        ref = client.submit(a_request())
        client.suspend(ref)
        assert seen(client, ref, lambda look: look.status) == "Suspended"
        client.resume(ref)
        client.cancel(ref)
        assert client.outcome(ref).diagnosis.category is Category.DELETED
        client.delete_job("job")
        assert client.list_jobs() == []


def test_without_pods_a_step_has_no_pod_and_the_job_still_has_the_step(stage):
    cluster, client = stage
    client.submit(a_request())
    until_ended(cluster)
    cluster.forbid("list", "pods")
    (step,) = client.get_job("job").steps
    assert (step.name, step.pod_name, step.status) == ("node-0", "", "Succeeded")


def test_without_pods_a_job_that_cannot_start_is_explained_by_its_events():
    with a_stage("image-pull-error") as (cluster, client):
        cluster.forbid("*", "pods")
        ref = client.submit(a_request())
        trouble = seen(client, ref, lambda look: look.trouble if look.trouble and look.trouble.grace == 0 else None)
    assert trouble.diagnosis.category is Category.IMAGE
    assert "not found" in trouble.diagnosis.reason


@pytest.mark.parametrize("resource", ["trainjobs", "pods"])
def test_where_nothing_may_be_watched_waiting_asks(stage, resource):
    cluster, client = stage
    cluster.forbid("watch", resource)
    assert finished(client, client.submit(a_request())).succeeded


def test_where_jobs_may_not_be_listed_one_job_can_still_be_waited_for(stage):
    cluster, client = stage
    cluster.forbid("list", "trainjobs")
    assert finished(client, client.submit(a_request())).succeeded


def test_a_failure_without_events_and_logs_is_told_by_the_pods():
    with a_stage("crash-loop", backoff_limit=1000) as (cluster, client):
        cluster.forbid("*", "events")
        cluster.forbid("*", "pods/log")
        outcome = finished(client, client.submit(a_request()))
    assert outcome.diagnosis.reason == "ValueError: no such column"


def submits(client, ref):
    client.submit(a_request("other"))


def reads_logs(client, ref):
    list(client.get_job_logs(ref.name))


REFUSALS = {
    "create trainjobs": submits,
    "get trainjobs": lambda client, ref: client.get_job(ref.name),
    "list trainjobs": lambda client, ref: client.list_jobs(),
    "patch trainjobs": lambda client, ref: client.suspend(ref),
    "delete trainjobs": lambda client, ref: client.delete_job(ref.name),
    "get clustertrainingruntimes": submits,
    "get pods/log": reads_logs,
    "create secrets": lambda client, ref: client.submit(a_request_with_a_token("secret")),
}


@pytest.mark.parametrize("missing", REFUSALS)
def test_what_cannot_be_done_is_said_in_one_line_with_verb_and_resource(missing):
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        seen(client, ref, lambda look: look.status == "Running")
        verb, resource = missing.split()
        cluster.forbid(verb, resource)
        with pytest.raises(ForbiddenError, match=f"may {verb} {resource}") as refused:
            REFUSALS[missing](client, ref)
    assert "\n" not in str(refused.value)


def test_refusals_are_errors_of_the_house_that_no_retry_helps(stage):
    cluster, client = stage
    cluster.forbid("create", "trainjobs")
    with pytest.raises(TrainerError) as refused:
        client.submit(a_request())
    assert isinstance(refused.value, BackendUnavailableError)
    assert not refused.value.transient


def test_a_job_that_cannot_get_well_and_may_not_be_ended_is_still_reported():
    with a_stage("invalid-image-name") as (cluster, client):
        ref = client.submit(a_request())
        cluster.forbid("patch", "trainjobs")
        assert finished(client, ref).diagnosis.category is Category.IMAGE


def test_a_server_that_does_not_say_what_it_takes_is_asked_for_the_definition():
    with a_stage("complete") as (cluster, client):
        cluster.faults.next(status=404, path="/openapi/v3", times=100)
        assert finished(client, client.submit(a_request())).succeeded
        assert "get customresourcedefinitions" in cluster.counts


def test_a_runtime_of_the_cluster_is_found_where_those_of_the_namespace_may_not_be_read(stage):
    cluster, client = stage
    cluster.forbid("*", "trainingruntimes")
    assert [runtime.name for runtime in client.list_runtimes()] == ["fetches", "python", "torch-distributed"]
    assert finished(client, client.submit(a_request())).succeeded


def test_another_namespace_may_be_all_that_is_permitted(stage):
    cluster, _ = stage
    cluster.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    cluster.forbid("*", "trainjobs", namespace="default")
    client = a_client(cluster, "team")
    assert finished(client, client.submit(a_request())).succeeded
