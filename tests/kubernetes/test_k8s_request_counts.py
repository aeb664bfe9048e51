"""Number, kind and form of the requests that the backend sends."""

from __future__ import annotations

import copy

import pytest
from k8s_scene import HF, a_request, a_request_with_a_token, a_stage, asked, finished, seen, until_ended

from trainer_core.base.errors import ConflictError
from trainer_core.base.naming import hash_owner_key
from trainer_core.k8s import resources
from trainer_core.model.jobs import SEARCH_LABEL
from trainer_core.model.request import SearchEntry

#: The runtime is looked for in the namespace first.
RUNTIME = ["get trainingruntimes/python", "get clustertrainingruntimes/python"]
SCHEMA = "/openapi/v3/apis/trainer.kubeflow.org/v1alpha1"


@pytest.fixture
def stage():
    with a_stage("complete", controllers=True) as made:
        yield made


def fill(cluster, count: int, nodes: int = 2) -> None:
    """Add jobs and their pods to a cluster without controllers."""
    for number in range(count):
        job = copy.deepcopy(cluster.get("TrainJob", "job"))
        name = f"other-{number}"
        job["metadata"] = {"name": name, "namespace": "default", "labels": job["metadata"]["labels"]}
        cluster.add(job)
        for node in range(nodes):
            labels = {
                "jobset.sigs.k8s.io/jobset-name": name,
                "jobset.sigs.k8s.io/replicatedjob-name": "node",
                "batch.kubernetes.io/job-completion-index": str(node),
            }
            metadata = {"name": f"{name}-node-0-{node}-abcde", "namespace": "default", "labels": labels}
            spec = {"containers": [{"name": "node", "image": "x"}]}
            cluster.add({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def test_a_name_cannot_change_the_resource_of_a_path():
    path = resources.TRAINJOBS.build_path("team", "../../../../../api/v1/namespaces/team/secrets/one")
    assert path.rpartition("/")[0] == resources.TRAINJOBS.build_path("team")


def test_get_job_takes_two_requests(stage):
    cluster, client = stage
    client.submit(a_request())
    until_ended(cluster)
    cluster.forget_requests()
    job = client.get_job("job")
    assert (job.status, job.runtime.trainer.framework, len(job.steps)) == ("Complete", "plain", 1)
    assert asked(cluster) == ["get trainjobs/job", "list pods"]


@pytest.mark.parametrize(("count", "pages"), [(0, 1 + 1 + 1), (10, 1 + 1 + 1), (600, 2 + 1 + 3)])
def test_list_jobs_takes_three_requests_and_one_for_each_further_page_of_jobs_or_pods(count, pages):
    with a_stage(controllers=False) as (cluster, client):
        client.submit(a_request())
        fill(cluster, count)
        cluster.forget_requests()
        jobs = client.list_jobs()
        assert (len(jobs), cluster.counts.total()) == (count + 1, pages)
        assert {request.query.get("limit") for request in cluster.requests} == {"500"}
        assert {len(job.steps) for job in jobs if job.name != "job"} <= {2}


def test_the_jobs_with_a_label_are_selected_by_the_server_and_no_other_pod_is_listed():
    with a_stage(controllers=False) as (cluster, client):
        client.submit(a_request(metadata={"labels": {"team": "vision"}}))
        client.submit(a_request("other"))
        fill(cluster, 0)
        cluster.forget_requests()
        assert [job.name for job in client.list_jobs(labels={"team": "vision"})] == ["job"]
        selectors = [request.query.get("labelSelector", "") for request in cluster.requests]
    assert asked(cluster) == ["list trainjobs", "list jobs", "list pods"]
    assert all("team=vision" in selector or "jobset-name=job" in selector for selector in selectors)


def test_observing_a_running_job_takes_two_requests_and_its_log():
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        seen(client, ref, lambda look: look.status == "Running")
        cluster.forget_requests()
        client.observe(ref)
        job, pods, log = asked(cluster)
    assert (job, pods, log.endswith("/log")) == ("get trainjobs/job", "list pods", True)


def test_submit_takes_one_write(stage):
    cluster, client = stage
    client.submit(a_request("first"))
    cluster.forget_requests()
    client.submit(a_request())
    assert asked(cluster) == ["get trainjobs/job", "get jobs/job", *RUNTIME, "create trainjobs"]


def test_the_first_submit_also_reads_the_schema_and_deletes_expired_jobs(stage):
    cluster, client = stage
    client.submit(a_request())
    further = [one for one in asked(cluster) if one not in (*RUNTIME, "get trainjobs/job", "get jobs/job")]
    assert further == [SCHEMA, "list trainjobs", "create trainjobs"]


def test_a_name_that_an_owner_gives_is_looked_for_only_when_it_is_taken(stage):
    cluster, client = stage
    owner = {"slug": "train", "key": "a task of a run"}
    name = a_request(None, owner=owner).get_attempt_name()
    client.submit(a_request(name))
    cluster.forget_requests()
    with pytest.raises(ConflictError, match=f"TrainJob '{name}' exists and has no owner"):
        client.submit(a_request(None, owner=owner))
    assert [one for one in asked(cluster) if name in one or "create" in one] == [
        "create trainjobs",
        f"get trainjobs/{name}",
    ]


def test_attaching_to_a_job_writes_nothing_and_reads_no_runtime(stage):
    cluster, client = stage
    client.submit(a_request())
    cluster.forget_requests()
    client.submit(a_request())
    assert asked(cluster) == ["get trainjobs/job", "get trainjobs/job"]


def test_a_literal_token_takes_a_second_write():
    with a_stage(controllers=False) as (cluster, client):
        client.submit(a_request_with_a_token())
        assert [one for one in asked(cluster) if one.startswith("create")] == ["create trainjobs", "create secrets"]


def run_all_writing_calls(cluster, client):
    """Make every call that writes."""
    secret = client.submit(a_request_with_a_token("secret"))
    fetched = client.submit(a_request("fetch", trainer=None, runtime=None, initializer={"dataset": HF}))
    ref = client.submit(a_request())
    client.suspend(ref)
    client.resume(ref)
    client.cancel(ref)
    for each in (ref, secret, fetched):
        client.delete_job(each)
    client.reap()
    return cluster.requests


def test_the_jobs_of_a_search_are_one_list_and_only_the_pods_of_new_ones_that_run_are_read():
    with a_stage("complete", controllers=True) as (cluster, client):
        refs = []
        for number in range(2):
            entry = SearchEntry(key="search/tune", entry=number, definition={"search_space": {}})
            labels = {SEARCH_LABEL: hash_owner_key("search/tune")}
            refs.append(
                client.submit(a_request(f"tune-{number}", search=entry.model_dump(), metadata={"labels": labels}))
            )
        client.submit(a_request("other"))
        client.wait(refs[0])  # It records the outcome.
        cluster.forget_requests()
        found = client.backend.list_search_jobs("search/tune", ())
        assert [found[ref.name][0] for ref in refs] == refs
        assert asked(cluster)[:3] == ["list trainjobs", "list jobs", "list pods"]
        assert cluster.counts["list pods"] == 1
        cluster.forget_requests()
        assert client.backend.list_search_jobs("search/tune", set(found)) == dict.fromkeys(found)
        assert asked(cluster) == ["list trainjobs", "list jobs"]


def test_no_object_is_replaced_and_all_writes_use_strict_validation():
    with a_stage("runs") as (cluster, client):
        requests = run_all_writing_calls(cluster, client)
    assert {request.method for request in requests} == {"GET", "POST", "PATCH", "DELETE"}
    writes = [request for request in requests if request.verb in ("create", "patch")]
    assert {request.query.get("fieldValidation") for request in writes} == {"Strict"}
    assert {request.query.get("fieldManager") for request in writes} == {"trainjob-workflows"}


def test_changes_are_merge_patches():
    with a_stage("runs") as (cluster, client):
        requests = run_all_writing_calls(cluster, client)
    assert {request.type for request in requests if request.method == "PATCH"} == {"application/merge-patch+json"}


def test_only_trainjobs_and_jobs_are_deleted():
    with a_stage("runs") as (cluster, client):
        requests = run_all_writing_calls(cluster, client)
    deleted = [one.path for one in requests if one.method == "DELETE"]
    assert {path.split("/")[-2] for path in deleted} == {resources.TRAINJOBS.plural, resources.JOBS.plural}


def test_every_request_has_the_user_agent(stage):
    cluster, client = stage
    finished(client, client.submit(a_request()))
    assert {request.agent.partition("/")[0] for request in cluster.requests} == {"trainjob-workflows"}
