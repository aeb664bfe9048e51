"""Parsing of PyTorchJobs and pods: status, outcome, steps and devices."""

from __future__ import annotations

import pytest

from trainer_core.backends.training_operator.backend import ADAPTER
from trainer_core.backends.training_operator.parse import parse_job, parse_pod
from trainer_core.k8s import observations
from trainer_core.model.jobs import Category

TIME = "2026-11-21T10:00:00Z"
LABELS = "training.kubeflow.org"


def build_job(*conditions, suspend=False, active=0, succeeded=0, workers=1, master=True, **metadata):
    """Return a raw PyTorchJob; a condition with a leading minus is false."""
    raw_conditions = [
        {
            "type": kind.lstrip("-"),
            "status": str(not kind.startswith("-")),
            "reason": f"PyTorchJob{kind.lstrip('-')}",
            "message": metadata.get("message", ""),
            "lastTransitionTime": TIME,
        }
        for kind in conditions
    ]
    pod = {"spec": {"containers": [{"name": "pytorch", "resources": {"limits": {"nvidia.com/gpu": 2}}}]}}
    replicas = {"Master": {"replicas": 1, "template": pod}} if master else {}
    replicas |= {"Worker": {"replicas": workers, "template": pod}} if workers else {}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": "job",
            "namespace": "team",
            "uid": "u",
            "creationTimestamp": TIME,
            "annotations": metadata.get("annotations", {}),
        },
        "spec": {
            "runPolicy": {"suspend": suspend, "activeDeadlineSeconds": 60},
            "pytorchReplicaSpecs": replicas,
        },
        "status": {
            "conditions": raw_conditions,
            "replicaStatuses": {"Worker": {"active": active, "succeeded": succeeded}},
        },
    }


def build_pod(kind="master", index=0, phase="Running", rank=None, ended=None, initializer=None):
    """Return a raw pod of it."""
    env = [] if rank is None else [{"name": "RANK", "value": str(rank)}]
    state = {"terminated": ended} if ended else {"running": {"startedAt": TIME}} if phase == "Running" else {}
    first = [{"name": "dataset-initializer", "state": initializer}] if initializer else []
    return {
        "metadata": {
            "name": f"job-{kind}-{index}",
            "uid": f"{kind}{index}",
            "creationTimestamp": TIME,
            "labels": {
                f"{LABELS}/job-name": "job",
                f"{LABELS}/replica-type": kind,
                f"{LABELS}/replica-index": str(index),
            },
        },
        "spec": {
            "containers": [{"name": "sidecar"}, {"name": "pytorch", "env": env}],
            "initContainers": [{"name": each["name"]} for each in first],
        },
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": "pytorch", "state": state}],
            "initContainerStatuses": first,
        },
    }


def observe(job, *pods):
    state = parse_job(job)
    return observations.build_observation(state, [parse_pod(pod) for pod in pods], ref=observations.build_ref(state))


STATUSES = {
    "no conditions": (build_job(), "Created"),
    "created": (build_job("Created"), "Created"),
    "all nodes active": (build_job("Created", "Running", active=2), "Running"),
    "one node not active": (build_job("Created", "Running", active=1), "Created"),
    "restarting": (build_job("Created", "Restarting"), "Created"),
    "suspend set": (build_job("Created", "Running", suspend=True), "Suspended"),
    "suspended": (build_job("Created", "-Running", "Suspended", suspend=True), "Suspended"),
    "resumed": (build_job("Created", "-Suspended", "Running", active=2), "Running"),
    "succeeded": (build_job("Created", "-Running", "Succeeded"), "Complete"),
    "failed": (build_job("Created", "-Running", "Failed"), "Failed"),
    "succeeded and failed": (build_job("Succeeded", "Failed"), "Failed"),
    "succeeded and suspend set": (build_job("Succeeded", suspend=True), "Complete"),
    "cancelled": (build_job(suspend=True, annotations={"trainjob-workflows/cancelled": TIME}), "Failed"),
}


@pytest.mark.parametrize("case", STATUSES)
def test_the_status_follows_from_the_conditions(case):
    job, status = STATUSES[case]
    assert observe(job).status == status


def test_a_job_is_complete_when_its_last_node_succeeded():
    done = {"exitCode": 0, "finishedAt": TIME}
    master = build_pod(phase="Succeeded", rank=0, ended=done)
    working, ended = build_pod("worker", rank=1), build_pod("worker", phase="Succeeded", rank=1, ended=done)
    job = build_job("Succeeded")
    assert [observe(job, master, worker).status for worker in (working, ended)] == ["Running", "Complete"]


def test_a_job_with_a_running_initializer_is_running():
    pods = [build_pod(phase="Pending", rank=0, initializer={"running": {"startedAt": TIME}})]
    assert observe(build_job("Created"), *pods).status == "Running"


def test_an_exceeded_deadline_is_detected_by_the_message_of_the_operator():
    job = build_job("Failed", message="Job job has failed because it was active longer than specified deadline")
    assert observe(job).outcome.diagnosis.category is Category.DEADLINE


@pytest.mark.parametrize(
    ("pods", "steps"),
    [
        ([build_pod(rank=0), build_pod("worker", rank=1)], {"job-master-0": "node-0", "job-worker-0": "node-1"}),
        ([build_pod("worker"), build_pod("worker", 1)], {"job-worker-0": "node-0", "job-worker-1": "node-1"}),
    ],
    ids=["with a master", "workers only"],
)
def test_the_step_of_a_pod_follows_from_its_rank(pods, steps):
    assert {pod.name: pod.step for pod in map(parse_pod, pods)} == steps


def test_initializers_of_the_first_node_are_steps():
    ended = {"terminated": {"exitCode": 0, "finishedAt": TIME}}
    pods = [parse_pod(build_pod(rank=0, initializer=ended)), parse_pod(build_pod("worker", rank=1, initializer=ended))]
    steps = observations.build_steps(parse_job(build_job("Running")), pods)
    assert [(step.name, step.status) for step in steps] == [
        ("dataset-initializer", "Succeeded"),
        ("node-0", "Running"),
        ("node-1", "Running"),
    ]


def test_nodes_device_and_main_container_are_parsed():
    state, pod = parse_job(build_job(workers=3)), parse_pod(build_pod(rank=0))
    assert (state.num_nodes, state.device, pod.main_container.name) == (4, ("gpu", "2"), "pytorch")


def test_the_result_of_an_elastic_job_is_that_of_any_node():
    terminated = {"exitCode": 0, "finishedAt": TIME, "message": '{"result": 7}'}
    pods = [
        build_pod("worker", 0, "Succeeded", ended={"exitCode": 0}),
        build_pod("worker", 1, "Succeeded", ended=terminated),
    ]
    assert observe(build_job("Succeeded", master=False, workers=2), *pods).outcome.result == 7


@pytest.mark.parametrize(("kind", "field"), [("PyTorchJob", "runPolicy"), ("Job", None)])
def test_the_suspend_patch_depends_on_the_kind(kind, field):
    job = {**build_job(), "kind": kind}
    fields = {"suspend": True}
    assert ADAPTER.build_suspend_patch(parse_job(job), True) == {"spec": {field: fields} if field else fields}
