"""RunaiBackend on the double: templates, several nodes, what goes wrong, and what goes on with fewer rights."""

from __future__ import annotations

import pytest
from fake_cluster import Cluster
from pydantic import SecretStr
from runai_scene import NAMESPACE, a_client, a_request, a_stage, seen

from trainer_core import CustomTrainer, CustomTrainerContainer, Name, RunaiSpec, SecretRef, TrainingWorkloadSpec
from trainer_core.errors import BackendUnavailableError, ConflictError, RuntimeNotFoundError
from trainer_core.outcome import Category

RESOURCES = ("pods", "pods/log", "events", "distributedworkloads")
NODES = {"kind": "container", "image": "x", "num_nodes": 2}


def returns_setting(name):
    import os

    return os.environ.get(name)


@pytest.fixture
def stage():
    with a_stage("complete") as made:
        yield made


def ended(client, ref):
    return client.wait(ref, timeout=60)


def test_a_workload_lives_in_the_namespace_of_its_project(stage):
    cluster, client = stage
    ended(client, client.submit(a_request()))
    (workload,) = cluster.objects("TrainingWorkload")
    assert workload["metadata"]["namespace"] == NAMESPACE
    assert workload["metadata"]["labels"]["project"] == "team-a"


def test_a_secret_travels_by_reference():
    with a_stage() as (cluster, client):
        cluster.add(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "hub", "namespace": NAMESPACE},
                "data": {"token": "czNjcjN0"},
            }
        )
        trainer = CustomTrainer(
            func=returns_setting, func_args={"name": "TOKEN"}, env={"TOKEN": SecretRef("hub", "token")}
        )
        ref = client.submit(client.request(runtime="python", trainer=trainer, options=[Name("job")]))
        assert ended(client, ref).result == "s3cr3t"
        assert "s3cr3t" not in str(cluster.get("TrainingWorkload", "job", NAMESPACE)["spec"])


def test_fields_set_directly_are_those_of_the_workload(stage):
    cluster, client = stage
    request = client.request(runtime="python", trainer=_container(), options=[Name("job"), RunaiSpec(gpu=0.5)])
    client.submit(request)
    assert cluster.get("TrainingWorkload", "job", NAMESPACE)["spec"]["gpu"] == {"value": "0.5"}


def _container():
    return CustomTrainerContainer(image="registry.local/train:1")


# Templates


def test_a_template_is_made_listed_and_used(stage):
    cluster, client = stage
    spec = TrainingWorkloadSpec(image="registry.local/team:2", node_pools="a100")
    made = client.backend.create_template("team", spec, framework="python")
    assert (made.name, made.trainer.framework, made.trainer.image) == ("team", "python", "registry.local/team:2")
    assert "team" in [runtime.name for runtime in client.list_runtimes()]
    ended(
        client, client.submit(a_request(runtime="team", trainer={"kind": "container", "image": "registry.local/a:1"}))
    )
    assert cluster.get("TrainingWorkload", "job", NAMESPACE)["spec"]["baseWorkload"] == "team"


def test_a_template_is_run_as_it_is(stage):
    cluster, client = stage
    client.backend.create_template("team", TrainingWorkloadSpec(image="registry.local/team:2"))
    assert ended(client, client.submit(a_request(runtime="team", trainer=None))).succeeded
    (pod,) = cluster.objects("Pod")
    assert pod["spec"]["containers"][0]["image"] == "registry.local/team:2"


def test_a_template_for_all_projects_is_found(stage):
    _, client = stage
    client.backend.create_template("everyone", TrainingWorkloadSpec(image="x"), shared=True)
    assert client.get_runtime("everyone").kind.value == "ClusterTrainingRuntime"


def test_a_template_is_no_job(stage):
    _, client = stage
    client.backend.create_template("team", TrainingWorkloadSpec(image="x"))
    assert client.list_jobs() == []


def test_a_template_is_made_once(stage):
    _, client = stage
    client.backend.create_template("team", TrainingWorkloadSpec(image="x"))
    with pytest.raises(ConflictError, match="'team' exists"):
        client.backend.create_template("team", TrainingWorkloadSpec(image="y"))


def test_a_name_of_a_job_is_no_runtime(stage):
    _, client = stage
    ended(client, client.submit(a_request()))
    with pytest.raises(RuntimeNotFoundError, match=r"there are .*python, torch-distributed"):
        client.get_runtime("job")


# Several nodes


def test_several_nodes_are_watched_as_one_is():
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request(trainer=NODES))
        cluster.until(lambda: len(cluster.objects("Pod")) == 2)
        with client.backend.follow(ref) as follower:
            while follower.look(60).status != "Running":
                pass
            # The job may have been asked for while the watch of its kind was only beginning.
            cluster.until(lambda: cluster.counts["watch distributedworkloads"])
            cluster.forget_requests()
            client.backend.suspend(ref)
            while follower.look(60).status != "Suspended":
                pass
            assert cluster.counts["list distributedworkloads"] == 0


def test_several_nodes_are_suspended_resumed_cancelled_and_deleted():
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request(trainer=NODES))
        seen(client, ref, lambda look: look.status == "Running")
        client.suspend(ref)
        cluster.until(lambda: not cluster.objects("Pod"))
        client.resume(ref)
        seen(client, ref, lambda look: look.status == "Running")
        client.cancel(ref)
        assert client.outcome(ref).diagnosis.category is Category.DELETED
        client.delete_job("job")
        assert (client.list_jobs(), cluster.objects("DistributedWorkload")) == ([], [])


# What goes wrong


@pytest.mark.parametrize(
    ("life", "category"),
    [
        ("image-pull-error", Category.IMAGE),
        ("pending-unschedulable", Category.SCHEDULING),
        ("oom", Category.OUT_OF_MEMORY),
    ],
)
def test_what_is_wrong_is_explained_by_pods_and_events(life, category):
    with a_stage(life) as (_, client):
        ref = client.submit(a_request())
        diagnosis = seen(client, ref, _diagnosis)
    assert diagnosis.category is category


def _diagnosis(look):
    wrong = look.outcome or look.trouble
    return wrong.diagnosis if wrong else None


def test_retries_of_its_own_are_borne():
    with a_stage("fails", "complete") as (cluster, client):
        request = client.request(
            runtime="python", trainer=_container(), options=[Name("job"), RunaiSpec(backoff_limit=2)]
        )
        assert ended(client, client.submit(request)).succeeded
        (step,) = client.get_job("job").steps
        assert (step.restarts, len(cluster.objects("Pod"))) == (1, 2)


def test_what_others_stop_has_failed():
    with Cluster(namespaces=[NAMESPACE], controllers=False) as cluster:
        client = a_client(cluster)
        ref = client.submit(a_request())
        cluster.update_status("TrainingWorkload", "job", {"phase": "Stopped"}, NAMESPACE)
        assert client.outcome(ref).diagnosis.reason == "it was stopped in Run:ai"


def test_what_others_delete_has_failed():
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        outcome = client.wait(
            ref, timeout=60, on_observation=lambda _: cluster.delete("TrainingWorkload", "job", NAMESPACE)
        )
        assert outcome.diagnosis.category is Category.DELETED


@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 429, "retry_after": 0}, {"reset": True}])
def test_a_server_that_is_away_for_a_moment_makes_no_second_job(stage, fault):
    cluster, client = stage
    cluster.faults.next(method="POST", path="trainingworkloads", after=True, **fault)
    assert ended(client, client.submit(a_request(owner={"key": "dag/run/task"}, name=None))).succeeded
    assert len(cluster.objects("TrainingWorkload")) == 1


def test_a_cluster_without_runai_says_so(stage):
    cluster, client = stage
    cluster.faults.next(status=404, path="trainingworkloads", times=9)
    with pytest.raises((BackendUnavailableError, RuntimeNotFoundError)):
        client.submit(a_request())


# Fewer rights


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_job_is_submitted_waited_for_and_looked_at_without(stage, resource):
    cluster, client = stage
    cluster.forbid("*", resource)
    ref = client.submit(a_request(owner={"key": "dag/run/task"}, name=None))
    assert ended(client, ref).succeeded
    assert [job.status for job in client.list_jobs()] == ["Complete"]
    assert client.get_job_events(ref.name)[0].reason == "Created"


def test_what_a_role_without_pods_costs_is_said_once(stage, caplog):
    cluster, client = stage
    cluster.forbid("*", "pods")
    ended(client, client.submit(a_request()))
    client.get_job("job")
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith("steps, results, logs and most reasons of failures are left out: ")


@pytest.mark.parametrize("verb", ["watch", "list"])
def test_where_workloads_may_only_be_got_one_job_is_still_waited_for(stage, verb):
    cluster, client = stage
    cluster.forbid(verb, "trainingworkloads")
    assert ended(client, client.submit(a_request())).succeeded


def test_without_the_shared_namespace_built_in_runtimes_serve(stage):
    cluster, client = stage
    cluster.forbid("*", "trainingworkloads", "runai")
    assert "python" in [runtime.name for runtime in client.list_runtimes()]
    assert ended(client, client.submit(a_request())).succeeded


def test_another_process_finds_the_job(stage):
    cluster, client = stage
    ref = client.submit(a_request())
    ended(client, ref)
    assert a_client(cluster).outcome(ref).succeeded


def test_a_token_that_is_given_as_text_becomes_a_secret_of_the_job():
    with a_stage() as (cluster, client):
        trainer = CustomTrainer(func=returns_setting, func_args={"name": "TOKEN"})
        request = client.request(runtime="python", trainer=trainer, options=[Name("job")])
        ref = client.submit(request.model_copy(update={"literal_secrets": {"trainer.TOKEN": SecretStr("s3cr3t")}}))
        assert ended(client, ref).result == "s3cr3t"
        (secret,) = cluster.objects("Secret", NAMESPACE)
        assert secret["metadata"]["ownerReferences"][0]["uid"] == ref.uid
        assert "s3cr3t" not in str(cluster.get("TrainingWorkload", "job", NAMESPACE)["spec"])
