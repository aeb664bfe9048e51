"""What a workload's phase means, as far as it is known, and what its pods are: the table of specs.md B3."""

from __future__ import annotations

import pytest
from runai_scene import ENDED, READ, a_pod, a_workload

from trainer_core import RunaiBackendConfig
from trainer_core.backends.runai.dialect import dialect_of
from trainer_core.cluster import marks, observe
from trainer_core.cluster.raw import time_of
from trainer_core.outcome import Category

#: Phases that Run:ai is known to have, of both of its generations.
GOES_ON = (
    *("Creating", "Initializing", "Resuming", "Pending", "Deleting", "Updating", "Stopping", "Degraded", "Terminating"),
    *("Unknown", "ContainerCreating", "Error", "CrashLoopBackOff", "ImagePullBackOff", "Preempted", "SomethingNew", ""),
)


def looked_at(raw, *pods, **more):
    job = READ(raw)
    return observe.observation(job, list(pods), ref=observe.ref_of(job), **more)


@pytest.mark.parametrize("phase", GOES_ON)
def test_a_phase_that_is_not_known_to_be_an_end_is_none(phase):
    assert looked_at(a_workload(phase)).status == "Created"


@pytest.mark.parametrize("phase", ["Running", "running"])
def test_it_runs_when_it_says_so(phase):
    assert looked_at(a_workload(phase)).status == "Running"


@pytest.mark.parametrize("phase", ["Completed", "Succeeded", "completed"])
def test_it_is_complete(phase):
    assert looked_at(a_workload(phase)).outcome.succeeded


@pytest.mark.parametrize("phase", ["Failed", "Fail", "failed"])
def test_it_has_failed_and_says_of_what(phase):
    outcome = looked_at(a_workload(phase, status={"phaseMessage": "2 pods failed"})).outcome
    assert (outcome.status, outcome.diagnosis.reason) == ("Failed", "it failed: 2 pods failed")


def test_what_ran_for_too_long_has_passed_a_deadline():
    assert looked_at(a_workload("TimedOut")).outcome.diagnosis.category is Category.DEADLINE


@pytest.mark.parametrize("phase", ["Stopped", "Deleted"])
def test_what_others_have_stopped_has_failed(phase):
    diagnosis = looked_at(a_workload(phase)).outcome.diagnosis
    assert (diagnosis.category, diagnosis.reason) == (Category.DELETED, "it was stopped in Run:ai")


@pytest.mark.parametrize("phase", ["Stopped", "Stopping", "Running", ""])
def test_what_is_not_active_is_suspended(phase):
    assert looked_at(a_workload(phase, active={"value": False})).status == "Suspended"


def test_what_was_cancelled_stays_so():
    raw = a_workload("Stopped", active={"value": False}, annotations={marks.CANCELLED: ENDED})
    assert looked_at(raw).outcome.diagnosis.reason == "it was cancelled"


def test_what_was_preempted_is_queued_again():
    assert looked_at(a_workload("Preempted")).outcome is None


def test_what_was_preempted_for_good_may_be_tried_again():
    diagnosis = looked_at(a_workload("Preempted", terminateAfterPreemption={"value": True})).outcome.diagnosis
    assert (diagnosis.category, diagnosis.retryable) == (Category.PREEMPTED, True)


def test_the_phases_of_another_release_can_be_named():
    config = RunaiBackendConfig(project="a", succeeded_phases=("Done",), failed_phases=("Broken",))
    read = dialect_of(config).read
    assert [observe.status_of(read(a_workload(phase))) for phase in ("Done", "Broken", "Completed")] == [
        "Complete",
        "Failed",
        "Created",
    ]


def test_equal_phases_share_a_watch():
    assert dialect_of(RunaiBackendConfig(project="a")).read is dialect_of(RunaiBackendConfig(project="b")).read


@pytest.mark.parametrize(
    "status",
    [
        {"completedAt": ENDED},
        {"conditions": [{"type": "Completed", "status": "True", "lastTransitionTime": ENDED}]},
    ],
)
def test_when_it_ended_is_told_where_it_says_so(status):
    job = READ(a_workload("Completed", status=status))
    assert observe.train_job(job).finished == time_of(ENDED)


@pytest.mark.parametrize(
    ("role", "name", "labels", "step"),
    [
        ("", "digits-0-0", {}, "node-0"),
        ("master", "digits-master-0", {}, "node-0"),
        ("worker", "digits-worker-1", {}, "node-2"),
        ("worker", "digits-worker-x7x7x", {"training.kubeflow.org/replica-index": "1"}, "node-2"),
        ("launcher", "digits-launcher-x7x7x", {}, "launcher"),
        ("node", "digits-worker-1", {}, "node-1"),
    ],
)
def test_a_pod_is_the_step_that_its_role_and_number_say(role, name, labels, step):
    pod = a_pod(name, role, **labels)
    assert (pod.job, pod.step) == ("digits", step)


@pytest.mark.parametrize(
    ("spec", "kind", "nodes"),
    [
        ({}, "TrainingWorkload", 1),
        ({"jobType": "PyTorchJob", "workers": {"value": 3}}, "DistributedWorkload", 4),
        ({"jobType": "MPIJob", "workers": {"value": 3}}, "DistributedWorkload", 3),
    ],
)
def test_the_nodes_of_a_job_are_counted_as_its_kind_counts_them(spec, kind, nodes):
    assert READ(a_workload(kind=kind, **spec)).num_nodes == nodes


@pytest.mark.parametrize(
    ("spec", "device"),
    [
        ({"gpu": {"value": "2"}}, ("gpu", "2")),
        ({"gpu": {"value": "0.5"}}, ("gpu", "0.5")),
        ({"gpuDevices": {"value": 8}}, ("gpu", "8")),
        ({"migProfile": {"value": "1g.5gb"}}, ("mig-1g.5gb", "1")),
        ({"cpu": {"value": "4"}}, ("cpu", "4")),
        ({"gpu": {"value": "0"}}, None),
    ],
)
def test_what_it_computes_on_is_told(spec, device):
    assert READ(a_workload(**spec)).device == device


def test_a_template_is_no_job():
    is_job = dialect_of(RunaiBackendConfig(project="a")).is_job
    assert (is_job(a_workload()), is_job({"spec": {"usage": "Template"}})) == (True, False)


def test_a_workload_of_others_with_unusual_fields_can_be_read():
    job = READ(a_workload("Running", active={"items": {}}, gpu="8", kind="DistributedWorkload", workers={}))
    assert (job.suspend, job.device, job.num_nodes) == (False, None, 1)
