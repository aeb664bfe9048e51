"""Detection of pending failures: images, containers, crashes, scheduling, admission and disruptions."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from k8s_objects import (
    ENDED,
    IMAGE,
    LATER,
    disrupted,
    end,
    ended,
    error,
    event,
    runs,
    seen,
    train_job,
    unscheduled,
    waits,
)

from trainer_core.backends.trainer_v2.parse import parse_job
from trainer_core.k8s import events, failure_facts, failure_reasons, labels
from trainer_core.k8s.capacity import SchedulingLimits
from trainer_core.k8s.failure_reasons import FATAL, LONG_GRACE, SHORT_GRACE
from trainer_core.k8s.pod_state import group_pods_by_step
from trainer_core.model.jobs import Category
from trainer_core.node.launch import WAITING

NOT_FOUND = (
    'rpc error: code = NotFound desc = failed to pull and unpack image "ghcr.io/acme/digits:3": failed to resolve '
    "reference: ghcr.io/acme/digits:3: not found"
)
DENIED = (
    "pull access denied, repository does not exist or may require authorization: server message: insufficient_scope"
)
AWAY = 'failed to do request: Head "https://ghcr.io/v2/": dial tcp 140.82.1.1:443: i/o timeout'
NO_REGISTRY = 'failed to do request: Head "https://localhost:1/v2/": dial tcp [::1]:1: connect: connection refused'
NO_SUCH_HOST = 'failed to do request: Head "https://ghcr.oi/v2/": dial tcp: lookup ghcr.oi: no such host'
LIMITED = "429 Too Many Requests: toomanyrequests: You have reached your unauthenticated pull rate limit"
NO_COMMAND = (
    "failed to create containerd task: OCI runtime create failed: runc create failed: unable to start container "
    'process: exec: "python3": executable file not found in $PATH'
)
NO_GPU = "0/3 nodes are available: 1 node(s) had untolerated taint {spot: }, 2 Insufficient nvidia.com/gpu."
QUOTA = 'Error creating: pods "digits-node-0-0-x7x7x" is forbidden: exceeded quota: ml, requested: cpu=8, used: cpu=9'
WEBHOOK = (
    'TrainJob resources reconciliation failed: admission webhook "vjobset.kb.io" denied the request: '
    "dependsOn must not be set for the first replicatedJob"
)
OFTEN = {"restarts": 1, "last": end(1, error())}


def _detect(*pods, raws=()):
    return failure_facts.detect_pending_failure(pods, [events.parse_event(raw) for raw in raws])


def _classify(*pods, raws=()):
    """Return category and grace of the pending failure."""
    found = _detect(*pods, raws=raws)
    return found.diagnosis.category, found.grace


@pytest.mark.parametrize("main", [runs(), waits("ContainerCreating"), waits("PodInitializing"), ended(0)])
def test_a_starting_job_has_no_pending_failure(main):
    assert _detect(seen(main=main)) is None


# --- images


@pytest.mark.parametrize(
    ("reason", "message", "grace"),
    [
        ("ErrImagePull", NOT_FOUND, FATAL),
        ("ErrImagePull", DENIED, FATAL),
        ("ErrImagePull", "something new", SHORT_GRACE),
        ("ErrImagePull", AWAY, LONG_GRACE),
        ("ErrImagePull", NO_REGISTRY, SHORT_GRACE),
        ("ImagePullBackOff", f'Back-off pulling image "{IMAGE}": ErrImagePull: {NO_REGISTRY}', SHORT_GRACE),
        ("ErrImagePull", NO_SUCH_HOST, SHORT_GRACE),
        ("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"', FATAL),
        ("ImagePullBackOff", f'Back-off pulling image "{IMAGE}": ErrImagePull: {NOT_FOUND}', FATAL),
        ("ImagePullBackOff", f'Back-off pulling image "{IMAGE}": ErrImagePull: {LIMITED}', LONG_GRACE),
        ("InvalidImageName", 'couldn\'t parse image name "A:b:c"', FATAL),
        ("ErrImageNeverPull", "is not present with pull policy of Never", FATAL),
    ],
)
def test_a_missing_image_is_fatal_and_an_unreachable_registry_is_not(reason, message, grace):
    assert _classify(seen(main=waits(reason, message))) == (Category.IMAGE, grace)


def test_an_image_error_has_the_image_and_the_registry_answer():
    diagnosis = _detect(seen(main=waits("ErrImagePull", NOT_FOUND))).diagnosis

    assert diagnosis.reason.startswith(f"image {IMAGE} cannot be pulled: rpc error: code = NotFound")
    assert (diagnosis.step, diagnosis.node, diagnosis.retryable) == ("node-0", "gpu-1", False)


def test_an_unreachable_registry_is_retryable():
    assert _detect(seen(main=waits("ErrImagePull", AWAY))).diagnosis.retryable


def test_during_back_off_the_registry_answer_is_read_from_an_event():
    pod = seen(main=waits("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'))
    pulled = event("Failed", f'Failed to pull image "{IMAGE}": {LIMITED}')
    found = _detect(pod, raws=[pulled, event("Failed", "Error: ImagePullBackOff")])

    assert LIMITED in found.diagnosis.reason
    assert found.grace == LONG_GRACE


def test_an_image_error_of_a_sidecar_is_reported():
    sidecar = waits("ErrImagePull", NOT_FOUND, "proxy", image="proxy:1")

    assert "proxy:1" in _detect(seen(others=[sidecar])).diagnosis.reason


# --- containers that cannot start


def test_a_missing_secret_has_a_grace_because_it_is_created_after_the_job():
    main = waits("CreateContainerConfigError", 'secret "digits-initializer" not found')

    assert _classify(seen(main=main)) == (Category.REJECTED, SHORT_GRACE)
    assert 'secret "digits-initializer" not found' in _detect(seen(main=main)).diagnosis.reason


@pytest.mark.parametrize(
    "message",
    [
        NO_COMMAND,
        'unable to start container process: exec: "/work/train": permission denied: unknown',
        "exec /usr/bin/train: exec format error",
        'chdir to cwd ("/work") set in config.json failed: no such file or directory: unknown',
        "crun: executable file `train` not found in $PATH: No such file or directory",
    ],
)
def test_a_command_that_the_image_cannot_run_is_a_mistake_in_the_image(message):
    assert _classify(seen(main=ended(128, message=message, reason="StartError"))) == (Category.IMAGE, FATAL)


@pytest.mark.parametrize(
    "main",
    [
        waits("RunContainerError", NO_COMMAND),
        waits("CreateContainerError", NO_COMMAND),
        ended(128, message=NO_COMMAND, reason="StartError"),
        waits("CrashLoopBackOff", "back-off", last=end(128, NO_COMMAND, "StartError")),
    ],
)
def test_a_missing_command_is_fatal(main):
    assert _classify(seen(main=main)) == (Category.IMAGE, FATAL)
    assert 'exec: "python3": executable file not found' in _detect(seen(main=main)).diagnosis.reason


@pytest.mark.parametrize(
    "message",
    [
        "error running prestart hook #0: exit status 1, stderr: nvml error: driver/library version mismatch: unknown",
        "nvidia-container-cli: cannot open shared object file: stat libnvidia-ml.so.1: no such file or directory",
        "fork/exec /usr/bin/nvidia-container-runtime-hook: no such file or directory",
        "failed to create containerd task: failed to start shim: start failed: context deadline exceeded: unknown",
        "runc create failed: unable to start container process: error during container init: something new",
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_a_container_that_the_node_cannot_start_is_a_problem_of_the_node(message, last):
    main = ended(128, message=message, reason="StartError")
    crashed = waits("CrashLoopBackOff", "back-off", restarts=3, last=end(128, message, "StartError"))
    found = _detect(seen(main=crashed if last else main))

    assert (found.diagnosis.category, found.grace) == (Category.INFRASTRUCTURE, LONG_GRACE)
    assert found.diagnosis.retryable


def test_a_storage_driver_that_is_not_registered_on_a_new_node_is_not_a_missing_object():
    message = 'MountVolume.MountDevice failed for volume "pvc-1": driver name ebs.csi.aws.com not found in the list of '
    raws = [event("FailedMount", f"{message}registered CSI drivers")]

    assert _classify(seen(), raws=raws) == (Category.INFRASTRUCTURE, LONG_GRACE)


def test_a_slow_container_runtime_has_a_grace():
    assert _classify(seen(main=waits("CreateContainerError", "context deadline exceeded"))) == (
        Category.INFRASTRUCTURE,
        LONG_GRACE,
    )


@pytest.mark.parametrize("reason", ["FailedMount", "FailedAttachVolume"])
def test_a_mount_error_has_a_grace(reason):
    raws = [event(reason, "Multi-Attach error for volume pvc-1: timed out waiting for the condition")]

    assert _classify(seen(), raws=raws) == (Category.INFRASTRUCTURE, LONG_GRACE)


def test_mounting_a_missing_object_is_a_rejection():
    raws = [event("FailedMount", 'MountVolume.SetUp failed for volume "ca": configmap "ca" not found')]

    assert _classify(seen(), raws=raws) == (Category.REJECTED, 60)


def test_a_mount_error_is_ignored_once_the_container_runs():
    assert _detect(seen(main=runs()), raws=[event("FailedMount", "timed out waiting for the condition")]) is None


# --- crashes


def test_the_first_crash_is_reported_and_not_fatal():
    found = _detect(seen(main=ended(1, message=error())))

    assert (found.diagnosis.category, found.diagnosis.reason) == (Category.USER_CODE, "ValueError: bad shape")
    assert found.grace is None


def test_the_second_crash_is_a_fatal_crash_loop_with_its_exception():
    found = _detect(seen(main=waits("CrashLoopBackOff", "back-off 10s restarting failed container", **OFTEN)))

    assert (found.diagnosis.reason, found.grace) == ("ValueError: bad shape", FATAL)
    assert found.diagnosis.traceback == "Traceback …\nValueError"


@pytest.mark.parametrize("is_in_record", [True, False])
@pytest.mark.parametrize(("checkpoint", "grace"), [(7, None), (3, FATAL)])
def test_a_crash_after_a_new_checkpoint_is_not_part_of_a_crash_loop(checkpoint, grace, is_in_record):
    steps = {"checkpoint": checkpoint, "resumed_from": 3}
    record = json.loads(error()) | (steps if is_in_record else {})
    pod = seen(main=waits("CrashLoopBackOff", restarts=2, last=end(1, json.dumps(record))))
    tail = [] if is_in_record else ["trainjob: step", "[trainjob:progress] " + json.dumps({"step": 8, **steps})]
    (step,) = group_pods_by_step([pod])
    assert failure_facts.detect_pending_failure([pod], (), {step: tail}).grace == grace


def test_a_second_failed_pod_is_a_crash_loop():
    first = seen(main=ended(1), created="2026-11-20T09:59:00Z", rand="first")

    assert _classify(first, seen(main=ended(1))) == (Category.USER_CODE, FATAL)


def test_a_crashed_step_that_runs_again_is_not_fatal():
    assert _classify(seen(main=runs(restarts=3, last=end(1, error())))) == (Category.USER_CODE, None)


def test_a_crash_after_a_long_run_is_not_a_crash_loop():
    last = end(1, error(), finished=LATER)

    assert _classify(seen(main=waits("CrashLoopBackOff", restarts=1, last=last))) == (Category.USER_CODE, None)


def test_among_failed_nodes_the_one_with_an_exception_is_the_cause():
    peer = waits("CrashLoopBackOff", restarts=1, last=end(1, finished="2026-11-20T10:00:07Z"))
    cause = runs(restarts=1, last=end(1, error()))
    found = _detect(seen("node-1", main=peer), seen(main=cause))

    assert (found.diagnosis.step, found.diagnosis.reason, found.grace) == ("node-0", "ValueError: bad shape", FATAL)


def test_among_failed_nodes_without_an_exception_the_one_that_ended_first_is_the_cause():
    first = seen("node-1", main=ended(3, finished="2026-11-20T10:00:07Z"))
    found = _detect(seen("node-0", main=ended(3)), first)

    assert found.diagnosis.step == "node-1"


def test_only_the_newest_pod_of_a_step_waits():
    replaced = seen(main=waits("ErrImagePull", NOT_FOUND), created="2026-11-20T09:59:00Z", rand="first")

    assert _detect(seen(main=runs()), replaced) is None
    assert failure_facts.needs_events([replaced, seen(main=runs())]) is False


def test_the_last_pod_of_a_step_that_failed_itself_is_the_cause_and_not_a_preempted_one():
    first = seen(main=ended(3), created="2026-11-20T09:58:00Z", rand="first")
    preempted = seen(
        main=ended(143), created="2026-11-20T09:59:00Z", rand="second", **disrupted("PreemptionByScheduler")
    )
    found = _detect(first, preempted, seen(main=waits("PodInitializing")))

    assert (found.diagnosis.category, found.diagnosis.exit_code, found.grace) == (Category.USER_CODE, 3, None)


def test_the_crash_of_a_preempted_pod_is_not_part_of_a_crash_loop():
    preempted = seen(
        main=ended(1, restarts=3, last=end(1)),
        created="2026-11-20T09:59:00Z",
        rand="first",
        **disrupted("PreemptionByScheduler"),
    )

    assert _classify(preempted, seen(main=ended(1, message=error()))) == (Category.USER_CODE, None)


@pytest.mark.parametrize(
    "main",
    [
        ended(137, reason="OOMKilled"),
        waits("CrashLoopBackOff", last=end(137, reason="OOMKilled")),
        runs(restarts=1, last=end(137, reason="OOMKilled")),
    ],
)
def test_out_of_memory_is_detected_in_state_and_last_state(main):
    assert _classify(seen(main=main))[0] is Category.OUT_OF_MEMORY


def test_out_of_memory_is_fatal_at_once_if_the_next_attempt_asks_for_more():
    pod = seen(main=runs(restarts=1, last=end(137, reason="OOMKilled")))
    graces = [
        failure_facts.detect_pending_failure([pod], job=parse_job(train_job(annotations={labels.MEMORY: memory}))).grace
        for memory in (
            '{"amount": "8Gi", "asked": "8Gi", "next": "12Gi"}',
            '{"amount": "32Gi", "asked": "8Gi", "next": null}',
            '{"amount": "damaged"}',
        )
    ]
    assert graces == [FATAL, None, None]


@pytest.mark.parametrize(("nodes", "grace"), [(1, None), (2, FATAL)])
def test_a_stall_of_one_of_several_nodes_is_fatal_because_it_cannot_join_the_others_again(nodes, grace):
    record = {"error": {"type": "trainjob.Stalled", "message": "no progress for 9 min", "traceback": "", "rank": 0}}
    pod = seen(main=runs(restarts=1, last=end(124, message=json.dumps(record))))
    job = replace(parse_job(train_job()), num_nodes=nodes)
    found = failure_facts.detect_pending_failure([pod], job=job)
    assert (found.diagnosis.category, found.diagnosis.retryable, found.grace) == (Category.STALLED, True, grace)


def test_out_of_memory_quotes_the_last_report_of_the_memory():
    totals = {"seconds": 60, "cpu_seconds": 1, "cpu_available_seconds": 60, "memory_peak": 3.9e9, "memory_limit": 4e9}
    record = json.dumps({"resources": totals})
    diagnosis = _detect(seen(main=ended(137, message=record, reason="OOMKilled"))).diagnosis

    assert diagnosis.reason.startswith(
        "it ran out of memory (limit 3.73 GiB; the highest sample before its end was 3.63 GiB);"
    )
    assert diagnosis.log_tail == ()


@pytest.mark.parametrize(
    ("code", "category", "says"),
    [
        (1, Category.USER_CODE, "exit code 1"),
        (126, Category.USER_CODE, "cannot be executed"),
        (127, Category.USER_CODE, "was not found"),
        (137, Category.INFRASTRUCTURE, "SIGKILL"),
        (139, Category.USER_CODE, "SIGSEGV"),
        (143, Category.INFRASTRUCTURE, "SIGTERM"),
    ],
)
def test_exit_codes_are_classified(code, category, says):
    diagnosis = _detect(seen(main=ended(code))).diagnosis

    assert diagnosis.category is category
    assert says in diagnosis.reason


def test_a_termination_message_without_a_record_is_reported():
    message = "Traceback (most recent call last):\n  …\nKeyError: 'lr'\n"
    diagnosis = _detect(seen(main=ended(1, message=message))).diagnosis

    assert diagnosis.reason == "it ended with exit code 1: KeyError: 'lr'"
    assert diagnosis.log_tail[-1] == "KeyError: 'lr'"


def test_a_result_record_of_a_failed_step_is_not_a_message():
    assert _detect(seen(main=ended(1, message='{"result": 3}'))).diagnosis.reason == "it ended with exit code 1"


def test_a_failed_initializer_is_explained_by_its_message():
    main = ended(1, "dataset-initializer", message="401 Client Error: acme/private is gated")
    diagnosis = _detect(seen("dataset-initializer", main=main)).diagnosis

    assert (diagnosis.category, diagnosis.step) == (Category.INITIALIZER, "dataset-initializer")
    assert diagnosis.reason == "401 Client Error: acme/private is gated"


def test_the_diagnosis_has_the_end_of_the_log():
    found = failure_facts.detect_pending_failure([seen(main=ended(1))], tails={"node-0": ["step 1", "boom"]})

    assert found.diagnosis.log_tail == ("step 1", "boom")


def test_a_failed_sidecar_is_named():
    pod = seen(main=ended(0), others=[ended(7, "proxy", message="no route")], phase="Failed")

    assert _detect(pod).diagnosis.reason == "container 'proxy' exited with code 7: no route"


def test_a_crash_loop_of_an_init_container_is_fatal():
    prepare = waits("CrashLoopBackOff", name="prepare", restarts=1, last=end(2))
    found = _detect(seen(main=waits("PodInitializing"), others=[prepare]))

    assert (found.diagnosis.reason, found.grace) == ("container 'prepare' exited with code 2", FATAL)


# --- scheduling


def test_a_scheduling_gate_has_no_time_limit():
    pod = seen(**unscheduled("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"))

    assert _classify(pod) == (Category.SCHEDULING, None)


def test_an_unbound_volume_claim_is_a_scheduling_problem():
    pod = seen(**unscheduled("Unschedulable", "0/3 nodes: pod has unbound immediate PersistentVolumeClaims."))

    assert _detect(pod).diagnosis.reason.startswith("volume is not available")


def test_a_pod_rejected_by_the_kubelet_is_reported():
    pod = seen(main=waits(""), phase="Failed", reason="OutOfcpu", message="Node didn't have enough resource: cpu")

    assert _classify(pod) == (Category.SCHEDULING, None)


# --- rejected child objects


def test_child_objects_rejected_by_admission_are_fatal():
    found = _detect(raws=[event("TrainJobResourcesCreationFailed", WEBHOOK, kind="TrainJob", name="digits")])

    assert (found.diagnosis.category, found.grace) == (Category.REJECTED, FATAL)
    assert "dependsOn must not be set" in found.diagnosis.reason


@pytest.mark.parametrize(
    ("message", "category", "grace"),
    [
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot', Category.REJECTED, FATAL),
        ('serviceaccount "trainer" not found', Category.REJECTED, SHORT_GRACE),
        ('failed calling webhook "vjob": connection refused', Category.INFRASTRUCTURE, LONG_GRACE),
        ("the object has been modified; please apply your changes", Category.INFRASTRUCTURE, LONG_GRACE),
        ('object is being deleted: jobs.batch "digits-node-0" already exists', Category.INFRASTRUCTURE, LONG_GRACE),
        (
            "invalid runtime snapshot: a snapshot configmap exists but is owned by another object",
            Category.INFRASTRUCTURE,
            LONG_GRACE,
        ),
        (
            'JobSet "digits" is invalid: metadata.ownerReferences: Only one reference can have Controller set to true',
            Category.INFRASTRUCTURE,
            LONG_GRACE,
        ),
    ],
)
def test_transient_creation_errors_have_a_grace(message, category, grace):
    raws = [event("FailedCreate", f"Error creating: {message}", kind="Job", name="digits-node-0")]

    assert _classify(raws=raws) == (category, grace)


def test_a_creation_error_is_ignored_once_a_pod_exists():
    raws = [event("FailedCreate", QUOTA, kind="Job", name="digits-node-0")]

    assert _detect(seen(main=runs(), created=LATER), raws=raws) is None


# --- disruptions


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
def test_a_disruption_has_no_time_limit_because_the_pod_is_replaced(fields, category):
    found = _detect(seen(main=runs(), **fields))

    assert (found.diagnosis.category, found.grace, found.diagnosis.retryable) == (category, None, True)
    assert (found.diagnosis.step, found.diagnosis.node) == ("node-0", "gpu-1")


def test_an_eviction_has_the_pressure_of_the_node():
    fields = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}

    assert "low on resource: ephemeral-storage" in _detect(seen(main=runs(), **fields)).diagnosis.reason


def test_an_eviction_for_exceeded_storage_is_not_retryable():
    message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."
    diagnosis = _detect(seen(main=ended(137), phase="Failed", reason="Evicted", message=message)).diagnosis

    assert (diagnosis.category, diagnosis.retryable) == (Category.USER_CODE, False)
    assert "exceeds the total limit" in diagnosis.reason


def test_preemption_of_a_node_is_the_cause_of_crashes_of_its_peers():
    peer = waits("CrashLoopBackOff", restarts=3, last=end(1, error("DistBackendError", "peer is gone")))
    found = _detect(seen("node-0", main=peer), seen("node-1", main=ended(143), **disrupted("PreemptionByScheduler")))

    assert (found.diagnosis.category, found.diagnosis.step, found.grace) == (Category.PREEMPTED, "node-1", None)


def test_a_pod_that_ran_longer_than_its_deadline_is_a_deadline():
    late = seen(main=ended(137), phase="Failed", reason="DeadlineExceeded")
    found = _detect(late)

    assert (found.diagnosis.category, found.diagnosis.reason) == (Category.DEADLINE, "pod exceeded its deadline")
    assert found.grace is None


def test_of_the_events_of_a_waiting_pod_the_last_one_counts():
    mount, sandbox = event("FailedMount", "timed out"), event("FailedCreatePodSandBox", "no IP addresses available")

    assert "sandbox" in _detect(seen(), raws=[mount, sandbox]).diagnosis.reason
    assert "volume" in _detect(seen(), raws=[sandbox, mount]).diagnosis.reason


def test_a_pod_terminated_by_its_deletion_has_not_failed():
    assert _detect(seen(main=ended(143), metadata={"deletionTimestamp": LATER})) is None


# --- precedence, and jobs without visible pods


def test_no_cause_is_said_of_a_pod_that_is_being_deleted_unless_an_exception_is_known():
    """A launcher such as torchrun ends with 1 after SIGTERM."""
    assert _detect(seen(main=ended(1), metadata={"deletionTimestamp": LATER})) is None
    raised = _detect(seen(main=ended(1, message=error()), metadata={"deletionTimestamp": LATER}))
    assert raised.diagnosis.category is Category.USER_CODE
    (facts,) = failure_facts.collect_failure_facts([seen(main=ended(1), metadata={"deletionTimestamp": LATER})]).steps
    assert facts.exit_code == 1


def test_a_bare_exit_code_is_no_cause_until_the_log_explains_it():
    pod, again = seen(main=ended(1)), seen(main=ended(1, restarts=1, last=end(1)))
    killed = ["  rank      : 1 (local_rank: 1)", "  exitcode  : -9 (pid: 7) (SIGKILL)"]

    assert failure_facts.detect_pending_failure([pod], tails={"node-0": []}) is None
    assert failure_facts.detect_pending_failure([again], tails={"node-0": []}).grace == FATAL
    found = failure_facts.detect_pending_failure([pod], tails={"node-0": killed})
    assert found.diagnosis.category is Category.INFRASTRUCTURE


def test_a_fatal_problem_takes_precedence_over_a_transient_one():
    pods = [
        seen("node-0", **unscheduled("Unschedulable", NO_GPU)),
        seen("node-1", main=waits("ErrImagePull", NOT_FOUND)),
    ]

    assert _classify(*pods) == (Category.IMAGE, FATAL)


def test_failures_before_a_success_are_ignored():
    first = seen(main=ended(1), created="2026-11-20T09:59:00Z", rand="first")

    assert _detect(first, seen(main=ended(0))) is None


@pytest.mark.parametrize(
    ("raw", "category", "grace"),
    [
        (event("FailedScheduling", NO_GPU), Category.SCHEDULING, None),
        (event("Failed", f'Failed to pull image "{IMAGE}": {NOT_FOUND}'), Category.IMAGE, FATAL),
        (event("FailedCreatePodSandBox", "no IP addresses available"), Category.INFRASTRUCTURE, LONG_GRACE),
        (event("NodeNotReady", "Node is not ready"), Category.NODE_LOST, None),
        (event("Preempted", "Preempted by pod uid-1 on node gpu-1"), Category.PREEMPTED, None),
    ],
)
def test_without_permission_to_read_pods_their_events_are_used(raw, category, grace):
    assert _classify(raws=[raw]) == (category, grace)


@pytest.mark.parametrize(
    ("pod", "reasons"),
    [
        (seen(main=runs()), ["preempted by a pod of higher priority: Preempted by pod uid-1 on node gpu-1"]),
        (seen(main=runs(), rand="later"), []),
    ],
    ids=["its own event", "the event of the pod that it replaced"],
)
def test_a_failed_job_whose_pod_was_removed_while_it_was_known_as_running_is_explained_by_its_events(pod, reasons):
    record = events.parse_event(event("Preempted", "Preempted by pod uid-1 on node gpu-1"))

    facts = failure_facts.collect_failure_facts([pod], [record], message="1 replica failed")

    assert [step.preempted for step in facts.steps] == reasons


@pytest.mark.parametrize(
    ("pods", "needed"),
    [
        ([], True),
        ([seen()], True),
        ([seen(main=waits("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'))], True),
        ([seen(main=waits("ErrImagePull", NOT_FOUND))], False),
        ([seen(others=[waits("ErrImagePull", NOT_FOUND, name="sidecar")])], False),
        ([seen(**unscheduled("Unschedulable", NO_GPU))], False),
        ([seen(main=runs())], False),
    ],
)
def test_events_are_needed_only_if_pods_do_not_explain_themselves(pods, needed):
    assert failure_facts.needs_events(pods) is needed


# --- nodes that wait for one that has succeeded


NOW = datetime.fromisoformat(LATER.replace("Z", "+00:00"))
REPORT = '[trainjob:resources] {"cpu": 1}'


def detect_left(*pods, tail=(WAITING, REPORT), now=NOW):
    limits = SchedulingLimits(now, 60.0)
    return failure_facts.detect_pending_failure(pods, tails={"node-0": tail}, limits=limits)


def test_a_node_that_waits_for_one_that_has_succeeded_ends_the_attempt_and_a_retry_helps():
    pods = [seen(main=runs(restarts=1, last=end(1))), seen("node-1", main=ended(0))]
    found = detect_left(*pods, tail=("trained", WAITING, REPORT))
    assert (found.diagnosis.category, found.diagnosis.retryable, found.grace) == (Category.INFRASTRUCTURE, True, FATAL)
    assert found.diagnosis.reason.startswith("node-0 was started again and waits for the other nodes")
    assert failure_facts.find_left_node(pods, NOW) == "node-0"


@pytest.mark.parametrize(
    "changed",
    [
        {"tail": ()},
        {"tail": (WAITING, "epoch 1")},
        {"now": datetime.fromisoformat(ENDED.replace("Z", "+00:00")) + timedelta(seconds=59)},
    ],
    ids=["unread", "training", "brief"],
)
def test_a_node_that_trains_or_has_waited_briefly_is_left_alone(changed):
    assert detect_left(seen(main=runs()), seen("node-1", main=ended(0)), **changed) is None


@pytest.mark.parametrize("other", [runs(), ended(1), None])
def test_a_node_waits_as_long_as_no_other_has_succeeded(other):
    pods = [seen(main=runs()), *([seen("node-1", main=other)] if other else [])]
    found = detect_left(*pods)
    assert found is None or found.diagnosis.step == "node-1"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ('Get "https://registry.example.com/v2/": dial tcp: lookup registry.example.com: no such host', True),
        ("dial tcp: lookup registry.example.com on 10.0.0.10:53: server misbehaving", True),
        ("lookup registry.example.com: Temporary failure in name resolution", True),
        ("received unexpected HTTP status: 503 Service Unavailable", True),
        ("reading manifest 1 in registry.example.com/a: StatusCode: 502, <html>…", True),
        ('pinging container registry: Get "https://registry.example.com/v2/": EOF (see the log)', True),
        ("manifest unknown: manifest unknown", False),
        ("unauthorized: authentication required", False),
        ("repository team/model does not exist or may require 'docker login'", False),
    ],
)
def test_the_texts_of_registries_that_a_retry_may_fix_are_those_of_clusters_and_engines(message, expected):
    assert failure_reasons.is_transient(message) is expected
