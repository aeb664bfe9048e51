"""Failure scenarios on a simulated cluster: what is reported while the job is active and after it has ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_cluster import answers
from fake_cluster.runtimes import runtime as a_runtime
from k8s_scene import CONTAINER, HF, a_client, a_request, a_stage, condition, finished, seen

from trainer_core import CustomTrainer, Name
from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.k8s import job_reader
from trainer_core.lifecycle import wait_state
from trainer_core.model.jobs import Category, PendingFailure
from trainer_core.node.launch import WAITING

#: More retries than any test uses: the controller does not fail the job.
MANY_RETRIES = {"backoff_limit": 100_000}
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: no such column'


def wait_for_pending_failure(client, ref, fatal: bool = False) -> PendingFailure:
    """Wait for a pending failure and return it; with `fatal`, one without a grace."""

    def select(observation):
        failure = observation.pending_failure
        return failure if failure and (failure.grace == 0 or not fatal) else 0

    return seen(client, ref, select)


# Fatal problems.

FATAL_SCENARIOS = {
    "image-pull-error": (
        Category.IMAGE,
        "image registry.local/train:1 cannot be pulled: failed to pull and unpack",
    ),
    "invalid-image-name": (Category.IMAGE, "image registry.local/train:1 cannot be pulled: Failed to apply"),
    "crash-loop": (Category.USER_CODE, "ValueError: no such column"),
    "oom": (Category.OUT_OF_MEMORY, "it ran out of memory"),
    "rejected-children": (Category.REJECTED, 'admission webhook "vjobset.kb.io" denied the request'),
}


@pytest.mark.parametrize("scenario", FATAL_SCENARIOS)
def test_a_fatal_problem_is_reported_while_the_job_is_active(scenario):
    category, reason = FATAL_SCENARIOS[scenario]
    with a_stage(scenario, **MANY_RETRIES) as (cluster, client):
        ref = client.submit(a_request())
        failure = wait_for_pending_failure(client, ref, fatal=True)
        assert client.get_job("job").status in ("Created", "Running")
        assert condition(cluster, "job", "Failed") is None
    assert failure.diagnosis.category is category
    assert reason in failure.diagnosis.reason


@pytest.mark.parametrize("scenario", FATAL_SCENARIOS)
def test_fail_fast_cancels_the_job_with_the_diagnosis(scenario):
    with a_stage(scenario, **MANY_RETRIES) as (cluster, client):
        ref = client.submit(a_request())
        outcome = finished(client, ref)
        assert outcome.diagnosis.category is FATAL_SCENARIOS[scenario][0]
        assert cluster.get("TrainJob", "job")["spec"]["suspend"] is True
        assert a_client(cluster).get_job_outcome("job").diagnosis == outcome.diagnosis
        assert a_client(cluster).get_job("job").status == "Failed"
        (event,) = own_events(cluster, ref)
    assert (event["type"], event["reason"]) == ("Warning", outcome.diagnosis.category)
    assert event["message"] == f"ended, not suspended: {outcome.diagnosis.reason}"


def own_events(cluster, ref):
    """Events that this package has written on a TrainJob; `kubectl describe` shows them."""
    events = [event for event in cluster.objects("events") if event["involvedObject"]["uid"] == ref.uid]
    return [event for event in events if event.get("source") == {"component": "trainjob-workflows"}]


def test_a_job_is_ended_with_its_diagnosis_where_no_event_may_be_created():
    with a_stage("invalid-image-name", **MANY_RETRIES) as (cluster, client):
        cluster.forbid("create", "events")
        ref = client.submit(a_request())
        outcome = finished(client, ref)
        assert cluster.get("TrainJob", "job")["spec"]["suspend"] is True
        assert own_events(cluster, ref) == []
    assert outcome.diagnosis is not None


def test_a_crash_loop_is_reported_with_its_traceback_from_the_second_crash():
    with a_stage("crash-loop", delay=0.1, **MANY_RETRIES) as (cluster, client):
        ref = client.submit(a_request())
        cluster.until(lambda: count_restarts(cluster) >= 2)
        diagnosis = finished(client, ref).diagnosis
    assert (diagnosis.step, diagnosis.exit_code, diagnosis.traceback) == ("node-0", 1, TRACEBACK)
    assert diagnosis.log_tail == ("epoch 1",)


def was_log_read(cluster) -> bool:
    return any(request.path.endswith("/log") for request in cluster.requests)


def count_restarts(cluster) -> int:
    found = [pod["status"].get("containerStatuses") or [{}] for pod in cluster.objects("pods")]
    return max((statuses[0].get("restartCount", 0) for statuses in found), default=0)


def test_one_crash_is_not_a_crash_loop():
    with a_stage("crash-loop", delay=None, **MANY_RETRIES) as (cluster, client):
        ref = client.submit(a_request())
        cluster.until(lambda: cluster.objects("pods"))
        for _ in range(5):
            cluster.tick()
        assert count_restarts(cluster) == 1
        failure = client.observe(ref).pending_failure
    assert failure is None or failure.grace is None


def limited_runtime(max_restarts: int | None = None, backoff_limit: int | None = None, policy: str = "OnFailure"):
    raw = a_runtime("limited", "plain")
    spec = raw["spec"]["template"]["spec"]
    spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["restartPolicy"] = policy
    if backoff_limit is not None:
        spec["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] = backoff_limit
    if max_restarts is not None:
        spec["failurePolicy"] = {"maxRestarts": max_restarts}
    return raw


@pytest.mark.parametrize(
    ("lives", "limits"),
    [
        (["recovers"], {"backoff_limit": 3}),
        (["fails", "fails", "complete"], {"backoff_limit": 2, "policy": "Never"}),
        (["fails", "fails", "complete"], {"max_restarts": 2, "backoff_limit": 0, "policy": "Never"}),
    ],
    ids=["restarted containers", "replaced pods", "a restarted JobSet"],
)
def test_a_crash_is_not_final_while_the_runtime_allows_restarts(lives, limits):
    with a_stage(*lives) as (cluster, client):
        cluster.add(limited_runtime(**limits))
        assert finished(client, client.submit(a_request(runtime="limited"))).result == {"loss": 0.25}


def test_a_crash_loop_ends_when_the_limit_of_the_runtime_is_reached():
    with a_stage("crash-loop") as (cluster, client):
        cluster.add(limited_runtime(backoff_limit=3))
        outcome = finished(client, client.submit(a_request(runtime="limited")))
        assert condition(cluster, "job", "Failed")["reason"] == "FailedJobs"
    assert outcome.diagnosis.category is Category.USER_CODE


def test_a_job_with_checkpoints_is_restarted_as_often_as_its_runtime_allows_by_default():
    checkpoints = {"checkpoints": {"uri": "s3://bucket/checkpoints"}}
    with a_stage("recovers", **MANY_RETRIES) as (_, client):
        assert finished(client, client.submit(a_request(**checkpoints, trainer=a_function()))).succeeded


def a_function() -> dict:
    return {"kind": "custom", "code": {"kind": "source", "text": "def train():\n    pass\n", "entry": "train"}}


def test_without_fail_fast_a_crash_loop_continues_until_the_controller_fails_the_job():
    with a_stage("crash-loop", backoff_limit=5, delay=None) as (cluster, client), ThreadPoolExecutor(1) as pool:
        ref = client.submit(a_request())
        wait_state = pool.submit(finished, client, ref, fail_fast=False)
        cluster.until(lambda: cluster.objects("pods"))
        # The controller deletes the pods, so a waiting process must have observed them before.
        for _ in range(8):
            cluster.tick()
        cluster.until(lambda: was_log_read(cluster))
        cluster.until(lambda: cluster.tick() == 0 and condition(cluster, "job", "Failed"))
        outcome = wait_state.result()
        assert condition(cluster, "job", "Failed")["reason"] == "FailedJobs"
        assert not cluster.get("TrainJob", "job")["spec"].get("suspend")
    assert (outcome.diagnosis.reason, outcome.diagnosis.traceback) == ("ValueError: no such column", TRACEBACK)


# Transient problems: reported at once, fatal after a grace.

TRANSIENT_SCENARIOS = {
    "pending-unschedulable": (Category.SCHEDULING, "no Kubernetes node has enough nvidia.com/gpu", 1800),
    "create-container-config-error": (Category.REJECTED, 'secret "token" not found', 30),
}


@pytest.mark.parametrize("scenario", TRANSIENT_SCENARIOS)
def test_a_transient_problem_is_reported_with_its_grace(scenario):
    category, reason, grace = TRANSIENT_SCENARIOS[scenario]
    with a_stage(scenario) as (_, client):
        failure = wait_for_pending_failure(client, client.submit(a_request()))
    assert failure.diagnosis.category is category
    assert reason in failure.diagnosis.reason
    assert failure.grace == pytest.approx(grace, abs=60)


@pytest.mark.parametrize("scenario", TRANSIENT_SCENARIOS)
def test_waiting_fails_when_the_grace_is_over_and_not_before(scenario):
    with a_stage(scenario) as (_, client):
        ref = client.submit(a_request())
        observation = seen(client, ref, lambda observation: observation if observation.pending_failure else None)
    state = wait_state.start(ref, now=0.0).on_observation(observation, now=0.0)
    almost = state.on_observation(observation, now=observation.pending_failure.grace - 1)
    over = almost.on_observation(observation, now=observation.pending_failure.grace)
    assert (almost.outcome, over.should_cancel) == (None, True)
    assert over.outcome.diagnosis == observation.pending_failure.diagnosis


def test_a_job_starts_after_its_quota_is_raised():
    with a_stage("quota") as (cluster, client):
        ref = client.submit(a_request())
        wait_for_pending_failure(client, ref)
        cluster.lives.set("*", "complete")
        assert finished(client, ref).succeeded


def test_the_reason_of_a_pending_failure_is_in_get_job_and_list_jobs():
    with a_stage("pending-unschedulable") as (_, client):
        wait_for_pending_failure(client, client.submit(a_request()))
        assert "no Kubernetes node has enough nvidia.com/gpu" in client.get_job("job").reason
        assert "no Kubernetes node has enough nvidia.com/gpu" in client.list_jobs()[0].reason


# Disruptions: the controller replaces the pod.

DISRUPTION_SCENARIOS = {
    "preempted": (Category.PREEMPTED, "preempted by a pod of higher priority"),
    "evicted": (Category.PREEMPTED, "The node was low on resource: memory"),
    "node-lost": (Category.NODE_LOST, "the Kubernetes node"),
}


@pytest.mark.parametrize("scenario", DISRUPTION_SCENARIOS)
def test_a_job_continues_with_a_replacement_of_a_disrupted_pod(scenario):
    with a_stage(scenario, "complete") as (_, client):
        assert finished(client, client.submit(a_request())).result == {"loss": 0.25}


@pytest.mark.parametrize("scenario", DISRUPTION_SCENARIOS)
def test_a_disruption_is_reported_without_a_time_limit(scenario):
    category, reason = DISRUPTION_SCENARIOS[scenario]
    with a_stage(*[scenario] * 20, delay=None, **MANY_RETRIES) as (cluster, client):
        ref = client.submit(a_request())
        # Time passes between two observations only: no state of the pod is missed.
        failure = cluster.until(lambda: cluster.tick() >= 0 and client.observe(ref).pending_failure)
    assert (failure.diagnosis.category, failure.diagnosis.retryable, failure.grace) == (category, True, None)
    assert reason in failure.diagnosis.reason


@pytest.mark.parametrize("scenario", ["preempted", "evicted"])
def test_a_job_that_fails_by_a_disruption_is_retryable(scenario):
    with a_stage(scenario, backoff_limit=0, delay=0.1) as (_, client):
        diagnosis = finished(client, client.submit(a_request())).diagnosis
    assert (diagnosis.category, diagnosis.retryable) == (DISRUPTION_SCENARIOS[scenario][0], True)


def test_a_failure_is_explained_by_events_that_are_newer_than_it(monkeypatch):
    """Its pods are gone, and the list of events from before it could still be reused."""
    monkeypatch.setattr(job_reader, "_EVENTS_TIME_SHARE", 1e-9)
    monkeypatch.setattr(job_reader, "_MAX_EVENTS_AGE", 3600.0)
    with a_stage("preempted", backoff_limit=0, delay=None) as (cluster, client):
        ref = client.submit(a_request())
        cluster.until(lambda: cluster.objects("pods"))
        client.observe(ref)
        assert cluster.counts["list events"] == 1
        cluster.until(lambda: cluster.tick() == 0 and condition(cluster, "job", "Failed"))
        cluster.until(lambda: not cluster.objects("pods"))
        assert client.observe(ref).outcome.diagnosis.category is Category.PREEMPTED
        assert finished(client, ref).diagnosis.category is Category.PREEMPTED
    # Many jobs may fail and be observed again and again.
    assert cluster.counts["list events"] == 2


# Jobs that end.


def test_a_failed_initializer_is_the_step_of_the_diagnosis():
    with a_stage("crash-loop", **MANY_RETRIES) as (_, client):
        diagnosis = finished(client, client.submit(a_request(runtime="fetches", initializer={"model": HF}))).diagnosis
    assert (diagnosis.category, diagnosis.step) == (Category.INITIALIZER, "model-initializer")
    assert "no such column" in diagnosis.reason


def test_initializers_run_before_the_nodes():
    with a_stage("complete") as (_, client):
        finished(client, client.submit(a_request(runtime="fetches", initializer={"model": HF})))
        steps = client.get_job("job").steps
    assert [(step.name, step.status) for step in steps] == [
        ("model-initializer", "Succeeded"),
        ("node-0", "Succeeded"),
    ]


def test_each_node_is_a_step():
    with a_stage("complete") as (_, client):
        finished(client, client.submit(a_request(trainer={**CONTAINER, "num_nodes": 3})))
        steps = client.get_job("job").steps
    assert [(step.name, step.status, step.exit_code) for step in steps] == [
        (f"node-{node}", "Succeeded", 0) for node in range(3)
    ]


def test_a_job_that_failed_before_the_first_observation_is_explained():
    with a_stage("rejected-children") as (cluster, client):
        client.submit(a_request())
        cluster.until(lambda: cluster.objects("events"))
        outcome = finished(client, client.get_job_ref("job"))
    assert outcome.diagnosis.category is Category.REJECTED


# Rejections by the server.


def deny(cluster, text: str) -> None:
    """Reject every TrainJob with this text, as a validating webhook does."""

    def check(intent) -> None:
        if intent.kind.kind == "TrainJob":
            raise answers.denied("policy.example.com", [text])

    cluster.call(lambda: cluster._server.writer.checks.append(check))


def test_the_message_of_a_webhook_is_one_line():
    with a_stage() as (cluster, client):
        deny(cluster, "images must come\nfrom registry.example.com")
        with pytest.raises(
            InvalidRequestError, match=r'"policy\.example\.com" denied .*images must come from'
        ) as refused:
            client.submit(a_request())
        assert cluster.objects("TrainJob") == []
    assert "\n" not in str(refused.value)


def test_a_long_rejection_is_truncated():
    with a_stage() as (cluster, client):
        deny(cluster, "no " * 10_000)
        with pytest.raises(InvalidRequestError) as refused:
            client.submit(a_request())
    assert len(str(refused.value)) < 1300


def a_patch(**pod) -> dict:
    spec = on_nodes({"template": {"spec": {"template": {"spec": pod}}}})
    return {"manager": "trainer.kubeflow.org/kubeflow-sdk", "trainingRuntimeSpec": spec}


def on_nodes(patch: dict) -> dict:
    return {"template": {"spec": {"replicatedJobs": [{"name": "node", **patch}]}}}


OVERRIDES_BY_VERSION = {
    "2.0": "podSpecOverrides",
    "2.1": "podTemplateOverrides",
    "2.2": "runtimePatches",
    "2.3": "runtimePatches",
}


@pytest.mark.parametrize("version", OVERRIDES_BY_VERSION)
def test_a_patch_is_rendered_for_each_trainer_version(version):
    with a_stage("complete", trainer=version) as (cluster, client):
        ref = client.submit(a_request(patches=[a_patch(nodeSelector={"disk": "fast"})]))
        spec = cluster.get("TrainJob", "job")["spec"]
        assert [name for name in OVERRIDES_BY_VERSION.values() if name in spec] in (
            [OVERRIDES_BY_VERSION[version]],
            [OVERRIDES_BY_VERSION[version]] * 2,
        )
        assert finished(client, ref).succeeded


@pytest.mark.parametrize("version", OVERRIDES_BY_VERSION)
def test_each_trainer_version_accepts_a_job_without_patches(version):
    with a_stage("complete", trainer=version) as (_, client):
        assert finished(client, client.submit(a_request())).succeeded


@pytest.mark.parametrize(
    ("version", "patch", "field"),
    [
        (
            "2.0",
            {"template": {"spec": {"template": {"spec": {"securityContext": {"runAsUser": 1}}}}}},
            "securityContext",
        ),
        ("2.1", {"template": {"metadata": {"labels": {"a": "b"}}}}, "metadata"),
    ],
)
def test_a_field_that_an_old_trainer_version_lacks_is_refused_with_its_path(version, patch, field):
    with a_stage(trainer=version) as (cluster, client):
        patches = [{**a_patch(), "trainingRuntimeSpec": on_nodes(patch)}]
        with pytest.raises(UnsupportedError, match=rf"replicatedJobs\[node\].*{field}: the Trainer of this cluster"):
            client.submit(a_request(patches=patches))
        assert {request.method for request in cluster.requests} == {"GET"}


def test_a_deadline_is_refused_on_an_old_trainer_version():
    refused = pytest.raises(UnsupportedError, match=r"active_deadline_seconds needs Trainer 2\.2 or later")
    with a_stage(trainer="2.1") as (_, client), refused:
        client.submit(a_request(active_deadline_seconds=60))


def wait_as_node_0(line: str) -> None:
    """Wait as torchrun does in a node that was started again when the other one had ended."""
    import os
    import time

    if os.environ["JOB_COMPLETION_INDEX"] == "0":
        print(line, flush=True)
        time.sleep(3600)


def test_a_node_that_waits_for_one_that_has_succeeded_is_the_pending_failure_of_the_job():
    with a_stage() as (cluster, client):
        trainer = CustomTrainer(func=wait_as_node_0, func_args={"line": WAITING}, num_nodes=2)
        ref = client.submit(client.build_request(runtime="python", trainer=trainer, options=[Name("job")]))
        assert next(iter(client.get_job_logs("job", "node-0", follow=True))) == WAITING
        cluster.until(
            lambda: sorted(pod["status"]["phase"] for pod in cluster.objects("pods")) == ["Running", "Succeeded"]
        )
        assert client.observe(ref).pending_failure is None
        cluster.advance(61)
        found = client.observe(ref).pending_failure
    assert (found.diagnosis.category, found.diagnosis.step, found.grace) == (Category.INFRASTRUCTURE, "node-0", 0)
