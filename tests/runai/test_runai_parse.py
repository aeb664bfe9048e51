"""Parsing of workloads and pods: status, outcome, steps, nodes and devices.

Run:ai documents the phases of its jobs at https://docs.run.ai/v2.16/Researcher/scheduling/job-statuses/
"""

from __future__ import annotations

import pytest
from runai_scene import ENDED, build_pod, build_workload, parse_job

from trainer_core import RunaiBackendConfig
from trainer_core.backends.runai.backend import build_adapter
from trainer_core.k8s import labels as k8s_labels, observations
from trainer_core.k8s.parsing import parse_time
from trainer_core.model.jobs import Category

#: Documented phases of all releases that do not end a job, and an unknown one.
RUNNING_PHASES = (
    *("Creating", "Initializing", "Resuming", "Pending", "Deleting", "Updating", "Stopping", "Degraded", "Terminating"),
    *("Unknown", "ContainerCreating", "Error", "CrashLoopBackOff", "ImagePullBackOff", "Preempted", "SomethingNew", ""),
)


def observe(raw, *pods):
    job = parse_job(raw)
    return observations.build_observation(job, list(pods), ref=observations.build_ref(job))


@pytest.mark.parametrize("phase", RUNNING_PHASES)
def test_another_phase_does_not_end_a_job(phase):
    assert observe(build_workload(phase)).status == "Created"


@pytest.mark.parametrize("phase", ["Running", "running"])
def test_phase_running_is_running(phase):
    assert observe(build_workload(phase)).status == "Running"


@pytest.mark.parametrize("phase", ["Completed", "Succeeded", "completed"])
def test_phases_completed_and_succeeded_are_complete(phase):
    assert observe(build_workload(phase)).outcome.succeeded


@pytest.mark.parametrize("phase", ["Failed", "Fail", "failed"])
def test_a_failed_job_has_the_message_of_its_phase(phase):
    outcome = observe(build_workload(phase, status={"phaseMessage": "2 pods failed"})).outcome
    assert (outcome.status, outcome.diagnosis.reason) == ("Failed", "it failed: 2 pods failed")


def test_phase_timed_out_is_an_exceeded_deadline():
    assert observe(build_workload("TimedOut")).outcome.diagnosis.category is Category.DEADLINE


@pytest.mark.parametrize("phase", ["Stopped", "Deleted"])
def test_a_job_stopped_in_runai_failed(phase):
    diagnosis = observe(build_workload(phase)).outcome.diagnosis
    assert (diagnosis.category, diagnosis.reason) == (Category.DELETED, "it was stopped in Run:ai")


@pytest.mark.parametrize("phase", ["Stopped", "Stopping", "Running", ""])
def test_an_inactive_job_is_suspended(phase):
    assert observe(build_workload(phase, active={"value": False})).status == "Suspended"


def test_a_cancelled_job_stays_cancelled():
    raw = build_workload("Stopped", active={"value": False}, annotations={k8s_labels.CANCELLED: ENDED})
    assert observe(raw).outcome.diagnosis.reason == "it was cancelled"


def test_a_preempted_job_is_queued_again():
    assert observe(build_workload("Preempted")).outcome is None


def test_a_job_terminated_after_preemption_can_be_retried():
    diagnosis = observe(build_workload("Preempted", terminateAfterPreemption={"value": True})).outcome.diagnosis
    assert (diagnosis.category, diagnosis.retryable) == (Category.PREEMPTED, True)


def test_the_meaning_of_phases_can_be_configured():
    config = RunaiBackendConfig(project="a", succeeded_phases=("Done",), failed_phases=("Broken",))
    parse = build_adapter(config).parse_job
    assert [observations.get_status(parse(build_workload(phase))) for phase in ("Done", "Broken", "Completed")] == [
        "Complete",
        "Failed",
        "Created",
    ]


def test_configurations_with_equal_phases_share_a_watch():
    assert (
        build_adapter(RunaiBackendConfig(project="a")).parse_job
        is build_adapter(RunaiBackendConfig(project="b")).parse_job
    )


@pytest.mark.parametrize(
    "status",
    [
        {"completedAt": ENDED},
        {"conditions": [{"type": "Completed", "status": "True", "lastTransitionTime": ENDED}]},
    ],
)
def test_the_end_time_is_the_completion_or_last_transition_time(status):
    job = parse_job(build_workload("Completed", status=status))
    assert observations.build_train_job(job).finished == parse_time(ENDED)


@pytest.mark.parametrize(
    ("role", "name", "labels", "step"),
    [
        ("", "digits-0-0", {}, "node-0"),
        ("master", "digits-master-0", {}, "node-0"),
        ("worker", "digits-worker", {}, "node-1"),
        ("worker", "digits-worker-1", {}, "node-2"),
        ("worker", "digits-worker-x7x7x", {"training.kubeflow.org/replica-index": "1"}, "node-2"),
        ("launcher", "digits-launcher-x7x7x", {}, "launcher"),
        ("node", "digits-worker-1", {}, "node-1"),
    ],
)
def test_the_step_of_a_pod_follows_from_its_role_and_index(role, name, labels, step):
    pod = build_pod(name, role, **labels)
    assert (pod.job_name, pod.step) == ("digits", step)


@pytest.mark.parametrize(
    ("spec", "kind", "nodes"),
    [
        ({}, "TrainingWorkload", 1),
        ({"workers": {"value": 3}}, "TrainingWorkload", 1),
        ({"workers": {"value": 3}}, "DistributedWorkload", 4),
        ({"jobType": "PyTorchJob", "workers": {"value": 3}}, "", 4),  # Items of a list have no kind.
        ({"jobType": "PyTorchJob", "workers": {"value": 3}}, "DistributedWorkload", 4),
        ({"jobType": "MPIJob", "workers": {"value": 3}}, "DistributedWorkload", 3),
    ],
)
def test_the_number_of_nodes_depends_on_the_job_type(spec, kind, nodes):
    assert parse_job(build_workload(kind=kind, **spec)).num_nodes == nodes


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
def test_the_device_of_a_job_is_parsed(spec, device):
    assert parse_job(build_workload(**spec)).device == device


def test_a_template_is_not_a_job():
    is_job = build_adapter(RunaiBackendConfig(project="a")).is_job
    assert (is_job(build_workload()), is_job({"spec": {"usage": "Template"}})) == (True, False)


def test_a_workload_with_fields_in_another_format_is_parsed():
    job = parse_job(build_workload("Running", active={"items": {}}, gpu="8", kind="DistributedWorkload", workers={}))
    assert (job.suspend, job.device, job.num_nodes) == (False, None, 1)
