"""RunaiBackend on the fake cluster: templates, several nodes, failures and missing permissions."""

from __future__ import annotations

import pytest
from fake_cluster import Cluster
from pydantic import SecretStr
from runai_scene import NAMESPACE, build_request, create_client, run_cluster, wait_until

from trainer_core import CustomTrainer, CustomTrainerContainer, Name, RunaiSpec, SecretRef, TrainingWorkloadSpec
from trainer_core.base.errors import BackendUnavailableError, ConflictError, RuntimeNotFoundError
from trainer_core.model.jobs import Category

RESOURCES = ("pods", "pods/log", "events", "distributedworkloads")
NODES = {"kind": "container", "image": "x", "num_nodes": 2}


def return_env(name):
    import os

    return os.environ.get(name)


@pytest.fixture
def stage():
    with run_cluster("complete") as cluster_and_client:
        yield cluster_and_client


def wait_for_end(client, ref):
    return client.wait(ref, timeout=300)


def test_a_workload_is_created_in_the_namespace_of_its_project(stage):
    cluster, client = stage
    wait_for_end(client, client.submit(build_request()))
    (workload,) = cluster.objects("TrainingWorkload")
    assert workload["metadata"]["namespace"] == NAMESPACE
    assert workload["metadata"]["labels"]["project"] == "team-a"


def test_a_secret_is_passed_by_reference():
    with run_cluster() as (cluster, client):
        cluster.add(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "hub", "namespace": NAMESPACE},
                "data": {"token": "czNjcjN0"},
            }
        )
        trainer = CustomTrainer(func=return_env, func_args={"name": "TOKEN"}, env={"TOKEN": SecretRef("hub", "token")})
        ref = client.submit(client.build_request(runtime="python", trainer=trainer, options=[Name("job")]))
        assert wait_for_end(client, ref).result == "s3cr3t"
        assert "s3cr3t" not in str(cluster.get("TrainingWorkload", "job", NAMESPACE)["spec"])


def test_runai_spec_sets_fields_of_the_workload(stage):
    cluster, client = stage
    request = client.build_request(runtime="python", trainer=_container(), options=[Name("job"), RunaiSpec(gpu=0.5)])
    client.submit(request)
    assert cluster.get("TrainingWorkload", "job", NAMESPACE)["spec"]["gpu"] == {"value": "0.5"}


def _container():
    return CustomTrainerContainer(image="registry.local/train:1")


# Templates


def test_a_template_is_created_listed_and_used(stage):
    cluster, client = stage
    spec = TrainingWorkloadSpec(image="registry.local/team:2", node_pools="a100")
    runtime = client.backend.create_template("team", spec, framework="python")
    assert (runtime.name, runtime.trainer.framework, runtime.trainer.image) == (
        "team",
        "python",
        "registry.local/team:2",
    )
    assert "team" in [runtime.name for runtime in client.list_runtimes()]
    wait_for_end(
        client,
        client.submit(build_request(runtime="team", trainer={"kind": "container", "image": "registry.local/a:1"})),
    )
    assert cluster.get("TrainingWorkload", "job", NAMESPACE)["spec"]["baseWorkload"] == "team"


def test_a_template_runs_without_a_trainer(stage):
    cluster, client = stage
    client.backend.create_template("team", TrainingWorkloadSpec(image="registry.local/team:2"))
    assert wait_for_end(client, client.submit(build_request(runtime="team", trainer=None))).succeeded
    (pod,) = cluster.objects("Pod")
    assert pod["spec"]["containers"][0]["image"] == "registry.local/team:2"


def test_a_template_of_all_projects_can_be_used(stage):
    _, client = stage
    client.backend.create_template("shared", TrainingWorkloadSpec(image="x"), shared=True)
    assert client.get_runtime("shared").kind.value == "ClusterTrainingRuntime"


def test_a_template_is_not_listed_as_a_job(stage):
    _, client = stage
    client.backend.create_template("team", TrainingWorkloadSpec(image="x"))
    assert client.list_jobs() == []


def test_a_second_template_of_the_same_name_is_refused(stage):
    _, client = stage
    client.backend.create_template("team", TrainingWorkloadSpec(image="x"))
    with pytest.raises(ConflictError, match="'team' already exists"):
        client.backend.create_template("team", TrainingWorkloadSpec(image="y"))


def test_a_job_is_not_a_runtime(stage):
    _, client = stage
    wait_for_end(client, client.submit(build_request()))
    with pytest.raises(RuntimeNotFoundError, match=r"available: .*python, torch-distributed"):
        client.get_runtime("job")


# Several nodes


def test_a_job_with_several_nodes_is_watched():
    with run_cluster("runs") as (cluster, client):
        ref = client.submit(build_request(trainer=NODES))
        cluster.until(lambda: len(cluster.objects("Pod")) == 2)
        with client.follow(ref) as follower:
            while follower.next_observation(60).status != "Running":
                pass
            # The first list of the reflector may still be in progress.
            cluster.until(lambda: cluster.counts["watch distributedworkloads"])
            cluster.forget_requests()
            client.suspend(ref)
            while follower.next_observation(60).status != "Suspended":
                pass
            assert cluster.counts["list distributedworkloads"] == 0


def test_a_job_with_several_nodes_is_suspended_resumed_cancelled_and_deleted():
    with run_cluster("runs") as (cluster, client):
        ref = client.submit(build_request(trainer=NODES))
        wait_until(client, ref, lambda observation: observation.status == "Running")
        client.suspend(ref)
        cluster.until(lambda: not cluster.objects("Pod"))
        client.resume(ref)
        wait_until(client, ref, lambda observation: observation.status == "Running")
        client.cancel(ref)
        assert client.get_job_outcome(ref).diagnosis.category is Category.DELETED
        client.delete_job("job")
        assert (client.list_jobs(), cluster.objects("DistributedWorkload")) == ([], [])


# Failures


@pytest.mark.parametrize(
    ("life", "category"),
    [
        ("image-pull-error", Category.IMAGE),
        ("pending-unschedulable", Category.SCHEDULING),
        ("oom", Category.OUT_OF_MEMORY),
    ],
)
def test_a_failure_is_diagnosed_from_pods_and_events(life, category):
    with run_cluster(life) as (_, client):
        ref = client.submit(build_request())
        diagnosis = wait_until(client, ref, _get_diagnosis)
    assert diagnosis.category is category


def _get_diagnosis(observation):
    failure = observation.outcome or observation.pending_failure
    return failure.diagnosis if failure else None


def test_a_job_survives_retries_of_its_backoff_limit():
    with run_cluster("fails", "complete") as (cluster, client):
        request = client.build_request(
            runtime="python", trainer=_container(), options=[Name("job"), RunaiSpec(backoff_limit=2)]
        )
        assert wait_for_end(client, client.submit(request)).succeeded
        (step,) = client.get_job("job").steps
        assert (step.restarts, len(cluster.objects("Pod"))) == (1, 2)


def test_a_job_stopped_in_runai_failed():
    with Cluster(namespaces=[NAMESPACE], controllers=False) as cluster:
        client = create_client(cluster)
        ref = client.submit(build_request())
        cluster.update_status("TrainingWorkload", "job", {"phase": "Stopped"}, NAMESPACE)
        assert client.get_job_outcome(ref).diagnosis.reason == "it was stopped in Run:ai"


def test_a_deleted_job_failed():
    with run_cluster("runs") as (cluster, client):
        ref = client.submit(build_request())
        outcome = client.wait(
            ref,
            timeout=300,
            # It may be observed again before the deletion is seen.
            on_observation=lambda _: (
                cluster.objects("TrainingWorkload") and cluster.delete("TrainingWorkload", "job", NAMESPACE)
            ),
        )
        assert outcome.diagnosis.category is Category.DELETED


@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 429, "retry_after": 0}, {"reset": True}])
def test_a_lost_response_creates_no_second_job(stage, fault):
    cluster, client = stage
    cluster.faults.next(method="POST", path="trainingworkloads", after=True, **fault)
    assert wait_for_end(client, client.submit(build_request(owner={"key": "dag/run/task"}, name=None))).succeeded
    assert len(cluster.objects("TrainingWorkload")) == 1


def test_a_cluster_without_runai_is_refused(stage):
    cluster, client = stage
    cluster.faults.next(status=404, path="trainingworkloads", times=9)
    with pytest.raises((BackendUnavailableError, RuntimeNotFoundError)):
        client.submit(build_request())


# Missing permissions


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_job_works_without_access_to_the_resource(stage, resource):
    cluster, client = stage
    cluster.forbid("*", resource)
    ref = client.submit(build_request(owner={"key": "dag/run/task"}, name=None))
    assert wait_for_end(client, ref).succeeded
    assert [job.status for job in client.list_jobs()] == ["Complete"]
    assert client.get_job_events(ref.name)[0].reason == "Created"


def test_the_consequence_of_a_missing_pod_permission_is_logged_once(stage, caplog):
    cluster, client = stage
    cluster.forbid("*", "pods")
    wait_for_end(client, client.submit(build_request()))
    client.get_job("job")
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message.startswith("Pods cannot be read; steps, results, logs and most failure reasons are left out: ")


@pytest.mark.parametrize("verb", ["watch", "list"])
def test_a_job_can_be_waited_for_without_the_verb(stage, verb):
    cluster, client = stage
    cluster.forbid(verb, "trainingworkloads")
    assert wait_for_end(client, client.submit(build_request())).succeeded


def test_built_in_runtimes_work_without_access_to_the_shared_namespace(stage):
    cluster, client = stage
    cluster.forbid("*", "trainingworkloads", "runai")
    assert "python" in [runtime.name for runtime in client.list_runtimes()]
    assert wait_for_end(client, client.submit(build_request())).succeeded


def test_another_client_finds_the_job(stage):
    cluster, client = stage
    ref = client.submit(build_request())
    wait_for_end(client, ref)
    assert create_client(cluster).get_job_outcome(ref).succeeded


def test_a_literal_token_becomes_a_secret_of_the_job():
    with run_cluster() as (cluster, client):
        trainer = CustomTrainer(func=return_env, func_args={"name": "TOKEN"})
        request = client.build_request(runtime="python", trainer=trainer, options=[Name("job")])
        ref = client.submit(request.with_fields(literal_secrets={"trainer.TOKEN": SecretStr("s3cr3t")}))
        assert wait_for_end(client, ref).result == "s3cr3t"
        (secret,) = cluster.objects("Secret", NAMESPACE)
        assert secret["metadata"]["ownerReferences"][0]["uid"] == ref.uid
        assert "s3cr3t" not in str(cluster.get("TrainingWorkload", "job", NAMESPACE)["spec"])
