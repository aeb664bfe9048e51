"""Results, progress, logs and runtime packages of jobs on a simulated cluster."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import datetime, timezone

import pytest
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
from trainer_core.base.errors import InvalidRequestError
from trainer_core.k8s.pod_state import ContainerTermination
from trainer_core.model.jobs import JobFailedError, Progress
from trainer_core.model.request import MULTIKUEUE
from trainer_core.node.progress import PREFIX
from trainer_core.testing.training_functions import return_value


@pytest.fixture
def stage():
    """A simulated cluster whose containers run as local processes."""
    with a_stage(backoff=0.01, backoff_limit=2) as made:
        yield made


def pods(cluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in cluster.objects("pods")]


# Runtime packages.


def test_runtime_packages_are_the_packages_of_its_image(stage):
    cluster, client = stage
    found = client.get_runtime_packages(client.get_runtime("python"))
    assert any(package.startswith("pip==") for package in found)
    assert found == sorted(found, key=str.lower)
    assert cluster.objects("TrainJob") == []


def test_the_packages_of_a_torchtune_runtime_cannot_be_listed():
    with a_stage() as (cluster, client):
        cluster.load_stock_runtimes()
        with pytest.raises(ValueError, match=r"'torchtune-llama3\.2-1b' cannot run a function"):
            client.get_runtime_packages(client.get_runtime("torchtune-llama3.2-1b"))
        assert cluster.objects("TrainJob") == []


def test_a_failed_package_listing_deletes_its_job():
    with a_stage("crash-loop", backoff_limit=1) as (cluster, client):
        with pytest.raises(JobFailedError):
            client.get_runtime_packages(client.get_runtime("python"))
        assert cluster.objects("TrainJob") == []


# Results.


def test_the_result_of_a_function_is_returned_completely(stage):
    _, client = stage
    result = {"text": "näher 🙂", "numbers": [1, 2.5, None]}
    name = client.train("python", trainer=CustomTrainer(return_value, {"value": result}), options=[Name("job")])
    outcome = finished(client, client.get_job_ref(name))
    assert (outcome.result, outcome.result_truncated) == (result, False)


def test_a_result_over_4_kib_is_marked_as_truncated_and_the_job_completes(stage):
    _, client = stage
    trainer = CustomTrainer(return_value, {"value": {"text": "x" * 5000, "loss": 0.25}})
    outcome = finished(client, client.get_job_ref(client.train("python", trainer=trainer, options=[Name("job")])))
    assert (outcome.succeeded, outcome.result_truncated) == (True, True)


def test_a_container_without_a_record_completes_without_a_result(stage):
    cluster, client = stage
    cluster.images[IMAGE] = "print('trained')"
    outcome = finished(client, client.submit(a_request()))
    assert (outcome.succeeded, outcome.result) == (True, None)


# Progress.


def test_progress_of_trainer_status_is_returned():
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        seen(client, ref, lambda look: look.status == "Running")
        metrics = [{"name": "loss", "value": "0.5"}, {"name": "note", "value": "so so"}]
        status = {"progressPercentage": 40, "metrics": metrics, "lastUpdatedTime": "2026-11-20T10:00:00Z"}
        cluster.update("TrainJob", "job", lambda raw: raw["status"].update(trainerStatus=status))
        progress = client.observe(ref).progress
        assert progress == Progress(40, 100, {"loss": 0.5})
        assert client.get_job("job").progress == progress


def test_printed_progress_is_returned_while_the_job_runs():
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        seen(client, ref, lambda look: look.status == "Running")
        (pod,) = pods(cluster)
        cluster.write_log(pod, f'{PREFIX}{{"step": 3, "total": 10, "metrics": {{"loss": 0.5}}}}', "and more")
        assert client.observe(ref).progress == Progress(3, 10, {"loss": 0.5})


def test_the_outcome_has_the_last_value_of_each_metric_and_not_the_last_report_of_trainer_status():
    with a_stage("complete") as (cluster, client):
        ref = client.submit(a_request())
        until_ended(cluster)
        (pod,) = pods(cluster)
        cluster.write_log(pod, f'{PREFIX}{{"step": 3, "metrics": {{"f1": 0.5}}, "last": {{"val_loss": 0.25}}}}')
        metrics = [{"name": "f1", "value": "0.75"}]
        status = {"progressPercentage": 40, "metrics": metrics, "lastUpdatedTime": "2026-11-20T10:00:00Z"}
        cluster.update("TrainJob", "job", lambda raw: raw["status"].update(trainerStatus=status))
        outcome = finished(client, ref)
    assert (outcome.metrics["f1"], outcome.metrics["val_loss"]) == (0.5, 0.25)


# Logs.


def test_each_node_has_a_separate_log():
    with a_stage("complete") as (cluster, client):
        client.submit(a_request(trainer={**CONTAINER, "num_nodes": 2}))
        until_ended(cluster)
        for pod in pods(cluster):
            cluster.write_log(pod, f"at {pod.split('-')[3]}")
        logs = [list(client.get_job_logs("job", step)) for step in ("node-0", "node-1")]
    assert logs == [["epoch 1", "epoch 2", "at 0"], ["epoch 1", "epoch 2", "at 1"]]


def test_an_unknown_step_is_refused_with_the_known_steps():
    with a_stage("runs") as (_, client):
        client.submit(a_request(trainer={**CONTAINER, "num_nodes": 2}))
        with pytest.raises(InvalidRequestError, match="no step 'node-2'; its steps are node-0, node-1"):
            client.get_job_logs("job", "node-2")


def test_the_log_before_a_crash_comes_first():
    with a_stage("crash-loop", delay=None) as (cluster, client):
        client.submit(a_request())
        cluster.until(lambda: cluster.objects("pods"))
        for _ in range(5):
            cluster.tick()
        (pod,) = pods(cluster)
        cluster.write_log(pod, "second run")
        assert list(client.get_job_logs("job")) == ["epoch 1", "epoch 1", "second run"]


def test_the_log_of_a_replaced_pod_comes_before_its_replacement():
    with a_stage("evicted", "complete", delay=None) as (cluster, client):
        client.submit(a_request())
        cluster.until(lambda: cluster.objects("pods"))
        cluster.tick()
        until_the_next_second(cluster)
        cluster.until(lambda: cluster.tick() == 0 and condition(cluster, "job", "Complete"))
        assert list(client.get_job_logs("job")) == ["it runs", "epoch 1", "epoch 2"]


def test_a_followed_log_ends_with_the_job_and_has_each_line_once():
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


def test_the_log_of_a_job_in_another_cluster_is_refused_with_the_place():
    with a_stage(controllers=False) as (_, client):
        client.submit(a_request(managed_by=MULTIKUEUE))
        with pytest.raises(InvalidRequestError, match="runs in a worker cluster of MultiKueue; read its logs in that"):
            list(client.get_job_logs("job", follow=True))


def test_a_step_that_has_not_started_has_an_empty_log():
    with a_stage("pending-unschedulable") as (cluster, client):
        client.submit(a_request())
        cluster.until(lambda: cluster.objects("pods"))
        assert list(client.get_job_logs("job")) == []


def test_the_end_of_a_log_that_this_process_has_read_explains_a_failure_whose_pod_is_deleted():
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        seen(client, ref, lambda each: each.status == "Running")
        (name,) = pods(cluster)
        lines = client.get_job_logs(ref, follow=True)
        assert next(lines) == "it runs"
        lines.close()
        reader = client.backend._reader
        job, (running,) = reader.read_state(ref)
        cluster.delete("pods", name)
        container = replace(running.main_container, running_since=None, terminated=ContainerTermination(1))

        observation = reader.observe_state(job, [replace(running, phase="Failed", main_container=container)], ref)

        assert observation.pending_failure.diagnosis.log_tail == ("it runs",)


def test_a_log_can_be_followed_where_watching_is_forbidden():
    with a_stage("complete") as (cluster, client):
        cluster.forbid("watch", "trainjobs")
        cluster.forbid("list", "trainjobs")
        ref = client.submit(a_request())
        until_ended(cluster)
        (name,) = pods(cluster)

        assert list(client.get_job_logs(ref, follow=True)) == list(client.get_job_logs(ref))
        assert any(f"pods/{name}/log" in request.path for request in cluster.requests)


def test_the_log_of_the_run_after_a_failed_one_does_not_explain_it():
    """The container was restarted after its pod was read."""
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        seen(client, ref, lambda each: each.status == "Running")
        (name,) = pods(cluster)
        reader = client.backend._reader
        job, (running,) = reader.read_state(ref)
        now = int(time.time())
        ended = ContainerTermination(1, "Error", finished_at=datetime.fromtimestamp(now, timezone.utc))
        container = replace(running.main_container, running_since=None, terminated=ended)
        failed = replace(running, phase="Failed", main_container=container)
        cluster.start_log(name, [((now - 1) * 10**9, b"Signal 9 (SIGKILL) received by PID 7")], ended=True)
        before = reader.observe_state(job, [failed], ref)
        cluster.start_log(name, [((now + 2) * 10**9, b"training has begun")])

        after = reader.observe_state(job, [failed], ref)

    reasons = [each.pending_failure.diagnosis.reason for each in (before, after)]
    assert reasons == ["it ended with exit code 1; its last line: Signal 9 (SIGKILL) received by PID 7"] * 2
