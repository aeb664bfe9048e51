"""What a job without nodes waits for: autoscalers, queues, quota, and the option StartWithin."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
from k8s_objects import ENDED, JOB, condition, event, runs, seen, train_job, unscheduled
from k8s_scene import a_client, a_request, a_stage, finished, seen as observed

from trainer_core.backends.trainer_v2.parse import parse_job
from trainer_core.k8s import events, failure_facts, job_reader, labels, observations
from trainer_core.k8s.capacity import SchedulingLimits
from trainer_core.lifecycle import wait_state
from trainer_core.model.jobs import Category, TrainJobRef

MINUTE, HOUR = 60, 3600
GRACE = 30 * MINUTE
#: When the pods of `unscheduled` began to wait, and the events of `event` occurred.
BEGAN = datetime.fromisoformat(ENDED.replace("Z", "+00:00"))
NO_GPU = (
    "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 3 No preemption "
    "victims found for incoming pod."
)
TOO_LARGE = (
    "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 3 Preemption is not "
    "helpful for scheduling."
)
OTHER_LABELS = (
    "0/2 nodes are available: 1 node(s) had untolerated taint {team: vision}, 1 node(s) didn't match Pod's node "
    "affinity/selector. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
)
NODE_DOWN = OTHER_LABELS.replace("{team: vision}", "{node.kubernetes.io/unreachable: }")
SCALE_UP = "pod triggered scale-up: [{gpu-pool 1->2 (max: 8)}]"
REFUSED = "pod didn't trigger scale-up: "
NO_GROUP = f"{REFUSED}2 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector"
FULL = f"{REFUSED}1 max node group size reached, 2 Insufficient cpu"
BACKOFF = f"{REFUSED}1 in backoff after failed scale-up"
UNBOUND = f"{REFUSED}1 pod has unbound immediate PersistentVolumeClaims"
LIMITS = "Failed to schedule pod, all available instance types exceed limits for nodepool (NodePool=gpu)"
INCOMPATIBLE = 'Failed to schedule pod, incompatible with nodepool "cpu", no instance type met all requirements'


def _at(seconds: float) -> SchedulingLimits:
    return SchedulingLimits(BEGAN + timedelta(seconds=seconds), GRACE)


def _time(seconds: float) -> str:
    return (BEGAN + timedelta(seconds=seconds)).isoformat()


def _pod(message: str = NO_GPU, number: int = 0, **spec: str):
    fields = unscheduled("Unschedulable", message)
    return seen(f"node-{number}", **{**fields, "spec": {**fields["spec"], **spec}})


def _report(reason: str, message: str, *, first: float = 10, last: float = 100, component="cluster-autoscaler", node=0):
    times = {"firstTimestamp": _time(first), "lastTimestamp": _time(last), "count": 2}
    name = f"{JOB}-node-0-{node}-abcde"
    return event(reason, message, type="Normal", reportingComponent=component, name=name, **times)


def _karpenter(reason: str, message: str):
    return _report(reason, message, component="karpenter")


def _detect(*pods, raws=(), now: float):
    found = failure_facts.detect_pending_failure(pods, [events.parse_event(raw) for raw in raws], limits=_at(now))
    assert found.diagnosis.category is Category.SCHEDULING
    return found


@pytest.mark.parametrize(
    ("pod", "report", "reason", "graces"),
    [
        (_pod(), None, "no Kubernetes node has enough nvidia.com/gpu: 0/3", {MINUTE: 29 * MINUTE, GRACE: 0}),
        (
            _pod(),
            _report("TriggeredScaleUp", SCALE_UP),
            "the autoscaler adds a node: pod triggered",
            {19 * MINUTE: None},
        ),
        (_pod(), _report("TriggeredScaleUp", SCALE_UP), "no Kubernetes node has enough", {25 * MINUTE: 5 * MINUTE}),
        (_pod(), _karpenter("Nominated", "Pod should schedule on: nodeclaim/gpu-x"), "adds a node", {MINUTE: None}),
        (
            _pod(),
            _report("NotTriggerScaleUp", FULL),
            "cannot add a node now",
            {9 * HOUR: None},
        ),
        (
            _pod(),
            _report("NotTriggerScaleUp", BACKOFF),
            "cannot add a node now",
            {9 * HOUR: None},
        ),
        (_pod(), _karpenter("FailedScheduling", LIMITS), "cannot add a node now", {9 * HOUR: None}),
        (_pod(OTHER_LABELS), _report("NotTriggerScaleUp", NO_GROUP), "no node group can hold", {100: 30, 130: 0}),
        (_pod(TOO_LARGE), _report("NotTriggerScaleUp", NO_GROUP), "no node group can hold", {130: 0}),
        (_pod(OTHER_LABELS), _karpenter("FailedScheduling", INCOMPATIBLE), "no node group can hold", {130: 0}),
        # An existing node may take the pod later, so that the refusal of the autoscaler is not the last word.
        (_pod(NO_GPU), _report("NotTriggerScaleUp", NO_GROUP), "no Kubernetes node has enough", {130: GRACE - 130}),
        (_pod(NODE_DOWN), _report("NotTriggerScaleUp", NO_GROUP), "no Kubernetes node accepts", {130: GRACE - 130}),
        # One answer is not enough, and an unknown or incomplete one is none.
        (_pod(OTHER_LABELS), _report("NotTriggerScaleUp", NO_GROUP, last=20), "no Kubernetes node", {130: GRACE - 130}),
        (
            _pod(OTHER_LABELS),
            _report(
                "NotTriggerScaleUp",
                UNBOUND,
            ),
            "no Kubernetes node accepts",
            {130: GRACE - 130},
        ),
        (
            _pod(OTHER_LABELS),
            _report("NotTriggerScaleUp", f"{NO_GROUP}, 3 something new"),
            "no Kube",
            {130: GRACE - 130},
        ),
        (_pod("pod group is not ready", schedulerName="volcano"), None, "in a queue of volcano", {9 * HOUR: None}),
        (_pod("not enough resources", schedulerName="kai-scheduler"), None, "in a queue of kai", {9 * HOUR: None}),
    ],
)
def test_the_answer_of_scheduler_and_autoscaler_decides_how_long_a_pod_may_wait(pod, report, reason, graces):
    for now, grace in graces.items():
        found = _detect(pod, raws=[report] * bool(report), now=now)
        assert reason in found.diagnosis.reason
        assert found.grace == grace


def test_a_newer_answer_of_an_autoscaler_replaces_the_older_one():
    raws = [
        _report("NotTriggerScaleUp", BACKOFF, last=100),
        _report("TriggeredScaleUp", SCALE_UP, first=200, last=200),
    ]

    assert "adds a node" in _detect(_pod(), raws=raws, now=300).diagnosis.reason


def test_of_two_autoscalers_the_one_that_can_add_a_node_counts():
    raws = [
        _karpenter("Nominated", "Pod should schedule on: nodeclaim/gpu-x"),
        _report("NotTriggerScaleUp", NO_GROUP, last=120),
    ]

    assert _detect(_pod(OTHER_LABELS), raws=raws, now=130).grace is None


def test_no_pod_ends_a_job_while_a_node_is_added_for_another_one():
    raws = [_report("TriggeredScaleUp", SCALE_UP), _report("NotTriggerScaleUp", NO_GROUP, node=1)]

    assert _detect(_pod(), _pod(OTHER_LABELS, 1), raws=raws, now=19 * MINUTE).grace is None


def test_a_job_with_one_hopeless_pod_is_hopeless():
    raws = [
        _report("NotTriggerScaleUp", FULL),
        _report("NotTriggerScaleUp", NO_GROUP, node=1),
    ]

    assert _detect(_pod(), _pod(OTHER_LABELS, 1), raws=raws, now=130).grace == 0


QUOTA = (
    'Error creating: pods "digits-node-0-0-x7x7x" is forbidden: exceeded quota: ml, requested: limits.cpu=1,'
    "requests.nvidia.com/gpu={requested}, used: limits.cpu=0,requests.nvidia.com/gpu={used}, limited: "
    "limits.cpu=4,requests.nvidia.com/gpu=4"
)


@pytest.mark.parametrize(
    ("requested", "used", "num_nodes", "category"),
    [
        (5, 0, 1, Category.REJECTED),
        (4, 1, 1, Category.SCHEDULING),
        (2, 4, 2, Category.SCHEDULING),
        (2, 4, 3, Category.REJECTED),
        ("many", 0, 1, Category.SCHEDULING),
    ],
    ids=["one pod is too large", "others use it", "others use it all", "all nodes are too large", "no number"],
)
def test_a_job_that_never_fits_into_the_quota_is_rejected(requested, used, num_nodes, category):
    raw = event("FailedCreate", QUOTA.format(requested=requested, used=used), kind="Job", name="digits-node-0")
    job = parse_job(train_job(trainer={"numNodes": num_nodes}))
    found = failure_facts.detect_pending_failure([], [events.parse_event(raw)], job=job)

    assert found.diagnosis.category is category
    assert found.grace == (0 if category is Category.REJECTED else None)


# On a cluster whose clock the test advances.


def should_cancel(client, ref, **settings) -> bool:
    """Whether a wait that begins now cancels the job at its first observation."""
    return wait_state.start(ref, 0.0, **settings).on_observation(client.observe(ref), 0.0).should_cancel


def wait_for_unscheduled_pod(cluster, client, ref) -> str:
    cluster.until(lambda: cluster.objects("pods") and cluster.tick() >= 0)
    observed(client, ref, lambda look: look.pending_failure)
    return cluster.objects("pods")[0]["metadata"]["name"]


def test_a_scale_up_after_ten_minutes_lets_the_job_start():
    with a_stage("scheduled-later", delay=None) as (cluster, client):
        ref = client.submit(a_request())
        pod = wait_for_unscheduled_pod(cluster, client, ref)
        cluster.advance(10 * MINUTE)
        cluster.event(pod, "TriggeredScaleUp", SCALE_UP)
        cluster.advance(19 * MINUTE)
        assert not should_cancel(client, ref)
        assert "the autoscaler adds a node" in client.get_job("job").reason
        cluster.until(lambda: cluster.tick() == 0)
        assert finished(client, ref).succeeded


def test_a_scale_up_that_leads_to_no_node_counts_no_longer_after_twenty_minutes():
    with a_stage("scheduled-later", delay=None) as (cluster, client):
        ref = client.submit(a_request())
        pod = wait_for_unscheduled_pod(cluster, client, ref)
        cluster.advance(15 * MINUTE)
        cluster.event(pod, "TriggeredScaleUp", SCALE_UP)
        cluster.advance(19 * MINUTE)
        assert not should_cancel(client, ref)
        cluster.advance(MINUTE + 1)
        assert should_cancel(client, ref)
        assert not should_cancel(client, ref, fail_fast=False)


def test_the_time_without_a_node_is_that_of_the_server_and_the_same_for_every_waiter():
    with a_stage("scheduled-later", delay=None) as (cluster, client):
        ref = client.submit(a_request())
        wait_for_unscheduled_pod(cluster, client, ref)
        cluster.advance(29 * MINUTE)
        assert not should_cancel(a_client(cluster), ref)
        assert should_cancel(a_client(cluster, scheduling_grace="29m"), ref)
        cluster.advance(MINUTE)
        assert should_cancel(a_client(cluster), ref)
        assert finished(client, ref).diagnosis.category is Category.SCHEDULING


def test_events_that_were_listed_before_a_scale_up_end_no_job(monkeypatch):
    monkeypatch.setattr(job_reader, "_MAX_EVENTS_AGE", 0.0)
    with a_stage("scheduled-later", delay=None) as (cluster, client):
        ref = client.submit(a_request())
        pod = wait_for_unscheduled_pod(cluster, client, ref)
        cluster.advance(GRACE - 20)
        assert not should_cancel(client, ref)
        cluster.event(pod, "TriggeredScaleUp", SCALE_UP)
        cluster.advance(20)
        assert not should_cancel(client, ref)


def test_the_events_of_many_waiting_jobs_are_listed_once_a_minute():
    with a_stage("pending-unschedulable") as (cluster, client):
        refs = [client.submit(a_request(f"job-{number}")) for number in range(5)]
        for ref in refs:
            wait_for_unscheduled_pod_of(client, ref)
        cluster.advance(MINUTE)
        cluster.forget_requests()
        for ref in refs * 3:
            client.observe(ref)
        assert cluster.counts["list events"] == 1


def wait_for_unscheduled_pod_of(client, ref) -> None:
    observed(client, ref, lambda look: look.pending_failure and look.pending_failure.diagnosis.step)


def test_a_request_larger_than_the_quota_is_rejected_at_once():
    with a_stage("small-quota") as (_, client):
        diagnosis = finished(client, client.submit(a_request())).diagnosis
    assert diagnosis.category is Category.REJECTED
    assert "the job requests more requests.nvidia.com/gpu than the quota of its namespace" in diagnosis.reason


def test_a_job_that_waits_for_quota_shows_the_reason_and_is_not_ended():
    with a_stage("quota") as (cluster, client):
        ref = client.submit(a_request())
        observed(client, ref, lambda look: look.pending_failure)
        cluster.advance(9 * HOUR)
        assert not should_cancel(client, ref)
        assert "waits for quota of its namespace" in client.get_job("job").reason


# StartWithin.


def test_a_job_that_does_not_start_in_time_is_cancelled_once_by_any_number_of_waiters():
    with a_stage("pending-unschedulable") as (cluster, client), ThreadPoolExecutor(2) as pool:
        ref = client.submit(a_request(start_within="2h"))
        cluster.until(lambda: cluster.objects("pods"))
        cluster.event(cluster.objects("pods")[0]["metadata"]["name"], "TriggeredScaleUp", SCALE_UP)
        cluster.advance(2 * HOUR - 30)
        assert not should_cancel(client, ref, fail_fast=False)
        cluster.advance(31)
        outcomes = list(pool.map(lambda each: finished(each, ref, fail_fast=False), [client, a_client(cluster)]))
        assert a_client(cluster).get_job("job").status == "Failed"
    assert {outcome.diagnosis.category for outcome in outcomes} == {Category.SCHEDULING}
    assert outcomes[0].diagnosis.reason.startswith("it did not start within 2h: no Kubernetes node has enough nvidia")
    assert outcomes[0].diagnosis == outcomes[1].diagnosis


def test_time_in_a_queue_of_kueue_counts_towards_the_limit():
    with a_stage("complete", kueue=True) as (cluster, client):
        ref = client.submit(a_request(start_within="2h", metadata={"labels": {"kueue.x-k8s.io/queue-name": "team"}}))
        assert client.observe(ref).queued == "queued: waits for admission by Kueue queue 'team'"
        cluster.advance(2 * HOUR - 30)
        assert not should_cancel(client, ref)
        cluster.advance(31)
        assert should_cancel(client, ref)


TOO_MUCH = (
    "couldn't assign flavors to pod set node: insufficient quota for nvidia.com/gpu in flavor default, previously "
    "considered podsets requests (0) + current podset request (16) > maximum capacity (8)"
)


@pytest.mark.parametrize(
    ("message", "ends"),
    [
        (TOO_MUCH, True),
        (TOO_MUCH.replace("insufficient quota", "insufficient unused quota").partition(", prev")[0], False),
        (f"{TOO_MUCH}, insufficient unused quota for nvidia.com/gpu in flavor spot, 4 more needed", False),
    ],
    ids=["more than the queue has", "waits for quota", "another flavor is large enough"],
)
def test_only_a_job_that_its_queue_can_never_admit_is_ended(message, ends):
    with a_stage("complete", kueue=True) as (cluster, client):
        ref = client.submit(a_request(metadata={"labels": {"kueue.x-k8s.io/queue-name": "team"}}))
        workload = {"kind": "Workload", "name": "trainjob-job-1a2b3", "namespace": "default"}
        moment = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        raw = event("Pending", message, firstTimestamp=moment, lastTimestamp=moment)
        metadata = {"name": "pending", "namespace": "default"}
        cluster.add({"apiVersion": "v1", "kind": "Event", **raw, "involvedObject": workload, "metadata": metadata})
        cluster.advance(100)
        assert message in client.observe(ref).queued
        assert not should_cancel(client, ref)
        cluster.advance(60)
        assert should_cancel(client, ref) is ends
        assert not should_cancel(client, ref, fail_fast=False)


def _limited(job, *pods, now: float):
    state = parse_job({**job, "metadata": {**job["metadata"], "annotations": {labels.START_WITHIN: "600"}}})
    ref = TrainJobRef("kubernetes", "ml", JOB, "uid")
    found = observations.build_observation(state, pods, ref=ref, limits=_at(now)).pending_failure
    return found.start_within if found else None


def test_the_limit_of_start_within_runs_only_while_pods_have_no_node():
    job = train_job(numNodes=1)
    suspended = train_job(condition("Suspended", "True"), suspend=True)
    resumed = train_job(condition("Suspended", "False"))
    initializer = seen("dataset-initializer", main=runs("dataset-initializer"))
    late = {"created": _time(5000), **unscheduled("Unschedulable", NO_GPU)}

    assert _limited(job, now=111) == 480  # Created nine seconds before `BEGAN`.
    assert _limited(resumed, now=120) == 480
    assert _limited(suspended, now=9999) is None
    assert _limited(job, seen(main=runs()), now=9999) is None
    assert _limited(job, initializer, now=9999) is None
    assert _limited(job, initializer, seen(**late), now=5100) == 500


def test_a_clock_that_differs_from_that_of_the_server_changes_nothing():
    with a_stage(controllers=False) as (cluster, client):
        client.submit(a_request())
        cluster.advance(-5 * HOUR)
        client.list_jobs()
        difference = datetime.now(timezone.utc) - client.backend._reader.get_limits().now
    assert difference.total_seconds() == pytest.approx(5 * HOUR, abs=600)
