"""A job with its steps as the API reference knows it, what is found of it, and jobs that only initialize."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from k8s_objects import (
    CREATED,
    IMAGE,
    JOB,
    NAMESPACE,
    UID,
    condition,
    ended,
    pod,
    role,
    runs,
    seen,
    train_job,
)

from trainer_core import Category, Runtime, RuntimeTrainer, TrainerType
from trainer_core.backends.kubernetes import facts
from trainer_core.cluster import events, marks, observe, pods
from trainer_core.errors import InvalidRequestError
from trainer_core.request import Owner, RuntimeRef, TrainJobRequest

COMPLETE = condition("Complete", "True", "AllJobsCompleted", "jobset completed successfully")
FAILED = condition(
    "Failed", "True", "FailedJobs", "jobset failed due to one or more job failures (first: digits-node-0)"
)
CANCELLED = {marks.CANCELLED: "2026-11-20T10:00:07.250+00:00"}
TORCH = Runtime("torch-distributed", RuntimeTrainer(TrainerType.CUSTOM_TRAINER, "torch", IMAGE, 2, "gpu", "1"))


def _job(*conditions, **fields):
    return facts.read(train_job(*conditions, **fields))


def _seen(job, *pods, raws=(), **more):
    return observe.observation(job, pods, [events.read(raw) for raw in raws], ref=observe.ref_of(job), **more)


def _fetching(**status):
    """The raw batch/v1 Job of a request that only initializes, as an item of a list: without its kind."""
    containers = [{"name": "dataset-initializer", "image": IMAGE}, {"name": "model-initializer", "image": IMAGE}]
    volume = {"name": "workspace", "persistentVolumeClaim": {"claimName": "digits-data"}}
    metadata = {"name": "fetch", "namespace": NAMESPACE, "uid": UID, "creationTimestamp": CREATED}
    spec = {"template": {"spec": {"containers": containers, "volumes": [volume]}}, "activeDeadlineSeconds": 60}
    return {"metadata": metadata, "spec": spec, "status": status}


# --- the job and its steps


def test_every_step_is_there_before_its_pod_is():
    job = _job(trainer={"numNodes": 2}, initializer={"dataset": {"storageUri": "hf://a/b"}})

    assert [(step.name, step.status, step.pod_name) for step in observe.steps(job)] == [
        ("dataset-initializer", "Pending", ""),
        ("node-0", "Pending", ""),
        ("node-1", "Pending", ""),
    ]


def test_initializers_of_the_runtime_are_steps_too():
    job = _job(roles=[role("model-initializer"), role("dataset-initializer"), role()])

    assert [step.name for step in observe.steps(job)] == ["dataset-initializer", "model-initializer", "node-0"]


def test_a_job_that_names_no_number_of_nodes_has_the_runtimes():
    job = observe.train_job(_job(), [], TORCH)

    assert (job.num_nodes, len(job.steps), job.runtime) == (2, 2, TORCH)
    assert (job.steps[1].device, job.steps[1].device_count) == ("gpu", "1")


def test_a_step_tells_all_that_its_pods_do():
    limited = {"containers": [{"name": "node", "image": IMAGE, "resources": {"limits": {"nvidia.com/gpu": 4}}}]}
    first = seen(main=ended(1), created="2026-11-20T09:59:00Z", rand="first")
    (step,) = observe.steps(_job(), [first, seen(main=ended(0, restarts=2), spec=limited)])

    assert (step.status, step.pod_name, step.node) == ("Succeeded", "digits-node-0-0-abcde", "gpu-1")
    assert (step.device, step.device_count, step.exit_code, step.restarts) == ("gpu", "4", 0, 3)
    assert step.finished == datetime(2026, 11, 20, 10, 0, 9, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("job", "pods", "status"),
    [
        (_job(), [seen(main=runs())], "Running"),
        (_job(suspend=True), [seen(main=runs())], "Pending"),
        (_job(FAILED), [seen(main=runs())], "Failed"),
        (_job(FAILED), [], "Failed"),
        (_job(COMPLETE), [], "Succeeded"),
        (_job(), [seen(main=runs(), phase="Unknown")], None),
    ],
)
def test_a_step_is_as_its_job_where_its_pod_has_not_ended(job, pods, status):
    assert observe.steps(job, pods)[0].status == status


def test_what_became_of_a_node_without_a_pod_is_not_known_once_the_job_failed():
    job = _job(FAILED, initializer={"dataset": {"storageUri": "hf://a/b"}})
    steps = observe.steps(job, [seen("dataset-initializer", main=ended(1, "dataset-initializer"))])

    assert [(step.name, step.status) for step in steps] == [("dataset-initializer", "Failed"), ("node-0", None)]


def test_a_job_tells_its_labels_and_annotations_but_not_its_request():
    annotations = {"note": "a b", marks.REQUEST: "{}", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    job = observe.train_job(_job(labels={"team": "vision"}, annotations=annotations))

    assert (job.labels, job.annotations) == ({"team": "vision"}, {"note": "a b"})


def test_a_job_whose_runtime_is_gone_stays_readable():
    job = observe.train_job(_job(runtimeRef={"name": "mine", "kind": "TrainingRuntime"}))

    assert (job.runtime.name, job.runtime.kind.value, job.runtime.trainer.framework) == (
        "mine",
        "TrainingRuntime",
        "unknown",
    )


def test_a_job_says_when_it_began_and_ended():
    job = observe.train_job(_job(COMPLETE), [seen("node-0", main=ended(0))])

    assert (job.started.second, job.finished.second, job.uid) == (5, 9, UID)


# --- what is found, and what it was made from


def test_a_job_is_found_with_owner_attempt_and_fingerprint():
    request = TrainJobRequest(
        name=JOB, owner=Owner(key="dag/run/task", generation="1"), runtime=RuntimeRef(name="torch")
    )
    raw = train_job(
        annotations={marks.REQUEST: request.to_json(), marks.FINGERPRINT: request.fingerprint(), marks.ATTEMPT: "2"}
    )
    found = observe.found(raw, facts.read)

    assert (found.name, found.status, found.fingerprint) == ("digits", "Created", request.fingerprint())
    assert (found.owner_key, found.generation, found.attempt) == ("dag/run/task", "1", 2)
    assert observe.request_of(raw) == request


def test_a_job_that_others_made_is_found_without_a_fingerprint():
    found = observe.found(train_job(COMPLETE), facts.read)

    assert (found.fingerprint, found.owner_key, found.live) == ("", None, False)


def test_a_job_that_others_made_has_no_request():
    with pytest.raises(InvalidRequestError, match=r"TrainJob 'digits' was not made by trainjob-workflows.*request"):
        observe.request_of(train_job())


def test_a_damaged_request_is_said_to_be():
    with pytest.raises(InvalidRequestError, match=r"TrainJob 'digits'.*is damaged: the request is not JSON"):
        observe.request_of(train_job(annotations={marks.REQUEST: "{"}))


def test_a_ref_is_all_that_finds_a_job_again():
    ref = observe.ref_of(facts.read(train_job()))

    assert (ref.backend, ref.namespace, ref.name, ref.uid) == ("kubernetes", "ml", "digits", UID)


def test_what_is_kept_of_a_job_is_without_its_request():
    raw = train_job(annotations={marks.REQUEST: "x" * 200_000})

    assert len(repr(facts.read(raw))) < 2000


# --- jobs that only initialize


def test_a_job_that_only_initializes_is_read_like_any_other():
    job = facts.read(_fetching(active=1, ready=1))

    assert (job.kind, job.name, job.deadline, observe.status_of(job)) == ("Job", "fetch", 60, "Running")
    assert [step.name for step in observe.steps(job)] == ["dataset-initializer", "model-initializer"]
    assert observe.train_job(job).num_nodes == 0


def test_what_a_job_only_fetched_is_its_result():
    outcome = _seen(facts.read(_fetching(conditions=[condition("Complete", "True")]))).outcome

    assert outcome.result == {"dataset": "pvc://digits-data/dataset", "model": "pvc://digits-data/model"}
    assert outcome.artifacts == outcome.result


def test_the_initializer_that_failed_is_named():
    containers = [ended(0, "dataset-initializer"), ended(1, "model-initializer", message="meta/llama is gated")]
    raw = facts.read(_fetching(conditions=[condition("Failed", "True", "BackoffLimitExceeded", "too often")]))
    diagnosis = _seen(raw, _fetcher(*containers)).outcome.diagnosis

    assert (diagnosis.category, diagnosis.step) == (Category.INITIALIZER, "model-initializer")
    assert diagnosis.reason == "meta/llama is gated"


def test_each_initializer_of_one_pod_has_its_own_status():
    fetcher = _fetcher(ended(0, "dataset-initializer"), runs("model-initializer"), phase="Running")
    steps = observe.steps(facts.read(_fetching()), [fetcher])

    assert [(step.name, step.status) for step in steps] == [
        ("dataset-initializer", "Succeeded"),
        ("model-initializer", "Running"),
    ]


def _fetcher(main, *others, phase="Failed"):
    """The pod of a job that only initializes."""
    raw = pod("dataset-initializer", main=main, others=others, phase=phase)
    raw["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "fetch"}
    return pods.read(raw)
