"""What a PyTorchJob and its pods say is what all backends say of a job."""

from __future__ import annotations

import pytest

from trainer_core.backends.training_operator.dialect import DIALECT
from trainer_core.backends.training_operator.facts import read, read_pod
from trainer_core.cluster import observe
from trainer_core.outcome import Category

TIME = "2026-11-21T10:00:00Z"
LABELS = "training.kubeflow.org"


def a_job(*conditions, suspend=False, active=0, succeeded=0, workers=1, master=True, **metadata):
    """A PyTorchJob; a condition that is not true has a minus in front."""
    said = [
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
            "conditions": said,
            "replicaStatuses": {"Worker": {"active": active, "succeeded": succeeded}},
        },
    }


def a_pod(kind="master", index=0, phase="Running", rank=None, ended=None, initializer=None):
    """A pod of it."""
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


def seen(job, *pods):
    facts = read(job)
    return observe.observation(facts, [read_pod(pod) for pod in pods], ref=observe.ref_of(facts))


STATUSES = {
    "nothing yet": (a_job(), "Created"),
    "created": (a_job("Created"), "Created"),
    "all nodes active": (a_job("Created", "Running", active=2), "Running"),
    "a node that is missing": (a_job("Created", "Running", active=1), "Created"),
    "restarting": (a_job("Created", "Restarting"), "Created"),
    "told to be suspended": (a_job("Created", "Running", suspend=True), "Suspended"),
    "suspended": (a_job("Created", "-Running", "Suspended", suspend=True), "Suspended"),
    "resumed": (a_job("Created", "-Suspended", "Running", active=2), "Running"),
    "succeeded": (a_job("Created", "-Running", "Succeeded"), "Complete"),
    "failed": (a_job("Created", "-Running", "Failed"), "Failed"),
    "failed after all": (a_job("Succeeded", "Failed"), "Failed"),
    "ended and told to be suspended": (a_job("Succeeded", suspend=True), "Complete"),
    "cancelled": (a_job(suspend=True, annotations={"trainjob-workflows/cancelled": TIME}), "Failed"),
}


@pytest.mark.parametrize("case", STATUSES)
def test_conditions_are_told_in_the_words_of_all_backends(case):
    job, status = STATUSES[case]
    assert seen(job).status == status


def test_a_job_is_complete_when_its_last_node_is():
    done = {"exitCode": 0, "finishedAt": TIME}
    master = a_pod(phase="Succeeded", rank=0, ended=done)
    working, ended = a_pod("worker", rank=1), a_pod("worker", phase="Succeeded", rank=1, ended=done)
    job = a_job("Succeeded")
    assert [seen(job, master, worker).status for worker in (working, ended)] == ["Running", "Complete"]


def test_a_job_runs_from_its_first_initializer_on():
    pods = [a_pod(phase="Pending", rank=0, initializer={"running": {"startedAt": TIME}})]
    assert seen(a_job("Created"), *pods).status == "Running"


def test_a_deadline_is_known_by_what_the_operator_says():
    job = a_job("Failed", message="Job job has failed because it was active longer than specified deadline")
    assert seen(job).outcome.diagnosis.category is Category.DEADLINE


@pytest.mark.parametrize(
    ("pods", "steps"),
    [
        ([a_pod(rank=0), a_pod("worker", rank=1)], {"job-master-0": "node-0", "job-worker-0": "node-1"}),
        ([a_pod("worker"), a_pod("worker", 1)], {"job-worker-0": "node-0", "job-worker-1": "node-1"}),
    ],
    ids=["with a master", "workers only"],
)
def test_nodes_are_counted_as_the_operator_ranks_them(pods, steps):
    assert {pod.name: pod.step for pod in map(read_pod, pods)} == steps


def test_initializers_of_the_first_node_are_steps_of_their_own():
    ended = {"terminated": {"exitCode": 0, "finishedAt": TIME}}
    pods = [read_pod(a_pod(rank=0, initializer=ended)), read_pod(a_pod("worker", rank=1, initializer=ended))]
    shown = observe.steps(read(a_job("Running")), pods)
    assert [(step.name, step.status) for step in shown] == [
        ("dataset-initializer", "Succeeded"),
        ("node-0", "Running"),
        ("node-1", "Running"),
    ]


def test_the_container_of_the_operator_does_the_work_and_what_it_computes_on_is_known():
    facts, pod = read(a_job(workers=3)), read_pod(a_pod(rank=0))
    assert (facts.num_nodes, facts.device, pod.main.name) == (4, ("gpu", "2"), "pytorch")


def test_the_result_of_nodes_that_come_and_go_may_be_that_of_any():
    left = {"exitCode": 0, "finishedAt": TIME, "message": '{"result": 7}'}
    pods = [a_pod("worker", 0, "Succeeded", ended={"exitCode": 0}), a_pod("worker", 1, "Succeeded", ended=left)]
    assert seen(a_job("Succeeded", master=False, workers=2), *pods).outcome.result == 7


@pytest.mark.parametrize(("kind", "where"), [("PyTorchJob", "runPolicy"), ("Job", None)])
def test_suspending_is_spelled_as_the_kind_has_it(kind, where):
    job = {**a_job(), "kind": kind}
    said = {"suspend": True}
    assert DIALECT.suspension(read(job), True) == {"spec": {where: said} if where else said}
