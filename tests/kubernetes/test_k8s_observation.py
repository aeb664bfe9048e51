"""Status, progress, outcome and diagnosis of a TrainJob, from its raw object, pods and events."""

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

from trainer_core import Category, Diagnosis, Outcome
from trainer_core.backends.trainer_v2 import parse
from trainer_core.k8s import events, labels, observations
from trainer_core.lifecycle.adoption import ExistingJob
from trainer_core.model.request import KUEUE_QUEUE, MULTIKUEUE

COMPLETE = condition("Complete", "True", "AllJobsCompleted", "jobset completed successfully")
FAILED = condition(
    "Failed", "True", "FailedJobs", "jobset failed due to one or more job failures (first: digits-node-0)"
)
SUSPENDED = condition("Suspended", "True", "Suspended", "TrainJob is suspended")
RESUMED = condition("Suspended", "False", "Resumed", "TrainJob is resumed")
NOT_FAILED = condition("Failed", "False", "Restarted")
CANCELLED = {labels.CANCELLED: "2026-11-20T10:00:07.250+00:00"}
QUEUED = {KUEUE_QUEUE: "research"}
RESULT = json.dumps({"result": {"accuracy": 0.9, "artifacts": {"model": "s3://models/digits"}}})


def _job(*conditions, **fields):
    return parse.parse_job(train_job(*conditions, **fields))


def _seen(job, *pods, raws=(), **more):
    return observations.build_observation(
        job, pods, [events.parse_event(raw) for raw in raws], ref=observations.build_ref(job), **more
    )


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
def test_the_status_is_derived_from_conditions_then_replicated_jobs_then_pods(job, pods, status):
    assert observations.get_status(job, pods) == status


def test_a_suspended_job_has_no_pending_failure():
    assert (
        _seen(_job(suspend=True, labels=QUEUED), seen(main=waits("ErrImagePull", "not found"))).pending_failure is None
    )


def test_a_job_that_waits_for_kueue_has_the_reason_queued():
    job = observations.build_train_job(_job(suspend=True, labels=QUEUED))

    assert job.status == "Suspended"
    assert job.reason == "queued: waits for admission by Kueue queue 'research'"


def test_a_suspended_job_without_a_queue_has_no_reason():
    assert observations.build_train_job(_job(SUSPENDED, suspend=True)).reason is None


# --- progress


def test_progress_is_read_from_trainer_status_with_numeric_metrics_only():
    metrics = [
        {"name": "loss", "value": "0.25"},
        {"name": "stage", "value": "warm-up"},
        {"name": "odd", "value": "nan"},
    ]
    progress = _seen(_job(status={"trainerStatus": {"progressPercentage": 40, "metrics": metrics}})).progress

    assert (progress.percentage, progress.metrics) == (40, {"loss": 0.25})


def test_metrics_without_a_percentage_are_progress():
    status = {"trainerStatus": {"metrics": [{"name": "loss", "value": "1"}]}}

    assert _seen(_job(status=status)).progress.percentage is None


def test_the_outcome_has_the_last_reported_metrics():
    status = {"trainerStatus": {"progressPercentage": 100, "metrics": [{"name": "loss", "value": "0.5"}]}}

    assert _seen(_job(COMPLETE, status=status)).outcome.metrics == {"loss": 0.5}


# --- outcome


def test_the_result_is_the_termination_record_of_the_first_node():
    outcome = _seen(_job(COMPLETE), seen(main=ended(0, message=RESULT)), seen("node-1", main=ended(0))).outcome

    assert outcome.result["accuracy"] == 0.9
    assert (outcome.metrics, outcome.artifacts) == ({"accuracy": 0.9}, {"model": "s3://models/digits"})


def test_an_outcome_has_start_and_finish_time():
    outcome = _seen(_job(COMPLETE), seen(main=ended(0))).outcome

    assert (outcome.started_at, outcome.finished_at) == (
        "2026-11-20T10:00:05.000+00:00",
        "2026-11-20T10:00:09.000+00:00",
    )


def test_the_result_of_an_mpi_job_is_the_record_of_its_launcher():
    node = seen("node-0", main=runs(), spec={"volumes": [{"name": "mpi-ssh-auth"}]})

    assert (
        _seen(_job(COMPLETE), node, seen("launcher", main=ended(0, message=RESULT))).outcome.result["accuracy"] == 0.9
    )


def test_a_truncated_result_is_marked():
    left = json.dumps({"result": None, "truncated": True, "note": "it is elsewhere"})
    outcome = _seen(_job(COMPLETE), seen(main=ended(0, message=left))).outcome

    assert (outcome.result, outcome.result_truncated, outcome.result_note) == (None, True, "it is elsewhere")


def test_a_termination_message_without_a_record_is_not_a_result():
    assert _seen(_job(COMPLETE), seen(main=ended(0, message="done"))).outcome.result is None


def test_a_complete_job_without_pods_is_complete():
    assert _seen(_job(COMPLETE)).outcome.succeeded


@pytest.mark.parametrize("spec", [{"managedBy": MULTIKUEUE}, {"runPolicy": {"managedBy": MULTIKUEUE}}])
def test_a_complete_job_of_another_cluster_says_where_its_result_is(spec):
    raw = train_job(COMPLETE)
    raw["spec"].update(spec)
    outcome = _seen(parse.parse_job(raw)).outcome

    assert outcome.succeeded
    assert outcome.missing_result == (
        "no result: it ran in a worker cluster of MultiKueue, where its result, metrics and logs are"
    )


def test_a_job_of_another_cluster_whose_pods_are_visible_has_its_result():
    raw = train_job(COMPLETE)
    raw["spec"]["managedBy"] = MULTIKUEUE
    outcome = _seen(parse.parse_job(raw), seen(main=ended(0, message=RESULT))).outcome

    assert (outcome.result["accuracy"], outcome.missing_result) == (0.9, None)


def test_the_outcome_of_a_cancelled_job_does_not_depend_on_its_pods():
    job = _job(annotations=CANCELLED, suspend=True)
    outcome = _seen(job, seen(main=ended(143))).outcome

    assert (outcome.diagnosis.category, outcome.diagnosis.reason) == (Category.DELETED, "it was cancelled")
    assert outcome.finished_at == "2026-11-20T10:00:07.250+00:00"
    assert outcome == _seen(job).outcome


def test_a_job_that_its_controller_fails_during_a_cancellation_keeps_the_diagnosis_of_the_cancellation():
    diagnosis = Diagnosis(category=Category.OUT_OF_MEMORY, reason="it ran out of memory", step="node-0", retryable=True)
    annotations = {**CANCELLED, labels.DIAGNOSIS: json.dumps(diagnosis.to_dict())}
    failed = condition("Failed", "True", "JobsFailed", "jobset failed due to one or more job failures")
    job = _job(failed, annotations=annotations, suspend=True)
    assert _seen(job).outcome.diagnosis == diagnosis
    killed = seen(main=ended(137, reason="OOMKilled"))
    assert _seen(job, killed).outcome.diagnosis.exit_code == -9


def test_a_recorded_outcome_of_another_job_is_ignored():
    ref = replace(observations.build_ref(_job()), uid="of-another")
    note = {labels.OUTCOME: Outcome(ref=ref.to_dict(), status="Complete", result=1).to_json()}

    assert observations.get_recorded_outcome(_job(COMPLETE, annotations=note)) is None


def test_a_recorded_outcome_counts_if_it_has_the_status_of_the_job():
    recorded = Outcome(ref=observations.build_ref(_job()).to_dict(), status="Complete", result=1)
    note = {labels.OUTCOME: recorded.to_json()}
    same, other = _seen(_job(COMPLETE, annotations=note)), _seen(_job(FAILED, annotations=note))

    assert (same.outcome, same.outcome_is_stored) == (recorded, True)
    assert (other.outcome.status, other.outcome.result, other.outcome_is_stored) == ("Failed", None, False)


def test_an_existing_job_has_name_status_attempt_and_owner_of_its_request():
    owner = {"key": "dag/run/task", "generation": "2"}
    annotations = {
        labels.REQUEST: json.dumps({"owner": owner}), labels.FINGERPRINT: "abc", labels.ATTEMPT: "10"
    }  # fmt: skip
    known = observations.parse_existing_job(train_job(COMPLETE, annotations=annotations), parse.parse_job)
    foreign = observations.parse_existing_job(train_job(annotations={labels.ATTEMPT: "last"}), parse.parse_job)

    assert known == ExistingJob(JOB, "Complete", "abc", "dag/run/task", "2", 10)
    assert foreign == ExistingJob(JOB, "Created", "", None, None, 0)


@pytest.mark.parametrize(
    ("job", "pods", "statuses"),
    [
        (_job(COMPLETE), [seen(main=ended(0))], ["Succeeded", "Succeeded"]),
        (_job(FAILED), [seen(main=ended(1))], ["Failed", None]),
        (_job(FAILED), [], ["Failed", "Failed"]),
        (_job(), [seen(main=runs())], ["Running", "Pending"]),
    ],
    ids=["complete", "failed", "failed without pods", "running"],
)
def test_a_step_whose_pod_is_gone_has_the_status_that_the_job_tells(job, pods, statuses):
    steps = observations.build_steps(replace(job, num_nodes=2), pods)

    assert [step.status for step in steps if step.name.startswith("node-")] == statuses


# --- diagnosis


def test_a_failed_job_has_the_exception_of_its_step():
    diagnosis = _seen(_job(FAILED), seen(main=ended(1, message=error()))).outcome.diagnosis

    assert (diagnosis.category, diagnosis.reason, diagnosis.step) == (
        Category.USER_CODE,
        "ValueError: bad shape",
        "node-0",
    )
    assert (diagnosis.exit_code, diagnosis.node, diagnosis.traceback) == (1, "gpu-1", "Traceback …\nValueError")


@pytest.mark.parametrize("record", [error(), ""], ids=["exception", "killed"])
def test_a_failed_job_has_the_checkpoints_of_its_first_node_even_without_a_log(record):
    steps = {"checkpoint": 9, "resumed_from": 5}
    first = seen(main=ended(137, message=json.dumps((json.loads(record) if record else {}) | steps)))

    outcome = _seen(_job(FAILED), seen("node-1", main=ended(1, message=error())), first).outcome
    assert (outcome.checkpoint, outcome.resumed_from) == (9, 5)


def test_a_replacement_that_did_not_reach_its_function_leaves_the_checkpoint_of_the_pod_before():
    saved = seen(main=ended(1, message='{"checkpoint": 9}'), created="2026-11-20T09:59:00Z", rand="first")

    assert _seen(_job(FAILED), saved, seen(main=ended(1))).outcome.checkpoint == 9


def test_the_diagnosis_has_the_last_log_lines():
    seen_ = _seen(_job(FAILED), seen(main=ended(1)), tails={"node-0": ["before the failure"]})

    assert seen_.outcome.diagnosis.log_tail == ("before the failure",)


def test_a_failure_takes_precedence_over_the_later_deletion_of_the_pod():
    main = ended(143, restarts=6, last=end(1, error()))

    assert _seen(_job(FAILED), seen(main=main, metadata={"deletionTimestamp": LATER})).outcome.diagnosis.reason == (
        "ValueError: bad shape"
    )


def test_a_failed_job_without_pods_is_explained_by_condition_and_events():
    raws = [event("BackOff", "Back-off restarting failed container node in pod digits-node-0-0-abcde")]
    diagnosis = _seen(_job(FAILED), raws=raws).outcome.diagnosis

    assert (diagnosis.category, diagnosis.step) == (Category.INFRASTRUCTURE, None)
    assert "jobset failed due to one or more job failures" in diagnosis.reason
    assert "Back-off restarting failed container" in diagnosis.reason


def test_a_waiting_node_is_not_the_cause_of_a_failure():
    waiting = seen("node-1", main=waits("ErrImagePull", "not found"))

    assert _seen(_job(FAILED), seen(main=ended(3)), waiting).outcome.diagnosis.exit_code == 3


def test_a_failed_job_that_could_not_start_has_that_cause():
    assert _seen(_job(FAILED), seen(main=waits("InvalidImageName", "bad"))).outcome.diagnosis.category is Category.IMAGE


def test_a_job_that_its_queue_preempted_is_retryable():
    failed = condition("Failed", "True", "Preempted", "preempted to accommodate a workload of higher priority")
    diagnosis = _seen(_job(failed)).outcome.diagnosis

    assert (diagnosis.category, diagnosis.step, diagnosis.retryable) == (Category.PREEMPTED, "node-0", True)
    assert "higher priority" in diagnosis.reason


def test_a_preempted_job_is_retryable():
    diagnosis = _seen(_job(FAILED), seen(main=ended(143), **disrupted("PreemptionByScheduler"))).outcome.diagnosis

    assert (diagnosis.category, diagnosis.retryable) == (Category.PREEMPTED, True)


def test_the_reason_of_an_exceeded_deadline_has_its_seconds():
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
def test_an_exceeded_deadline_of_the_runtime_is_reported(pods, raws):
    diagnosis = _seen(_job(FAILED), *pods, raws=raws).outcome.diagnosis

    assert (diagnosis.category, "active too long" in diagnosis.reason) == (Category.DEADLINE, True)


def test_an_unsupported_runtime_is_a_rejection():
    failed = condition("Failed", "True", "TrainingRuntimeNotSupported", "unsupported runtime: kubeflow.org/X")

    assert _seen(_job(failed)).outcome.diagnosis.category is Category.REJECTED


def test_an_active_job_reports_its_pending_failure():
    found = _seen(_job(), seen(main=waits("InvalidImageName", "bad")))

    assert (found.status, found.outcome, found.pending_failure.grace) == ("Created", None, 0)
    assert observations.build_train_job(_job(), [seen(main=waits("InvalidImageName", "bad"))]).reason.startswith(
        "Image in node-0"
    )


@pytest.mark.parametrize("roles", [[role(ready=1)], [role()]])
def test_a_creation_failure_is_ignored_once_the_child_objects_exist(roles):
    raws = [event("TrainJobResourcesCreationFailed", "is forbidden", kind="TrainJob", name=JOB)]

    assert _seen(_job(roles=roles), raws=raws).pending_failure is None


def test_events_are_ignored_for_a_running_job_without_visible_pods():
    assert _seen(_job(roles=[role(ready=1)]), raws=[event("FailedScheduling", "0/3 nodes")]).pending_failure is None


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
def test_events_are_needed_only_if_they_can_explain_the_status(job, pods, needed):
    assert observations.needs_events(job, pods) is needed


# --- the job


def test_pods_of_an_earlier_job_of_the_name_are_not_those_of_the_job_and_the_others_are_oldest_first():
    earlier = seen(created="2026-11-20T09:59:59Z", rand="earlier")
    later = seen(created="2026-11-20T10:00:02Z", rand="later")
    first = seen(created="2026-11-20T10:00:00Z", rand="zzzzz")
    unknown = seen(created=None, rand="unknown")

    assert _job().select_pods([later, earlier, first, unknown]) == [unknown, first, later]


@pytest.mark.parametrize(
    ("conditions", "resumed"),
    [
        ([RESUMED], True),
        ([COMPLETE, RESUMED], True),
        ([SUSPENDED], False),
        ([condition("Failed", "False")], False),
        ([], False),
    ],
)
def test_a_job_was_resumed_when_its_suspension_ended(conditions, resumed):
    assert (_job(*conditions).resumed_at is not None) is resumed
