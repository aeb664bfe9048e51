"""What can become of a job on a cluster, and what is said of it: while it counts as live, and when it has ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_cluster import answers
from k8s_crds import needs_crds
from k8s_scene import CONTAINER, HF, a_client, a_request, a_stage, condition, finished, seen, until_ended

from trainer_core import waiting
from trainer_core.errors import InvalidRequestError, UnsupportedError
from trainer_core.observation import Trouble
from trainer_core.outcome import Category

pytestmark = needs_crds
#: As many crashes as a test wants to see: the cluster does not give the job up.
PATIENT = {"backoff_limit": 100_000}
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: no such column'


def trouble_of(client, ref, sure: bool = False) -> Trouble:
    """What is wrong with a job that is live; `sure`, what will not change."""
    return seen(client, ref, lambda look: look.trouble if look.trouble and (look.trouble.grace == 0 or not sure) else 0)


# What is said at once, because it will not change.

HOPELESS = {
    "image-pull-error": (
        Category.IMAGE,
        "its image registry.local/train:1 cannot be pulled: failed to pull and unpack",
    ),
    "invalid-image-name": (Category.IMAGE, "its image registry.local/train:1 cannot be pulled: Failed to apply"),
    "crash-loop": (Category.USER_CODE, "ValueError: no such column"),
    "oom": (Category.OUT_OF_MEMORY, "it ran out of memory"),
    "rejected-children": (Category.REJECTED, 'admission webhook "vjobset.kb.io" denied the request'),
}


@pytest.mark.parametrize("life", HOPELESS)
def test_what_cannot_get_well_is_said_while_the_job_counts_as_live(life):
    category, reason = HOPELESS[life]
    with a_stage(life, **PATIENT) as (cluster, client):
        ref = client.submit(a_request())
        trouble = trouble_of(client, ref, sure=True)
        assert client.get_job("job").status in ("Created", "Running")
        assert condition(cluster, "job", "Failed") is None
    assert trouble.diagnosis.category is category
    assert reason in trouble.diagnosis.reason


@pytest.mark.parametrize("life", HOPELESS)
def test_whoever_fails_fast_ends_such_a_job_and_everybody_sees_why(life):
    with a_stage(life, **PATIENT) as (cluster, client):
        ref = client.submit(a_request())
        outcome = finished(client, ref)
        assert outcome.diagnosis.category is HOPELESS[life][0]
        assert cluster.get("TrainJob", "job")["spec"]["suspend"] is True
        assert a_client(cluster).outcome("job").diagnosis == outcome.diagnosis
        assert a_client(cluster).get_job("job").status == "Failed"


def test_a_crash_loop_is_explained_by_its_traceback_from_the_second_crash_on():
    with a_stage("crash-loop", delay=0.1, **PATIENT) as (cluster, client):
        ref = client.submit(a_request())
        cluster.until(lambda: restarts(cluster) >= 2)
        diagnosis = finished(client, ref).diagnosis
    assert (diagnosis.step, diagnosis.exit_code, diagnosis.traceback) == ("node-0", 1, TRACEBACK)
    assert diagnosis.log_tail == ("epoch 1",)


def reads_a_log(cluster) -> bool:
    return any(request.path.endswith("/log") for request in cluster.requests)


def restarts(cluster) -> int:
    found = [pod["status"].get("containerStatuses") or [{}] for pod in cluster.objects("pods")]
    return max((statuses[0].get("restartCount", 0) for statuses in found), default=0)


def test_one_crash_is_no_crash_loop():
    with a_stage("crash-loop", delay=None, **PATIENT) as (cluster, client):
        ref = client.submit(a_request())
        cluster.until(lambda: cluster.objects("pods"))
        for _ in range(5):
            cluster.tick()
        assert restarts(cluster) == 1
        trouble = client.observe(ref).trouble
    assert trouble is None or trouble.grace is None


def test_without_failing_fast_a_crash_loop_goes_on_until_the_cluster_gives_it_up():
    with a_stage("crash-loop", backoff_limit=5, delay=None) as (cluster, client), ThreadPoolExecutor(1) as pool:
        ref = client.submit(a_request())
        waiting = pool.submit(finished, client, ref, fail_fast=False)
        cluster.until(lambda: cluster.objects("pods"))
        # Its pods go with what they could say: whoever waits has to have seen them.
        for _ in range(8):
            cluster.tick()
        cluster.until(lambda: reads_a_log(cluster))
        cluster.until(lambda: cluster.tick() == 0 and condition(cluster, "job", "Failed"))
        outcome = waiting.result()
        assert condition(cluster, "job", "Failed")["reason"] == "FailedJobs"
        assert not cluster.get("TrainJob", "job")["spec"].get("suspend")
    assert (outcome.diagnosis.reason, outcome.diagnosis.traceback) == ("ValueError: no such column", TRACEBACK)


# What may pass: it is said at once, and counts after a while.

PASSING = {
    "pending-unschedulable": (Category.SCHEDULING, "no machine has enough nvidia.com/gpu", 300),
    "quota": (Category.SCHEDULING, "the quota of its namespace is used up", 300),
    "create-container-config-error": (Category.REJECTED, 'secret "token" not found', 30),
}


@pytest.mark.parametrize("life", PASSING)
def test_what_may_pass_is_said_with_how_long_it_may_last(life):
    category, reason, grace = PASSING[life]
    with a_stage(life) as (_, client):
        trouble = trouble_of(client, client.submit(a_request()))
    assert trouble.diagnosis.category is category
    assert reason in trouble.diagnosis.reason
    assert trouble.grace == grace


@pytest.mark.parametrize("life", PASSING)
def test_whoever_waits_gives_up_when_that_time_is_over_and_not_before(life):
    with a_stage(life) as (_, client):
        ref = client.submit(a_request())
        look = seen(client, ref, lambda look: look if look.trouble else None)
    state = waiting.start(ref, now=0.0).seen(look, now=0.0)
    almost = state.seen(look, now=look.trouble.grace - 1)
    over = almost.seen(look, now=look.trouble.grace)
    assert (almost.outcome, over.gave_up) == (None, True)
    assert over.outcome.diagnosis == look.trouble.diagnosis


def test_a_quota_that_is_raised_lets_the_job_go_on():
    with a_stage("quota") as (cluster, client):
        ref = client.submit(a_request())
        trouble_of(client, ref)
        cluster.lives.set("*", "complete")
        assert finished(client, ref).succeeded


def test_a_job_in_trouble_says_so_where_it_is_listed_and_got():
    with a_stage("pending-unschedulable") as (_, client):
        trouble_of(client, client.submit(a_request()))
        assert "no machine has enough nvidia.com/gpu" in client.get_job("job").reason
        assert "no machine has enough nvidia.com/gpu" in client.list_jobs()[0].reason


# What displaces a pod: the job goes on with another one.

DISPLACED = {
    "preempted": (Category.PREEMPTED, "it was preempted: a job of higher priority needs its place"),
    "evicted": (Category.PREEMPTED, "The node was low on resource: memory"),
    "node-lost": (Category.NODE_LOST, "its machine"),
}


@pytest.mark.parametrize("life", DISPLACED)
def test_a_job_whose_pod_had_to_go_goes_on_with_another(life):
    with a_stage(life, "complete") as (_, client):
        assert finished(client, client.submit(a_request())).result == {"loss": 0.25}


@pytest.mark.parametrize("life", DISPLACED)
def test_what_displaced_a_pod_is_said_and_never_given_up_for(life):
    category, reason = DISPLACED[life]
    with a_stage(*[life] * 20, delay=0.1, **PATIENT) as (_, client):
        trouble = trouble_of(client, client.submit(a_request()))
    assert (trouble.diagnosis.category, trouble.diagnosis.retryable, trouble.grace) == (category, True, None)
    assert reason in trouble.diagnosis.reason


@pytest.mark.parametrize("life", ["preempted", "evicted"])
def test_a_job_that_fails_of_it_is_worth_a_retry(life):
    with a_stage(life, backoff_limit=0, delay=0.1) as (_, client):
        diagnosis = finished(client, client.submit(a_request())).diagnosis
    assert (diagnosis.category, diagnosis.retryable) == (DISPLACED[life][0], True)


# What ends a job.


def test_a_deadline_is_named():
    with a_stage("deadline") as (_, client):
        diagnosis = finished(client, client.submit(a_request(active_deadline_seconds=60))).diagnosis
    assert diagnosis.category is Category.DEADLINE
    assert "deadline of 60 s" in diagnosis.reason


def test_an_initializer_that_fails_is_the_step_that_is_named():
    with a_stage("crash-loop", **PATIENT) as (_, client):
        diagnosis = finished(client, client.submit(a_request(runtime="fetches", initializer={"model": HF}))).diagnosis
    assert (diagnosis.category, diagnosis.step) == (Category.INITIALIZER, "model-initializer")
    assert "no such column" in diagnosis.reason


def test_steps_of_a_job_that_fetches_first_run_one_after_the_other():
    with a_stage("complete") as (_, client):
        finished(client, client.submit(a_request(runtime="fetches", initializer={"model": HF})))
        steps = client.get_job("job").steps
    assert [(step.name, step.status) for step in steps] == [
        ("model-initializer", "Succeeded"),
        ("node-0", "Succeeded"),
    ]


def test_of_several_nodes_each_is_a_step():
    with a_stage("complete") as (_, client):
        finished(client, client.submit(a_request(trainer={**CONTAINER, "num_nodes": 3})))
        steps = client.get_job("job").steps
    assert [(step.name, step.status, step.exit_code) for step in steps] == [
        (f"node-{node}", "Succeeded", 0) for node in range(3)
    ]


def test_a_job_that_ended_before_anybody_looked_is_explained_by_what_is_left():
    with a_stage("rejected-children") as (cluster, client):
        client.submit(a_request())
        cluster.until(lambda: cluster.objects("events"))
        outcome = finished(client, client.ref("job"))
    assert outcome.diagnosis.category is Category.REJECTED


def test_a_job_that_somebody_deletes_is_said_to_be_deleted():
    with a_stage("runs") as (cluster, client):
        ref = client.submit(a_request())
        seen(client, ref, lambda look: look.status == "Running")
        with client.follow(ref) as follower:
            follower.look(60)
            cluster.delete("TrainJob", "job")
            assert finished(client, ref).diagnosis.category is Category.DELETED


def test_events_tell_the_life_of_a_job_in_its_order():
    with a_stage("preempted", "complete") as (cluster, client):
        client.submit(a_request())
        until_ended(cluster)
        events = client.get_job_events("job")
    reasons = [event.reason for event in events]
    assert reasons[0] == "Created"
    assert {"Scheduled", "Preempted", "Complete"} <= set(reasons)
    assert events == sorted(events, key=lambda event: event.event_time)


# What the server refuses.


def deny(cluster, text: str) -> None:
    """Let somebody's policy refuse every TrainJob."""

    def check(intent) -> None:
        if intent.kind.kind == "TrainJob":
            raise answers.denied("policy.example.com", [text])

    cluster.call(lambda: cluster._server.writer.checks.append(check))


def test_what_a_webhook_says_is_shown_in_one_line():
    with a_stage() as (cluster, client):
        deny(cluster, "images must come\nfrom registry.example.com")
        with pytest.raises(
            InvalidRequestError, match=r'"policy\.example\.com" denied .*images must come from'
        ) as refused:
            client.submit(a_request())
        assert cluster.objects("TrainJob") == []
    assert "\n" not in str(refused.value)


def test_a_long_refusal_is_cut():
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


SPOKEN = {
    "2.0": "podSpecOverrides",
    "2.1": "podTemplateOverrides",
    "2.2": "runtimePatches",
    "2.3": "runtimePatches",
}


@pytest.mark.parametrize("version", SPOKEN)
def test_every_release_is_told_of_a_patch_in_its_own_words(version):
    with a_stage("complete", trainer=version) as (cluster, client):
        ref = client.submit(a_request(patches=[a_patch(nodeSelector={"disk": "fast"})]))
        spec = cluster.get("TrainJob", "job")["spec"]
        assert [name for name in SPOKEN.values() if name in spec] in ([SPOKEN[version]], [SPOKEN[version]] * 2)
        assert finished(client, ref).succeeded


@pytest.mark.parametrize("version", SPOKEN)
def test_every_release_takes_a_job_without_patches(version):
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
def test_what_an_old_release_has_no_field_for_is_refused_by_its_path(version, patch, field):
    with a_stage(trainer=version) as (cluster, client):
        patches = [{**a_patch(), "trainingRuntimeSpec": on_nodes(patch)}]
        with pytest.raises(UnsupportedError, match=rf"replicatedJobs\[node\].*{field}: the Trainer of this cluster"):
            client.submit(a_request(patches=patches))
        assert {request.method for request in cluster.requests} == {"GET"}


def test_a_deadline_that_an_old_release_would_not_keep_is_refused():
    refused = pytest.raises(UnsupportedError, match=r"active_deadline_seconds: .* from 2\.2 on")
    with a_stage(trainer="2.1") as (_, client), refused:
        client.submit(a_request(active_deadline_seconds=60))
