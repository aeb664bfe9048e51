"""The public TrainJob with its steps, the ExistingJob for adoption, and jobs of initialize-only requests."""

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
from trainer_core.backends.trainer_v2 import parse
from trainer_core.base.errors import InvalidRequestError
from trainer_core.k8s import events, labels, observations, pod_state
from trainer_core.model.request import Owner, RuntimeRef, TrainJobRequest

COMPLETE = condition("Complete", "True", "AllJobsCompleted", "jobset completed successfully")
FAILED = condition(
    "Failed", "True", "FailedJobs", "jobset failed due to one or more job failures (first: digits-node-0)"
)
CANCELLED = {labels.CANCELLED: "2026-11-20T10:00:07.250+00:00"}
TORCH = Runtime("torch-distributed", RuntimeTrainer(TrainerType.CUSTOM_TRAINER, "torch", IMAGE, 2, "gpu", "1"))


def _job(*conditions, **fields):
    return parse.parse_job(train_job(*conditions, **fields))


def _seen(job, *pods, raws=(), **more):
    return observations.build_observation(
        job, pods, [events.parse_event(raw) for raw in raws], ref=observations.build_ref(job), **more
    )


def _fetching(**status):
    """Return the raw batch/v1 Job of an initialize-only request, as an item of a list: without kind."""
    containers = [{"name": "dataset-initializer", "image": IMAGE}, {"name": "model-initializer", "image": IMAGE}]
    volume = {"name": "workspace", "persistentVolumeClaim": {"claimName": "digits-data"}}
    metadata = {"name": "fetch", "namespace": NAMESPACE, "uid": UID, "creationTimestamp": CREATED}
    spec = {"template": {"spec": {"containers": containers, "volumes": [volume]}}, "activeDeadlineSeconds": 60}
    return {"metadata": metadata, "spec": spec, "status": status}


# --- the job and its steps


def test_steps_are_listed_before_their_pods_exist():
    job = _job(trainer={"numNodes": 2}, initializer={"dataset": {"storageUri": "hf://a/b"}})

    assert [(step.name, step.status, step.pod_name) for step in observations.build_steps(job)] == [
        ("dataset-initializer", "Pending", ""),
        ("node-0", "Pending", ""),
        ("node-1", "Pending", ""),
    ]


def test_initializers_of_the_runtime_are_steps():
    job = _job(roles=[role("model-initializer"), role("dataset-initializer"), role()])

    assert [step.name for step in observations.build_steps(job)] == [
        "dataset-initializer",
        "model-initializer",
        "node-0",
    ]


def test_a_job_without_num_nodes_has_the_default_of_its_runtime():
    job = observations.build_train_job(_job(), [], TORCH)

    assert (job.num_nodes, len(job.steps), job.runtime) == (2, 2, TORCH)
    assert (job.steps[1].device, job.steps[1].device_count) == ("gpu", "1")


def test_a_step_has_the_details_of_its_pods():
    limited = {"containers": [{"name": "node", "image": IMAGE, "resources": {"limits": {"nvidia.com/gpu": 4}}}]}
    first = seen(main=ended(1), created="2026-11-20T09:59:00Z", rand="first")
    (step,) = observations.build_steps(_job(), [first, seen(main=ended(0, restarts=2), spec=limited)])

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
def test_a_step_with_an_active_pod_takes_the_final_status_of_the_job(job, pods, status):
    assert observations.build_steps(job, pods)[0].status == status


def test_the_status_of_a_node_without_a_pod_is_unknown_after_a_failure():
    job = _job(FAILED, initializer={"dataset": {"storageUri": "hf://a/b"}})
    steps = observations.build_steps(job, [seen("dataset-initializer", main=ended(1, "dataset-initializer"))])

    assert [(step.name, step.status) for step in steps] == [("dataset-initializer", "Failed"), ("node-0", None)]


def test_a_job_has_its_labels_and_annotations_without_the_request():
    annotations = {"note": "a b", labels.REQUEST: "{}", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    job = observations.build_train_job(_job(labels={"team": "vision"}, annotations=annotations))

    assert (job.labels, job.annotations) == ({"team": "vision"}, {"note": "a b"})


def test_a_job_with_a_deleted_runtime_is_readable():
    job = observations.build_train_job(_job(runtimeRef={"name": "mine", "kind": "TrainingRuntime"}))

    assert (job.runtime.name, job.runtime.kind.value, job.runtime.trainer.framework) == (
        "mine",
        "TrainingRuntime",
        "unknown",
    )


def test_a_job_has_start_and_finish_time():
    job = observations.build_train_job(_job(COMPLETE), [seen("node-0", main=ended(0))])

    assert (job.started.second, job.finished.second, job.uid) == (5, 9, UID)


# --- existing jobs and their requests


def test_an_existing_job_has_owner_attempt_and_fingerprint():
    request = TrainJobRequest(
        name=JOB, owner=Owner(key="dag/run/task", generation="1"), runtime=RuntimeRef(name="torch")
    )
    raw = train_job(
        annotations={labels.REQUEST: request.to_json(), labels.FINGERPRINT: request.fingerprint(), labels.ATTEMPT: "2"}
    )
    found = observations.parse_existing_job(raw, parse.parse_job)

    assert (found.name, found.status, found.fingerprint) == ("digits", "Created", request.fingerprint())
    assert (found.owner_key, found.generation, found.attempt) == ("dag/run/task", "1", 2)
    assert observations.parse_request(raw) == request


def test_an_existing_job_of_another_tool_has_no_fingerprint():
    found = observations.parse_existing_job(train_job(COMPLETE), parse.parse_job)

    assert (found.fingerprint, found.owner_key, found.has_ended) == ("", None, True)


def test_the_request_of_a_job_of_another_tool_cannot_be_read():
    with pytest.raises(InvalidRequestError, match=r"TrainJob 'digits' was not created by trainjob-workflows.*request"):
        observations.parse_request(train_job())


def test_a_damaged_request_annotation_is_reported():
    with pytest.raises(
        InvalidRequestError, match=r"TrainJob 'digits' has a damaged annotation .*: the request is not JSON"
    ):
        observations.parse_request(train_job(annotations={labels.REQUEST: "{"}))


def test_a_ref_identifies_the_job():
    ref = observations.build_ref(parse.parse_job(train_job()))

    assert (ref.backend, ref.namespace, ref.name, ref.uid) == ("kubernetes", "ml", "digits", UID)


def test_the_state_of_a_job_does_not_contain_its_request():
    raw = train_job(annotations={labels.REQUEST: "x" * 200_000})

    assert len(repr(parse.parse_job(raw))) < 2000


# --- initialize-only requests


def test_the_job_of_an_initialize_only_request_is_parsed():
    job = parse.parse_job(_fetching(active=1, ready=1))

    assert (job.kind, job.name, job.active_deadline_seconds, observations.get_status(job)) == (
        "Job",
        "fetch",
        60,
        "Running",
    )
    assert [step.name for step in observations.build_steps(job)] == ["dataset-initializer", "model-initializer"]
    assert observations.build_train_job(job).num_nodes == 0


def test_the_result_of_an_initialize_only_request_has_the_fetched_uris():
    outcome = _seen(parse.parse_job(_fetching(conditions=[condition("Complete", "True")]))).outcome

    assert outcome.result == {"dataset": "pvc://digits-data/dataset", "model": "pvc://digits-data/model"}
    assert outcome.artifacts == outcome.result


def test_the_diagnosis_names_the_failed_initializer():
    containers = [ended(0, "dataset-initializer"), ended(1, "model-initializer", message="meta/llama is gated")]
    raw = parse.parse_job(_fetching(conditions=[condition("Failed", "True", "BackoffLimitExceeded", "too often")]))
    diagnosis = _seen(raw, _fetcher(*containers)).outcome.diagnosis

    assert (diagnosis.category, diagnosis.step) == (Category.INITIALIZER, "model-initializer")
    assert diagnosis.reason == "meta/llama is gated"


def test_each_initializer_of_one_pod_has_a_separate_status():
    fetcher = _fetcher(ended(0, "dataset-initializer"), runs("model-initializer"), phase="Running")
    steps = observations.build_steps(parse.parse_job(_fetching()), [fetcher])

    assert [(step.name, step.status) for step in steps] == [
        ("dataset-initializer", "Succeeded"),
        ("model-initializer", "Running"),
    ]


def _fetcher(main, *others, phase="Failed"):
    """Return the pod of an initialize-only job."""
    raw = pod("dataset-initializer", main=main, others=others, phase=phase)
    raw["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "fetch"}
    return pod_state.parse_pod(raw)
