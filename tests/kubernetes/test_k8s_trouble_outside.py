"""What hinders a job from outside: no machine, refused parts, lost machines; and what counts first."""

from __future__ import annotations

import pytest
from k8s_objects import IMAGE, LATER, disrupted, end, ended, error, event, runs, seen, unscheduled, waits

from trainer_core.cluster import events, trouble
from trainer_core.cluster.reasons import GIVE_UP, SOON, WAIT
from trainer_core.outcome import Category

NOT_FOUND = (
    'rpc error: code = NotFound desc = failed to pull and unpack image "ghcr.io/acme/digits:3": failed to resolve '
    "reference: ghcr.io/acme/digits:3: not found"
)
NO_GPU = "0/3 nodes are available: 1 node(s) had untolerated taint {spot: }, 2 Insufficient nvidia.com/gpu."
QUOTA = 'Error creating: pods "digits-node-0-0-x7x7x" is forbidden: exceeded quota: ml, requested: cpu=8, used: cpu=9'
WEBHOOK = (
    'TrainJob resources reconciliation failed: admission webhook "vjobset.kb.io" denied the request: '
    "dependsOn must not be set for the first replicatedJob"
)


def _of(*pods, raws=()):
    return trouble.trouble(pods, [events.read(raw) for raw in raws])


def _why(*pods, raws=()):
    """Category and grace of what is wrong."""
    found = _of(*pods, raws=raws)
    return found.diagnosis.category, found.grace


# --- no machine


def test_lack_of_a_resource_is_named_and_given_time():
    found = _of(seen(**unscheduled("Unschedulable", NO_GPU)))

    assert found.diagnosis.reason.startswith("no machine has enough nvidia.com/gpu: 0/3 nodes are available")
    assert (found.diagnosis.category, found.grace, found.diagnosis.retryable) == (Category.SCHEDULING, WAIT, True)


def test_a_scheduling_gate_is_nobodys_fault():
    pod = seen(**unscheduled("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"))

    assert _why(pod) == (Category.SCHEDULING, None)


def test_a_claim_that_is_not_bound_keeps_a_pod_waiting():
    pod = seen(**unscheduled("Unschedulable", "0/3 nodes: pod has unbound immediate PersistentVolumeClaims."))

    assert _of(pod).diagnosis.reason.startswith("its volume cannot be had")


def test_a_used_up_quota_is_told_by_an_event_of_the_job():
    found = _of(raws=[event("FailedCreate", QUOTA, kind="Job", name="digits-node-0")])

    assert (found.diagnosis.category, found.grace, found.diagnosis.retryable) == (Category.SCHEDULING, WAIT, True)
    assert "exceeded quota: ml" in found.diagnosis.reason


def test_a_machine_that_refuses_a_pod_is_told():
    pod = seen(main=waits(""), phase="Failed", reason="OutOfcpu", message="Node didn't have enough resource: cpu")

    assert _why(pod) == (Category.SCHEDULING, None)


# --- refused


def test_parts_that_admission_refuses_count_at_once():
    found = _of(raws=[event("TrainJobResourcesCreationFailed", WEBHOOK, kind="TrainJob", name="digits")])

    assert (found.diagnosis.category, found.grace) == (Category.REJECTED, GIVE_UP)
    assert "dependsOn must not be set" in found.diagnosis.reason


@pytest.mark.parametrize(
    ("message", "category", "grace"),
    [
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot', Category.REJECTED, GIVE_UP),
        ('serviceaccount "trainer" not found', Category.REJECTED, SOON),
        ('failed calling webhook "vjob": connection refused', Category.INFRASTRUCTURE, WAIT),
        ("the object has been modified; please apply your changes", Category.INFRASTRUCTURE, WAIT),
        ('object is being deleted: jobs.batch "digits-node-0" already exists', Category.INFRASTRUCTURE, WAIT),
        (
            "invalid runtime snapshot: a snapshot configmap exists but is owned by another object",
            Category.INFRASTRUCTURE,
            WAIT,
        ),
        (
            'JobSet "digits" is invalid: metadata.ownerReferences: Only one reference can have Controller set to true',
            Category.INFRASTRUCTURE,
            WAIT,
        ),
    ],
)
def test_what_may_be_otherwise_in_a_moment_is_given_one(message, category, grace):
    raws = [event("FailedCreate", f"Error creating: {message}", kind="Job", name="digits-node-0")]

    assert _why(raws=raws) == (category, grace)


def test_a_refusal_is_forgotten_once_there_is_a_pod():
    raws = [event("FailedCreate", QUOTA, kind="Job", name="digits-node-0")]

    assert _of(seen(main=runs(), created=LATER), raws=raws) is None


# --- machines


@pytest.mark.parametrize(
    ("fields", "category"),
    [
        (disrupted("PreemptionByScheduler", "preempting to accommodate a higher priority pod"), Category.PREEMPTED),
        (disrupted("EvictionByEvictionAPI"), Category.PREEMPTED),
        (disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"), Category.NODE_LOST),
        (disrupted("DeletionByPodGC", "PodGC: node no longer exists"), Category.NODE_LOST),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            Category.PREEMPTED,
        ),
        ({"phase": "Failed", "reason": "Terminated", "message": "imminent node shutdown"}, Category.NODE_LOST),
        ({"phase": "Unknown", "reason": "NodeLost"}, Category.NODE_LOST),
    ],
)
def test_a_pod_that_loses_its_machine_gets_another_so_nobody_gives_up(fields, category):
    found = _of(seen(main=runs(), **fields))

    assert (found.diagnosis.category, found.grace, found.diagnosis.retryable) == (category, None, True)
    assert (found.diagnosis.step, found.diagnosis.node) == ("node-0", "gpu-1")


def test_the_pressure_that_evicted_a_pod_is_told():
    fields = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}

    assert "low on resource: ephemeral-storage" in _of(seen(main=runs(), **fields)).diagnosis.reason


def test_a_pod_evicted_for_its_own_use_of_disk_needs_no_retry():
    message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."
    diagnosis = _of(seen(main=ended(137), phase="Failed", reason="Evicted", message=message)).diagnosis

    assert (diagnosis.category, diagnosis.retryable) == (Category.USER_CODE, False)
    assert "exceeds the total limit" in diagnosis.reason


def test_peers_of_a_preempted_node_crash_of_it():
    peer = waits("CrashLoopBackOff", restarts=3, last=end(1, error("DistBackendError", "peer is gone")))
    found = _of(seen("node-0", main=peer), seen("node-1", main=ended(143), **disrupted("PreemptionByScheduler")))

    assert (found.diagnosis.category, found.diagnosis.step, found.grace) == (Category.PREEMPTED, "node-1", None)


def test_a_pod_that_is_told_to_go_has_not_failed():
    assert _of(seen(main=ended(143), metadata={"deletionTimestamp": LATER})) is None


# --- what counts first, and where pods are not to be seen


def test_what_cannot_change_counts_before_what_may():
    pods = [
        seen("node-0", **unscheduled("Unschedulable", NO_GPU)),
        seen("node-1", main=waits("ErrImagePull", NOT_FOUND)),
    ]

    assert _why(*pods) == (Category.IMAGE, GIVE_UP)


def test_a_step_that_has_succeeded_in_the_end_is_forgiven():
    first = seen(main=ended(1), created="2026-11-20T09:59:00Z", rand="first")

    assert _of(first, seen(main=ended(0))) is None


@pytest.mark.parametrize(
    ("raw", "category", "grace"),
    [
        (event("FailedScheduling", NO_GPU), Category.SCHEDULING, WAIT),
        (event("Failed", f'Failed to pull image "{IMAGE}": {NOT_FOUND}'), Category.IMAGE, GIVE_UP),
        (event("FailedCreatePodSandBox", "no IP addresses available"), Category.INFRASTRUCTURE, WAIT),
        (event("NodeNotReady", "Node is not ready"), Category.NODE_LOST, None),
        (event("Preempted", "Preempted by pod uid-1 on node gpu-1"), Category.PREEMPTED, None),
    ],
)
def test_where_pods_may_not_be_read_their_events_tell(raw, category, grace):
    assert _why(raws=[raw]) == (category, grace)


@pytest.mark.parametrize(
    ("pods", "needed"),
    [
        ([], True),
        ([seen()], True),
        ([seen(main=waits("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'))], True),
        ([seen(main=waits("ErrImagePull", NOT_FOUND))], False),
        ([seen(**unscheduled("Unschedulable", NO_GPU))], False),
        ([seen(main=runs())], False),
    ],
)
def test_events_are_needed_only_where_pods_do_not_say_enough(pods, needed):
    assert trouble.needs_events(pods) is needed
