"""A raw TrainJob and its pods in, what all backends say of a job out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from k8s_objects import (
    JOB,
    LATER,
    condition,
    disrupted,
    end,
    ended,
    error,
    event,
    role,
    runs,
    seen,
    train_job,
    waits,
)

from trainer_core import Category, Outcome
from trainer_core.backends.kubernetes import facts
from trainer_core.cluster import events, marks, observe
from trainer_core.options.scheduling import KUEUE_QUEUE

COMPLETE = condition("Complete", "True", "AllJobsCompleted", "jobset completed successfully")
FAILED = condition(
    "Failed", "True", "FailedJobs", "jobset failed due to one or more job failures (first: digits-node-0)"
)
SUSPENDED = condition("Suspended", "True", "Suspended", "TrainJob is suspended")
RESUMED = condition("Suspended", "False", "Resumed", "TrainJob is resumed")
CANCELLED = {marks.CANCELLED: "2026-11-20T10:00:07.250+00:00"}
QUEUED = {KUEUE_QUEUE: "research"}
RESULT = json.dumps({"result": {"accuracy": 0.9, "artifacts": {"model": "s3://models/digits"}}})


def _job(*conditions, **fields):
    return facts.read(train_job(*conditions, **fields))


def _seen(job, *pods, raws=(), **more):
    return observe.observation(job, pods, [events.read(raw) for raw in raws], ref=observe.ref_of(job), **more)


# --- status


@pytest.mark.parametrize(
    ("job", "pods", "status"),
    [
        (_job(), [], "Created"),
        (_job(), [seen()], "Created"),
        (_job(), [seen(main=runs())], "Running"),
        (_job(), [seen(main=waits("CrashLoopBackOff", restarts=1, last=end(1)))], "Running"),
        (_job(trainer={"numNodes": 2}), [seen(main=runs())], "Created"),
        (_job(), [seen("node-0", main=runs()), seen("node-1")], "Created"),
        (_job(trainer={"numNodes": 2}), [seen("node-0", main=runs()), seen("node-1", main=ended(0))], "Running"),
        (_job(), [seen("dataset-initializer", main=runs("dataset-initializer"))], "Running"),
        (_job(), [seen("dataset-initializer", main=ended(0, "dataset-initializer")), seen()], "Running"),
        (_job(roles=[role(ready=1)]), [], "Running"),
        (_job(roles=[role(active=1)]), [], "Created"),
        (_job(roles=[role("dataset-initializer", succeeded=1), role()]), [], "Running"),
        (_job(RESUMED), [seen(main=runs())], "Running"),
        (_job(RESUMED), [seen(main=runs(), metadata={"deletionTimestamp": LATER})], "Created"),
        (_job(SUSPENDED), [], "Suspended"),
        (_job(suspend=True), [seen(main=runs())], "Suspended"),
        (_job(COMPLETE), [], "Complete"),
        (_job(FAILED), [seen(main=runs())], "Failed"),
        (_job(COMPLETE, annotations=CANCELLED), [], "Complete"),
        (_job(SUSPENDED, annotations=CANCELLED, suspend=True), [], "Failed"),
    ],
)
def test_the_status_follows_from_conditions_then_replicated_jobs_then_pods(job, pods, status):
    assert observe.status_of(job, pods) == status


def test_what_is_suspended_has_no_trouble():
    assert _seen(_job(suspend=True, labels=QUEUED), seen(main=waits("ErrImagePull", "not found"))).trouble is None


def test_a_job_that_kueue_holds_back_says_that_it_is_queued():
    job = observe.train_job(_job(suspend=True, labels=QUEUED))

    assert job.status == "Suspended"
    assert job.reason == "queued: it waits until Kueue admits it from the queue 'research'"


def test_a_job_that_somebody_suspended_has_no_reason_to_give():
    assert observe.train_job(_job(SUSPENDED, suspend=True)).reason is None


# --- progress


def test_progress_is_what_trainer_was_told_with_the_metrics_that_are_numbers():
    metrics = [
        {"name": "loss", "value": "0.25"},
        {"name": "stage", "value": "warm-up"},
        {"name": "odd", "value": "nan"},
    ]
    progress = _seen(_job(status={"trainerStatus": {"progressPercentage": 40, "metrics": metrics}})).progress

    assert (progress.percentage, progress.metrics) == (40, {"loss": 0.25})


def test_metrics_alone_are_progress_too():
    status = {"trainerStatus": {"metrics": [{"name": "loss", "value": "1"}]}}

    assert _seen(_job(status=status)).progress.percentage is None


def test_the_last_metrics_reported_are_metrics_of_the_outcome():
    status = {"trainerStatus": {"progressPercentage": 100, "metrics": [{"name": "loss", "value": "0.5"}]}}

    assert _seen(_job(COMPLETE, status=status)).outcome.metrics == {"loss": 0.5}


# --- outcome


def test_the_result_is_what_the_first_node_left():
    outcome = _seen(_job(COMPLETE), seen(main=ended(0, message=RESULT)), seen("node-1", main=ended(0))).outcome

    assert outcome.result["accuracy"] == 0.9
    assert (outcome.metrics, outcome.artifacts) == ({"accuracy": 0.9}, {"model": "s3://models/digits"})


def test_an_outcome_says_when_the_job_began_and_ended():
    outcome = _seen(_job(COMPLETE), seen(main=ended(0))).outcome

    assert (outcome.started_at, outcome.finished_at) == (
        "2026-11-20T10:00:05.000+00:00",
        "2026-11-20T10:00:09.000+00:00",
    )


def test_the_result_of_an_mpi_job_is_what_its_launcher_left():
    node = seen("node-0", main=runs(), spec={"volumes": [{"name": "mpi-ssh-auth"}]})

    assert (
        _seen(_job(COMPLETE), node, seen("launcher", main=ended(0, message=RESULT))).outcome.result["accuracy"] == 0.9
    )


def test_a_result_that_was_too_large_is_said_to_be():
    left = json.dumps({"result": None, "truncated": True, "note": "it is elsewhere"})
    outcome = _seen(_job(COMPLETE), seen(main=ended(0, message=left))).outcome

    assert (outcome.result, outcome.result_truncated, outcome.result_note) == (None, True, "it is elsewhere")


def test_a_message_of_another_kind_is_no_result():
    assert _seen(_job(COMPLETE), seen(main=ended(0, message="done"))).outcome.result is None


def test_a_complete_job_whose_pods_are_gone_is_complete():
    assert _seen(_job(COMPLETE)).outcome.succeeded


def test_a_cancelled_job_has_the_same_outcome_whatever_is_left_of_its_pods():
    job = _job(annotations=CANCELLED, suspend=True)
    outcome = _seen(job, seen(main=ended(143))).outcome

    assert (outcome.diagnosis.category, outcome.diagnosis.reason) == (Category.DELETED, "it was cancelled")
    assert outcome.finished_at == "2026-11-20T10:00:07.250+00:00"
    assert outcome == _seen(job).outcome


def test_an_outcome_that_came_with_the_manifest_of_another_job_is_not_its_own():
    ref = replace(observe.ref_of(_job()), uid="of-another")
    note = {marks.OUTCOME: Outcome(ref=ref.to_dict(), status="Complete", result=1).to_json()}

    assert observe.noted(_job(COMPLETE, annotations=note)) is None


# --- diagnosis


def test_a_failed_job_tells_the_exception_of_its_step():
    diagnosis = _seen(_job(FAILED), seen(main=ended(1, message=error()))).outcome.diagnosis

    assert (diagnosis.category, diagnosis.reason, diagnosis.step) == (
        Category.USER_CODE,
        "ValueError: bad shape",
        "node-0",
    )
    assert (diagnosis.exit_code, diagnosis.node, diagnosis.traceback) == (1, "gpu-1", "Traceback …\nValueError")


def test_the_last_lines_of_the_log_belong_to_the_diagnosis():
    seen_ = _seen(_job(FAILED), seen(main=ended(1)), tails={"node-0": ["before the failure"]})

    assert seen_.outcome.diagnosis.log_tail == ("before the failure",)


def test_what_a_pod_ended_of_counts_and_not_that_it_was_removed_afterwards():
    main = ended(143, restarts=6, last=end(1, error()))

    assert _seen(_job(FAILED), seen(main=main, metadata={"deletionTimestamp": LATER})).outcome.diagnosis.reason == (
        "ValueError: bad shape"
    )


def test_a_failed_job_whose_pods_are_gone_gives_what_is_left_to_tell():
    raws = [event("BackOff", "Back-off restarting failed container node in pod digits-node-0-0-abcde")]
    diagnosis = _seen(_job(FAILED), raws=raws).outcome.diagnosis

    assert (diagnosis.category, diagnosis.step) == (Category.INFRASTRUCTURE, None)
    assert "jobset failed due to one or more job failures" in diagnosis.reason
    assert "Back-off restarting failed container" in diagnosis.reason


def test_a_node_that_waits_is_not_what_a_job_failed_of():
    waiting = seen("node-1", main=waits("ErrImagePull", "not found"))

    assert _seen(_job(FAILED), seen(main=ended(3)), waiting).outcome.diagnosis.exit_code == 3


def test_a_job_that_could_not_start_failed_of_that():
    assert _seen(_job(FAILED), seen(main=waits("InvalidImageName", "bad"))).outcome.diagnosis.category is Category.IMAGE


def test_a_preempted_job_can_be_tried_again():
    diagnosis = _seen(_job(FAILED), seen(main=ended(143), **disrupted("PreemptionByScheduler"))).outcome.diagnosis

    assert (diagnosis.category, diagnosis.retryable) == (Category.PREEMPTED, True)


def test_a_deadline_names_its_seconds():
    late = condition("Failed", "True", "DeadlineExceeded", "TrainJob exceeded its active deadline")
    diagnosis = _seen(_job(late, activeDeadlineSeconds=90)).outcome.diagnosis

    assert (diagnosis.category, "90 s" in diagnosis.reason) == (Category.DEADLINE, True)


@pytest.mark.parametrize(
    ("pods", "raws"),
    [
        ([seen(main=waits(""), phase="Failed", reason="DeadlineExceeded", message="Pod was active too long")], []),
        ([], [event("DeadlineExceeded", "Job was active too long", kind="Job", name="digits-node-0")]),
    ],
)
def test_a_deadline_of_the_runtime_is_told_too(pods, raws):
    diagnosis = _seen(_job(FAILED), *pods, raws=raws).outcome.diagnosis

    assert (diagnosis.category, "active too long" in diagnosis.reason) == (Category.DEADLINE, True)


def test_a_runtime_that_trainer_does_not_know_is_a_rejection():
    failed = condition("Failed", "True", "TrainingRuntimeNotSupported", "unsupported runtime: kubeflow.org/X")

    assert _seen(_job(failed)).outcome.diagnosis.category is Category.REJECTED


def test_a_live_job_in_trouble_says_so():
    found = _seen(_job(), seen(main=waits("InvalidImageName", "bad")))

    assert (found.status, found.outcome, found.trouble.grace) == ("Created", None, 0)
    assert observe.train_job(_job(), [seen(main=waits("InvalidImageName", "bad"))]).reason.startswith("Image in node-0")


@pytest.mark.parametrize("roles", [[role(ready=1)], [role()]])
def test_an_old_refusal_says_nothing_once_the_parts_are_there(roles):
    raws = [event("TrainJobResourcesCreationFailed", "is forbidden", kind="TrainJob", name=JOB)]

    assert _seen(_job(roles=roles), raws=raws).trouble is None


def test_events_of_the_start_say_nothing_of_a_job_that_runs_unseen():
    assert _seen(_job(roles=[role(ready=1)]), raws=[event("FailedScheduling", "0/3 nodes")]).trouble is None


@pytest.mark.parametrize(
    ("job", "pods", "needed"),
    [
        (_job(), [], True),
        (_job(), [seen(main=runs())], False),
        (_job(suspend=True), [], False),
        (_job(COMPLETE), [], False),
        (_job(FAILED), [], True),
        (_job(FAILED), [seen(main=ended(1))], False),
        (_job(annotations=CANCELLED), [], False),
    ],
)
def test_events_are_asked_for_only_where_they_would_explain_something(job, pods, needed):
    assert observe.needs_events(job, pods) is needed
