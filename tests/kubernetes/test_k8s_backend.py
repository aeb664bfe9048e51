"""One request, one TrainJob: whoever submits it, however often, whatever breaks meanwhile."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from k8s_crds import needs_crds
from k8s_scene import CONTAINER, HF, a_client, a_request, a_stage, finished, until_the_next_second

from trainer_core import Name
from trainer_core.cluster import kinds, marks
from trainer_core.errors import BackendUnavailableError, ConflictError, JobNotFoundError, RuntimeNotFoundError
from trainer_core.request import RuntimeRef, TrainJobRequest

pytestmark = needs_crds
OWNER = {"key": "dag/run/task", "slug": "digits"}
SHARED = RuntimeRef(name="python", kind="ClusterTrainingRuntime")
POD = {"containers": [{"name": "node", "image": "x"}]}
#: What kubectl, or another SDK, would create.
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


def test_what_is_rendered_is_what_is_created(stage):
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


def test_the_request_is_read_back_from_the_cluster_as_it_was_given(stage):
    cluster, client = stage
    request = a_request(metadata={"labels": {"team": "vision"}, "annotations": {"note": "näher"}})
    ref = client.submit(request)
    assert a_client(cluster).backend.request(ref) == request


def test_twenty_submitters_of_one_request_make_one_job(stage):
    cluster, client = stage
    clients = [client, *(a_client(cluster) for _ in range(3))]
    with ThreadPoolExecutor(20) as pool:
        refs = list(pool.map(lambda number: clients[number % 4].submit(a_request()), range(20)))
    assert len(set(refs)) == 1
    assert names(cluster) == ["job"]


def test_twenty_tries_of_one_owner_make_one_job(stage):
    cluster, client = stage
    with ThreadPoolExecutor(20) as pool:
        refs = list(pool.map(lambda _: client.submit(owned()), range(20)))
    assert len({ref.uid for ref in refs}) == 1
    assert len(names(cluster)) == 1


def test_another_request_of_that_name_is_refused(stage):
    _, client = stage
    client.submit(a_request())
    with pytest.raises(ConflictError, match="'job' exists with another request"):
        client.submit(a_request(trainer={**CONTAINER, "num_nodes": 2}))


def test_of_many_different_requests_of_one_name_one_is_taken(stage):
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
def test_a_job_that_others_made_is_never_taken(stage, request_of_ours):
    cluster, client = stage
    cluster.add(FOREIGN)
    with pytest.raises(ConflictError, match=r"'job' .*choose another name") as refused:
        client.submit(request_of_ours)
    assert "None" not in str(refused.value)


def test_a_job_that_others_made_can_be_looked_at_waited_for_and_deleted(stage):
    cluster, client = stage
    cluster.lives.set("*", "complete")
    cluster.add(FOREIGN)
    assert client.wait("job", timeout=60).succeeded
    assert client.get_job("job").runtime.name == "python"
    client.delete_job("job")
    assert names(cluster) == []


@pytest.mark.parametrize(
    "fault", [{"reset": True}, {"status": 503}, {"status": 429, "retry_after": 0.01}, {"status": 500, "after": True}]
)
def test_a_create_that_breaks_is_tried_again(stage, fault):
    cluster, client = stage
    cluster.faults.next(method="POST", path="/trainjobs", **fault)
    ref = client.submit(a_request())
    assert cluster.get("TrainJob", "job")["metadata"]["uid"] == ref.uid


def test_an_answer_that_is_lost_after_the_job_was_created_leads_to_that_job(stage):
    cluster, client = stage
    cluster.faults.next(method="POST", path="/trainjobs", reset=True, after=True)
    ref = client.submit(a_request())
    assert [job["metadata"]["uid"] for job in cluster.objects("TrainJob")] == [ref.uid]
    assert cluster.counts["create trainjobs"] == 2


def test_a_submitter_who_never_hears_of_its_job_leaves_it_to_the_next_one(stage):
    cluster, client = stage
    cluster.faults.next(method="POST", path="/trainjobs", reset=True, after=True)
    cluster.faults.next(method="POST", path="/trainjobs", status=401)
    with pytest.raises(BackendUnavailableError):
        client.submit(a_request())
    ref = a_client(cluster).submit(a_request())
    assert [job["metadata"]["uid"] for job in cluster.objects("TrainJob")] == [ref.uid]


def add_to_the_namespace(cluster) -> None:
    mine = cluster.get(kinds.CLUSTER_TRAINING_RUNTIMES, "python")
    mine["kind"], mine["metadata"] = "TrainingRuntime", {"name": "python", "labels": mine["metadata"]["labels"]}
    cluster.add(mine)


class Meanwhile:
    """Does something on the cluster, once, just before the backend creates."""

    def __init__(self, backend, action) -> None:
        self._create = backend.create
        self._actions = [action]
        backend.create = self

    def __call__(self, request, attempt):
        while self._actions:
            self._actions.pop()()
        return self._create(request, attempt)


def test_a_name_that_another_submitter_takes_meanwhile_is_attached_to(stage):
    cluster, client = stage
    Meanwhile(client.backend, lambda: a_client(cluster).submit(a_request()))
    ref = client.submit(a_request())
    assert [job["metadata"]["uid"] for job in cluster.objects("TrainJob")] == [ref.uid]


def test_a_name_that_a_stranger_takes_meanwhile_is_refused(stage):
    cluster, client = stage
    Meanwhile(client.backend, lambda: cluster.add(FOREIGN))
    with pytest.raises(ConflictError):
        client.submit(a_request())


def test_a_job_that_is_deleted_while_it_is_attached_to_is_made_anew(stage):
    cluster, client = stage
    first = client.submit(a_request())
    find = client.backend.find

    def find_and_lose(request):
        found = find(request)
        client.backend.find = find
        client.backend.delete(first)
        return found

    client.backend.find = find_and_lose
    second = client.submit(a_request())
    assert second.uid != first.uid
    assert cluster.get("TrainJob", "job")["metadata"]["uid"] == second.uid


def test_a_ref_is_of_one_job_and_of_no_later_one_with_its_name(stage):
    _, client = stage
    first = client.submit(a_request())
    client.delete_job("job")
    second = client.submit(a_request())
    with pytest.raises(JobNotFoundError, match="belongs to another job now"):
        client.observe(first)
    client.cancel(first)
    client.suspend(second)
    client.backend.delete(first)
    assert client.get_job("job").status == "Suspended"


def test_pods_that_an_earlier_job_of_that_name_left_are_not_its_own():
    labels = {"jobset.sigs.k8s.io/jobset-name": "job", "jobset.sigs.k8s.io/replicatedjob-name": "node"}
    metadata = {"name": "job-node-0-0-older", "labels": labels}
    with a_stage(controllers=False) as (cluster, client):
        cluster.add({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": POD})
        until_the_next_second(cluster)
        ref = client.submit(a_request())
        with client.follow(ref) as follower:
            follower.look(60)
            shown = [client.get_job("job"), *client.list_jobs(), follower.job()]
    assert [job.steps[0].pod_name for job in shown] == ["", "", ""]


def test_a_retry_after_a_failure_is_the_next_attempt(stage):
    cluster, client = stage
    first = client.submit(owned())
    client.cancel(first)
    second = client.submit(owned())
    assert second.name == f"{first.name}-1"
    assert cluster.get("TrainJob", second.name)["metadata"]["annotations"][marks.ATTEMPT] == "1"


def test_a_complete_job_is_handed_over_and_not_run_again(stage):
    cluster, client = stage
    cluster.lives.set("*", "complete")
    first = client.submit(owned())
    finished(client, first)
    assert a_client(cluster).submit(owned()) == first


def test_a_task_that_was_cleared_ends_its_old_job_and_runs_anew(stage):
    cluster, client = stage
    first = client.submit(owned("1"))
    second = client.submit(owned("2"))
    assert second != first
    assert client.outcome(first).diagnosis.reason == "it was cancelled"
    assert len(names(cluster)) == 2


def test_a_retry_that_asks_for_something_else_goes_on_with_its_job_and_says_so(stage, caplog):
    _, client = stage
    first = client.submit(owned())
    with caplog.at_level(logging.WARNING):
        assert client.submit(owned(trainer={**CONTAINER, "num_nodes": 2})) == first
    assert "trainer.num_nodes" in caplog.text


def test_owners_are_found_by_their_whole_key(stage):
    cluster, client = stage
    keys = [f"{'x' * 990}/{number}" for number in range(2)]
    refs = {client.submit(a_request(None, owner={"key": key, "slug": "digits"})) for key in keys}
    labels = {job["metadata"]["labels"][marks.OWNER] for job in cluster.objects("TrainJob")}
    assert (len(refs), len(labels)) == (2, 2)


def test_a_runtime_that_is_not_there_is_refused_with_those_that_are(stage):
    cluster, client = stage
    with pytest.raises(RuntimeNotFoundError, match=r"no runtime 'torhc'.*there are fetches, python, torch-distributed"):
        client.submit(a_request(runtime="torhc"))
    assert names(cluster) == []


def test_a_runtime_of_the_namespace_goes_before_one_of_the_cluster(stage):
    cluster, client = stage
    add_to_the_namespace(cluster)
    client.submit(a_request())
    assert cluster.get("TrainJob", "job")["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"


def test_a_runtime_that_is_named_with_its_kind_is_that_one(stage):
    cluster, client = stage
    add_to_the_namespace(cluster)
    client.train(client.get_runtime("python"), options=[Name("mine")])
    client.submit(a_request("shared").model_copy(update={"runtime": SHARED}))
    kinds_used = {job["metadata"]["name"]: job["spec"]["runtimeRef"]["kind"] for job in cluster.objects("TrainJob")}
    assert kinds_used == {"mine": "TrainingRuntime", "shared": "ClusterTrainingRuntime"}


def test_what_is_only_fetched_is_a_job_with_a_claim_that_stays(stage):
    cluster, client = stage
    cluster.lives.set("*", "process")
    ref = client.submit(a_request("fetch", runtime=None, trainer=None, initializer={"dataset": HF}))
    assert finished(client, ref).result == {"dataset": "pvc://fetch/dataset"}
    client.backend.delete(ref)
    assert cluster.get("PersistentVolumeClaim", "fetch") is not None


def test_a_claim_that_was_made_for_a_job_that_was_refused_is_taken_back(stage):
    cluster, client = stage
    cluster.forbid("create", "jobs")
    with pytest.raises(BackendUnavailableError):
        client.submit(a_request("fetch", runtime=None, trainer=None, initializer={"dataset": HF}))
    assert cluster.get("PersistentVolumeClaim", "fetch") is None


def test_a_claim_that_was_there_is_used_and_left(stage):
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
