"""Submitting to a simulated cluster: one request creates one TrainJob, despite concurrency and faults."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from k8s_scene import CONTAINER, HF, a_client, a_request, a_stage, finished, until_the_next_second

from trainer_core import Name, TrainerClient
from trainer_core.base.errors import (
    BackendUnavailableError,
    ConflictError,
    RuntimeNotFoundError,
    TrainerError,
)
from trainer_core.k8s import labels, resources
from trainer_core.model.request import RuntimeRef, TrainJobRequest

OWNER = {"key": "dag/run/task", "slug": "digits"}
SHARED = RuntimeRef(name="python", kind="ClusterTrainingRuntime")
POD = {"containers": [{"name": "node", "image": "x"}]}
#: A TrainJob as kubectl or another SDK creates it.
FOREIGN = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "job"},
    "spec": {"runtimeRef": {"name": "python"}},
}


@pytest.fixture
def stage():
    with a_stage("runs") as made:
        yield made


def owned(generation: str | None = None, **fields) -> TrainJobRequest:
    return a_request(None, owner={**OWNER, "generation": generation}, **fields)


def names(cluster) -> list[str]:
    return [job["metadata"]["name"] for job in cluster.objects("TrainJob")]


def test_the_rendered_manifest_is_created(stage):
    cluster, client = stage
    rendered = client.render(a_request())
    client.submit(a_request())
    created = cluster.get("TrainJob", "job")
    assert {**created["metadata"], **rendered["metadata"]} == created["metadata"]
    assert {**created["spec"], **rendered["spec"]} == created["spec"]


def test_rendering_creates_nothing(stage):
    cluster, client = stage
    client.render(a_request())
    assert {request.method for request in cluster.requests} == {"GET"}


def test_a_cleared_task_whose_new_definition_is_refused_keeps_its_old_job(stage):
    _, client = stage
    first = client.submit(owned("1"))
    with pytest.raises(RuntimeNotFoundError, match="nowhere"):
        client.submit(owned("2", runtime={"name": "nowhere"}))
    assert client.observe(first).outcome is None


def test_twenty_concurrent_submits_of_one_owner_create_one_job(stage):
    cluster, client = stage
    with ThreadPoolExecutor(20) as pool:
        refs = list(pool.map(lambda _: client.submit(owned()), range(20)))
    assert len({ref.uid for ref in refs}) == 1
    assert len(names(cluster)) == 1


def test_one_of_many_different_requests_of_one_name_is_created(stage):
    cluster, client = stage

    def submit(nodes: int) -> str:
        try:
            return client.submit(a_request(trainer={**CONTAINER, "num_nodes": nodes})).uid
        except ConflictError:
            return "refused"

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(submit, range(1, 9)))
    assert (results.count("refused"), len(names(cluster))) == (7, 1)


@pytest.mark.parametrize("request_of_ours", [a_request(), a_request(owner=OWNER)], ids=["by name", "of an owner"])
def test_a_job_of_another_tool_is_never_attached_to(stage, request_of_ours):
    cluster, client = stage
    cluster.add(FOREIGN)
    with pytest.raises(ConflictError, match=r"'job' .*choose another name") as refused:
        client.submit(request_of_ours)
    assert "None" not in str(refused.value)


def test_a_job_of_another_tool_can_be_read_waited_for_and_deleted(stage):
    cluster, client = stage
    cluster.lives.set("*", "complete")
    cluster.add(FOREIGN)
    assert client.wait("job", timeout=300).succeeded
    assert client.get_job("job").runtime.name == "python"
    client.delete_job("job")
    assert names(cluster) == []


@pytest.mark.parametrize(
    "fault", [{"reset": True}, {"status": 503}, {"status": 429, "retry_after": 0.01}, {"status": 500, "after": True}]
)
def test_a_failed_create_request_is_retried(stage, fault):
    cluster, client = stage
    cluster.faults.next(method="POST", path="/trainjobs", **fault)
    ref = client.submit(a_request())
    assert cluster.get("TrainJob", "job")["metadata"]["uid"] == ref.uid


def test_a_lost_response_to_create_attaches_to_the_created_job(stage):
    cluster, client = stage
    cluster.faults.next(method="POST", path="/trainjobs", reset=True, after=True)
    ref = client.submit(a_request())
    assert [job["metadata"]["uid"] for job in cluster.objects("TrainJob")] == [ref.uid]
    assert cluster.counts["create trainjobs"] == 2


def test_the_next_submit_attaches_to_a_job_whose_submitter_got_no_response(stage):
    cluster, client = stage
    cluster.faults.next(method="POST", path="/trainjobs", reset=True, after=True)
    cluster.faults.next(method="POST", path="/trainjobs", status=401)
    with pytest.raises(BackendUnavailableError):
        client.submit(a_request())
    ref = a_client(cluster).submit(a_request())
    assert [job["metadata"]["uid"] for job in cluster.objects("TrainJob")] == [ref.uid]


#: More answers than one request repeats by itself.
AWAY = {"method": "POST", "path": "/trainjobs", "status": 503, "retry_after": 0.01, "times": 7}


def test_a_submit_is_repeated_while_the_api_server_is_away(stage, monkeypatch, caplog):
    cluster, client = stage
    monkeypatch.setenv("TRAINJOB_SUBMIT_RETRY_SECONDS", "60")
    cluster.faults.next(**AWAY)
    ref = client.submit(a_request())
    assert [job["metadata"]["uid"] for job in cluster.objects("TrainJob")] == [ref.uid]
    assert [each.message for each in caplog.records if "is repeated for" in each.message] != []


def test_a_submit_that_is_not_to_be_repeated_fails_at_once(stage, monkeypatch):
    cluster, client = stage
    monkeypatch.setenv("TRAINJOB_SUBMIT_RETRY_SECONDS", "0")
    cluster.faults.next(**AWAY)
    with pytest.raises(BackendUnavailableError):
        client.submit(a_request())


def test_a_client_without_patience_sends_a_submit_once(stage, monkeypatch, caplog):
    cluster, client = stage
    monkeypatch.delenv("TRAINJOB_SUBMIT_RETRY_SECONDS")
    cluster.faults.next(**AWAY)
    with pytest.raises(BackendUnavailableError):
        TrainerClient(client.config, retry_seconds=0).submit(a_request())
    assert [each.message for each in caplog.records if "is repeated for" in each.message] == []


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
def test_the_patience_of_a_client_must_be_a_number_of_seconds(stage, seconds):
    with pytest.raises(ValueError, match=r"^retry_seconds must be a number of seconds, at least 0, got"):
        TrainerClient(stage[1].config, retry_seconds=seconds)


def test_a_refused_submit_is_not_repeated(stage, monkeypatch, caplog):
    cluster, client = stage
    monkeypatch.setenv("TRAINJOB_SUBMIT_RETRY_SECONDS", "60")
    cluster.faults.next(method="POST", path="/trainjobs", status=403)
    with pytest.raises(TrainerError, match="forbidden"):
        client.submit(a_request())
    assert caplog.records == []


def test_the_time_to_repeat_a_submit_must_be_a_number_of_seconds(stage, monkeypatch):
    monkeypatch.setenv("TRAINJOB_SUBMIT_RETRY_SECONDS", "soon")
    with pytest.raises(ValueError, match="TRAINJOB_SUBMIT_RETRY_SECONDS must be a number of seconds"):
        stage[1].submit(a_request())


def add_to_the_namespace(cluster) -> None:
    mine = cluster.get(resources.CLUSTER_TRAINING_RUNTIMES, "python")
    mine["kind"], mine["metadata"] = "TrainingRuntime", {"name": "python", "labels": mine["metadata"]["labels"]}
    cluster.add(mine)


class Meanwhile:
    """Call a function once, just before the backend creates a job."""

    def __init__(self, backend, action) -> None:
        self._create = backend.create
        self._actions = [action]
        backend.create = self

    def __call__(self, prepared):
        while self._actions:
            self._actions.pop()()
        return self._create(prepared)


def test_a_job_created_concurrently_by_the_same_request_is_attached_to(stage):
    cluster, client = stage
    Meanwhile(client.backend, lambda: a_client(cluster).submit(a_request()))
    ref = client.submit(a_request())
    assert [job["metadata"]["uid"] for job in cluster.objects("TrainJob")] == [ref.uid]


def test_a_name_taken_concurrently_by_another_tool_is_refused(stage):
    cluster, client = stage
    Meanwhile(client.backend, lambda: cluster.add(FOREIGN))
    with pytest.raises(ConflictError):
        client.submit(a_request())


def test_a_job_deleted_during_attach_is_created_again(stage):
    cluster, client = stage
    first = client.submit(a_request())
    find = client.backend.find_jobs

    def find_and_lose(request):
        found = find(request)
        client.backend.find_jobs = find
        client.delete_job(first)
        return found

    client.backend.find_jobs = find_and_lose
    second = client.submit(a_request())
    assert second.uid != first.uid
    assert cluster.get("TrainJob", "job")["metadata"]["uid"] == second.uid


def test_pods_of_an_earlier_job_of_the_same_name_are_ignored():
    pod_labels = {"jobset.sigs.k8s.io/jobset-name": "job", "jobset.sigs.k8s.io/replicatedjob-name": "node"}
    metadata = {"name": "job-node-0-0-older", "labels": pod_labels}
    with a_stage(controllers=False) as (cluster, client):
        cluster.add({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": POD})
        until_the_next_second(cluster)
        ref = client.submit(a_request())
        with client.follow(ref) as follower:
            follower.next_observation(60)
            shown = [client.get_job("job"), *client.list_jobs(), follower.get_job()]
    assert [job.steps[0].pod_name for job in shown] == ["", "", ""]


@pytest.fixture
def lost_pod():
    """A cluster whose pods never end, because their node is lost, a client of it, and a running job of a task."""
    with a_stage(controllers=False) as (cluster, client):
        ref = client.submit(owned("1"))
        pod_labels = {"jobset.sigs.k8s.io/jobset-name": ref.name, "jobset.sigs.k8s.io/replicatedjob-name": "node"}
        metadata = {"name": "on-a-lost-node", "labels": pod_labels}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": POD, "status": {"phase": "Running"}}
        cluster.add(pod)
        yield cluster, client, ref


def test_the_next_attempt_starts_beside_a_pod_that_has_not_ended_within_the_limit(lost_pod, caplog):
    _, client, first = lost_pod
    client.backend.max_end_seconds = 0.1
    with caplog.at_level(logging.INFO):
        assert client.submit(owned("2")) != first
    waits, gives_up = [text for text in caplog.messages if "on-a-lost-node" in text]
    assert waits == f"waiting up to 0 s for the end of TrainJob {first.name!r}: on-a-lost-node"
    assert "has not ended in 0 s, and the next attempt starts beside it; check on-a-lost-node" in gives_up


def test_the_next_attempt_starts_at_once_where_the_role_denies_to_read_pods(lost_pod, caplog):
    cluster, client, first = lost_pod
    cluster.forbid("*", "pods")
    assert client.submit(owned("2")) != first
    assert "Pods cannot be read" in caplog.text
    assert "waiting up to" not in caplog.text


def test_owners_are_matched_by_their_complete_key(stage):
    cluster, client = stage
    keys = [f"{'x' * 990}/{number}" for number in range(2)]
    refs = {client.submit(a_request(None, owner={"key": key, "slug": "digits"})) for key in keys}
    owners = {job["metadata"]["labels"][labels.OWNER] for job in cluster.objects("TrainJob")}
    assert (len(refs), len(owners)) == (2, 2)


def test_an_unknown_runtime_is_refused_in_one_line_where_a_kind_of_runtime_cannot_be_listed(stage, caplog):
    """As with the role of KFP's steps in deploy/rbac.yaml."""
    cluster, client = stage
    cluster.forbid("list", "trainingruntimes")
    with pytest.raises(RuntimeNotFoundError) as refused:
        client.submit(a_request(runtime="torhc"))
    available = "fetches, python, torch-distributed (TrainingRuntimes cannot be listed by this role)"
    assert str(refused.value).endswith(f"available: {available}")
    assert caplog.messages == []


def test_a_training_runtime_takes_precedence_over_a_cluster_training_runtime(stage):
    cluster, client = stage
    add_to_the_namespace(cluster)
    client.submit(a_request())
    assert cluster.get("TrainJob", "job")["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"


def test_a_runtime_can_be_selected_by_kind(stage):
    cluster, client = stage
    add_to_the_namespace(cluster)
    client.train(client.get_runtime("python"), options=[Name("mine")])
    client.submit(a_request("shared").with_fields(runtime=SHARED))
    kinds_used = {job["metadata"]["name"]: job["spec"]["runtimeRef"]["kind"] for job in cluster.objects("TrainJob")}
    assert kinds_used == {"mine": "TrainingRuntime", "shared": "ClusterTrainingRuntime"}


def test_an_initialize_only_request_creates_a_job_and_a_claim_that_is_kept(stage):
    cluster, client = stage
    cluster.lives.set("*", "process")
    ref = client.submit(a_request("fetch", runtime=None, trainer=None, initializer={"dataset": HF}))
    assert finished(client, ref).result == {"dataset": "pvc://fetch/dataset"}
    client.delete_job(ref)
    assert cluster.get("PersistentVolumeClaim", "fetch") is not None


def test_the_claim_of_a_rejected_job_is_deleted_again(stage):
    cluster, client = stage
    cluster.forbid("create", "jobs")
    with pytest.raises(BackendUnavailableError):
        client.submit(a_request("fetch", runtime=None, trainer=None, initializer={"dataset": HF}))
    assert cluster.get("PersistentVolumeClaim", "fetch") is None


def test_an_existing_claim_is_used_and_kept(stage):
    cluster, client = stage
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": {}}
    cluster.add(claim)
    cluster.forbid("create", "jobs")
    fetch = a_request(
        "fetch", runtime=None, trainer=None, initializer={"dataset": HF}, workspace={"claim": "data", "size": "1Gi"}
    )
    with pytest.raises(BackendUnavailableError):
        client.submit(fetch)
    assert cluster.get("PersistentVolumeClaim", "data") is not None
