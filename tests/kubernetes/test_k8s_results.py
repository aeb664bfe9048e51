"""What a job prints, reports and leaves, as it comes back from a cluster."""

from __future__ import annotations

import threading

import pytest
from k8s_crds import needs_crds
from k8s_scene import (
    CONTAINER,
    IMAGE,
    a_request,
    a_stage,
    condition,
    finished,
    seen,
    until_ended,
    until_the_next_second,
)

from trainer_core import CustomTrainer, Name
from trainer_core.errors import InvalidRequestError, JobFailedError
from trainer_core.inside.progress import PREFIX
from trainer_core.observation import Progress
from trainer_core.testing.functions import returns

pytestmark = needs_crds


@pytest.fixture
def stage():
    """Jobs are processes of this machine."""
    with a_stage(backoff=0.01, backoff_limit=2) as made:
        yield made


def pods(cluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in cluster.objects("pods")]


# Packages of a runtime.


def test_packages_of_a_runtime_are_those_that_a_function_finds_there(stage):
    cluster, client = stage
    found = client.get_runtime_packages(client.get_runtime("python"))
    assert any(package.startswith("pip==") for package in found)
    assert found == sorted(found, key=str.lower)
    assert cluster.objects("TrainJob") == []


def test_a_runtime_with_a_recipe_of_its_own_has_no_packages_to_ask_for():
    with a_stage() as (cluster, client):
        cluster.load_stock_runtimes()
        with pytest.raises(ValueError, match=r"'torchtune-llama3\.2-1b' takes no function"):
            client.get_runtime_packages(client.get_runtime("torchtune-llama3.2-1b"))
        assert cluster.objects("TrainJob") == []


def test_asking_for_packages_leaves_nothing_behind_where_it_fails():
    with a_stage("crash-loop", backoff_limit=1) as (cluster, client):
        with pytest.raises(JobFailedError):
            client.get_runtime_packages(client.get_runtime("python"))
        assert cluster.objects("TrainJob") == []


# Results.


def test_the_result_of_a_function_comes_back_whole(stage):
    _, client = stage
    result = {"text": "näher 🙂", "numbers": [1, 2.5, None]}
    name = client.train("python", trainer=CustomTrainer(returns, {"value": result}), options=[Name("job")])
    outcome = finished(client, client.ref(name))
    assert (outcome.result, outcome.result_truncated) == (result, False)


def test_a_result_larger_than_a_cluster_carries_fails_nothing_and_says_so(stage):
    _, client = stage
    trainer = CustomTrainer(returns, {"value": {"text": "x" * 5000, "loss": 0.25}})
    outcome = finished(client, client.ref(client.train("python", trainer=trainer, options=[Name("job")])))
    assert (outcome.succeeded, outcome.result_truncated) == (True, True)


def test_a_container_that_leaves_no_record_is_complete_without_a_result(stage):
    cluster, client = stage
    cluster.images[IMAGE] = "print('trained')"
    outcome = finished(client, client.submit(a_request()))
    assert (outcome.succeeded, outcome.result) == (True, None)


# Progress.


def test_progress_that_trainer_was_told_of_is_shown():
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        seen(client, ref, lambda look: look.status == "Running")
        metrics = [{"name": "loss", "value": "0.5"}, {"name": "note", "value": "so so"}]
        status = {"progressPercentage": 40, "metrics": metrics, "lastUpdatedTime": "2026-11-20T10:00:00Z"}
        cluster.update("TrainJob", "job", lambda raw: raw["status"].update(trainerStatus=status))
        progress = client.observe(ref).progress
        assert progress == Progress(40, 100, {"loss": 0.5})
        assert client.get_job("job").progress == progress


def test_progress_that_was_printed_is_shown_while_the_job_runs():
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        seen(client, ref, lambda look: look.status == "Running")
        (pod,) = pods(cluster)
        cluster.write_log(pod, f'{PREFIX}{{"step": 3, "total": 10, "metrics": {{"loss": 0.5}}}}', "and more")
        assert client.observe(ref).progress == Progress(3, 10, {"loss": 0.5})


# Logs.


def test_each_node_has_its_log():
    with a_stage("complete") as (cluster, client):
        client.submit(a_request(trainer={**CONTAINER, "num_nodes": 2}))
        until_ended(cluster)
        for pod in pods(cluster):
            cluster.write_log(pod, f"at {pod.split('-')[3]}")
        logs = [list(client.get_job_logs("job", step)) for step in ("node-0", "node-1")]
    assert logs == [["epoch 1", "epoch 2", "at 0"], ["epoch 1", "epoch 2", "at 1"]]


def test_a_step_that_is_not_there_is_refused_with_those_that_are():
    with a_stage("runs") as (_, client):
        client.submit(a_request(trainer={**CONTAINER, "num_nodes": 2}))
        with pytest.raises(InvalidRequestError, match="no step 'node-2'; it has node-0, node-1"):
            client.get_job_logs("job", "node-2")


def test_what_was_printed_before_a_crash_comes_first():
    with a_stage("crash-loop", delay=None) as (cluster, client):
        client.submit(a_request())
        cluster.until(lambda: cluster.objects("pods"))
        for _ in range(5):
            cluster.tick()
        (pod,) = pods(cluster)
        cluster.write_log(pod, "second run")
        assert list(client.get_job_logs("job")) == ["epoch 1", "epoch 1", "second run"]


def test_the_log_of_a_pod_that_was_replaced_and_is_kept_comes_before_the_next():
    with a_stage("evicted", "complete", delay=None) as (cluster, client):
        client.submit(a_request())
        cluster.until(lambda: cluster.objects("pods"))
        cluster.tick()
        until_the_next_second(cluster)
        cluster.until(lambda: cluster.tick() == 0 and condition(cluster, "job", "Complete"))
        assert list(client.get_job_logs("job")) == ["it runs", "epoch 1", "epoch 2"]


def test_a_followed_log_ends_with_its_job_and_has_every_line_once():
    with a_stage("runs", grace=0.05) as (cluster, client):
        ref = client.submit(a_request())
        seen(client, ref, lambda look: look.status == "Running")
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(client.get_job_logs("job", follow=True)))
        reader.start()
        (pod,) = pods(cluster)
        cluster.until(lambda: any(request.query.get("follow") for request in cluster.requests))
        for number in range(100):
            cluster.write_log(pod, f"line {number}")
        client.cancel(ref)
        reader.join()
    assert lines == ["it runs", *(f"line {number}" for number in range(100))]


def test_a_step_that_has_not_started_has_an_empty_log():
    with a_stage("pending-unschedulable") as (cluster, client):
        client.submit(a_request())
        cluster.until(lambda: cluster.objects("pods"))
        assert list(client.get_job_logs("job")) == []
