"""What is read of a job, as a function of its files and of whether a supervisor holds its lock: no job runs here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainer_core import CustomTrainer, LocalProcessBackendConfig, Name, TrainerClient
from trainer_core.backends.local import host, job_record, observations
from trainer_core.backends.local.job_record import JobRecord, StepRecord
from trainer_core.backends.local.job_store import StateFolder, write_json
from trainer_core.base.errors import (
    BackendUnavailableError,
    InvalidRequestError,
    JobElsewhereError,
    JobNotFoundError,
)
from trainer_core.lifecycle.restart_policy import AttemptRestarts
from trainer_core.model.jobs import Category, Diagnosis, Outcome, Restarts
from trainer_core.model.restart_rules import RestartRules
from trainer_core.node import locks

BEGIN, END = "2026-01-01T00:00:00.000+00:00", "2026-01-01T00:01:00.000+00:00"


@pytest.fixture
def state(tmp_path):
    state = StateFolder(tmp_path)
    state.create_folders()
    return state


@pytest.fixture
def store(state):
    """Store the record of a job; return its folder and its ref."""

    def store(**fields):
        here = fields.pop("host", host.get_host_identity())
        record = JobRecord("uid-1", "job", BEGIN, status="Running", runtime="python", supervisor=7, host=here)
        record = replace(record, **{"steps": [StepRecord("node-0", "Running", 8, started=BEGIN)], **fields})
        folder = state.job_folder("job")
        if not folder.path.exists():
            folder.path.mkdir()
            folder.create_folders()
        write_json(folder.status, record.to_dict())
        return folder, job_record.make_ref(state, record)

    return store


@pytest.fixture
def supervised(state):
    """Hold the lock of the job, as its supervisor does."""
    descriptors = []
    yield lambda folder: descriptors.append(locks.acquire(folder.lock))
    for descriptor in descriptors:
        locks.release(descriptor)


def test_a_job_whose_supervisor_lives_is_as_it_was_recorded(store, supervised):
    folder, ref = store(queued="queued behind 2 jobs")
    supervised(folder)
    observation = observations.observe_job(folder, ref)
    assert (observation.status, observation.outcome, observation.queued) == ("Running", None, "queued behind 2 jobs")


def test_a_job_that_was_started_again_has_its_restarts(store, supervised):
    attempt = AttemptRestarts(RestartRules.parse({}), Restarts(total=2, counted=1, seconds=60))
    folder, ref = store(restarts=attempt.to_dict())
    supervised(folder)
    assert observations.observe_job(folder, ref).restarts == attempt.earlier


def test_a_job_whose_supervisor_died_has_failed_and_its_running_steps_too(store):
    folder, ref = store(steps=[StepRecord("node-0", "Running", 8), StepRecord("node-1", "Succeeded")])
    outcome = observations.observe_job(folder, ref).outcome
    assert outcome.diagnosis.category is Category.INFRASTRUCTURE
    assert f"exited while the job was Running; see {folder.supervisor_log}" in outcome.diagnosis.reason
    job = observations.read_train_job(folder, ref)
    assert [(step.name, step.status, step.pod_name) for step in job.steps] == [
        ("node-0", "Failed", "process-8"),
        ("node-1", "Succeeded", ""),
    ]
    assert (job.status, job.num_nodes, job.reason) == ("Failed", 2, str(outcome.diagnosis))


def test_a_job_that_was_cancelled_before_its_supervisor_died_was_cancelled(store):
    folder, ref = store()
    because = Diagnosis(category=Category.STOPPED_EARLY, reason="loss 3 is not the best")
    write_json(folder.desired, {"cancel": True, "because": because.to_dict()})
    assert observations.observe_job(folder, ref).outcome.diagnosis.reason == "loss 3 is not the best"


def test_a_recorded_outcome_counts_without_a_supervisor(store):
    folder, ref = store()
    outcome = Outcome(ref=ref.to_dict(), status="Complete", finished_at=END)
    store(status="Complete", finished=END, outcome=outcome.to_dict())
    assert observations.observe_job(folder, ref).outcome == outcome
    job = observations.read_train_job(folder, ref)
    assert (job.status, job.reason, job.finished.isoformat()) == ("Complete", None, "2026-01-01T00:01:00+00:00")


@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        ([StepRecord("dataset-initializer", "Running"), StepRecord("node-0")], 1),
        ([StepRecord("dataset-initializer", "Succeeded"), StepRecord("node-0", "Running")], 2),
        ([StepRecord("node-0"), StepRecord("node-1", "Running")], 2),
    ],
)
def test_the_progress_is_that_of_the_initializer_while_it_runs_and_else_of_the_first_node(
    store, supervised, steps, shown
):
    folder, ref = store(steps=steps)
    supervised(folder)
    for number, step in enumerate(("dataset-initializer", "node-0", "node-1"), 1):
        folder.log_path(step).write_text(f'[trainjob:progress] {{"step": {number}}}\n')
    assert observations.observe_job(folder, ref).progress.step == shown


def test_a_job_of_another_host_is_not_taken_for_dead_and_gets_no_signal(store):
    elsewhere = replace(host.get_host_identity(), hostname="other", boot_id="another boot", pid_namespace="1")
    folder, ref = store(host=elsewhere)
    with pytest.raises(JobElsewhereError, match="lives on host 'other'"):
        observations.observe_job(folder, ref)
    record = observations.read_record(folder)
    with pytest.raises(JobElsewhereError, match="lives on host 'other'"):
        observations.check_signals_possible(record, folder)
    observations.check_signals_possible(replace(record, host=host.get_host_identity()), folder)


def test_a_missing_job_was_deleted_only_in_the_folder_that_had_it(state, store):
    _, ref = store()
    observations.check_same_folder(state, ref)
    observations.check_same_folder(state, replace(ref, host=None))
    with pytest.raises(JobElsewhereError, match="use a state folder that both hosts share"):
        observations.check_same_folder(state, replace(ref, host="there/boot/1/another-folder"))


def test_a_name_that_another_job_has_taken_and_a_missing_job_are_told_apart(state, store):
    folder, ref = store(uid="uid-2")
    with pytest.raises(JobNotFoundError, match=r"uid uid-1\) was deleted; another job has its name now"):
        observations.check_uid(folder, replace(ref, uid="uid-1"))
    with pytest.raises(JobNotFoundError, match="'gone' does not exist"):
        observations.read_record(state.job_folder("gone"))


def test_a_record_that_cannot_be_read_may_be_readable_later_and_a_damaged_one_not(state):
    folder = state.job_folder("job")
    folder.status.mkdir(parents=True)
    with pytest.raises(BackendUnavailableError, match="Is a directory") as caught:
        observations.read_record(folder)
    assert caught.value.transient
    folder.status.rmdir()
    folder.status.write_text("[]")
    with pytest.raises(BackendUnavailableError, match="was changed by another program") as caught:
        observations.read_record(folder)
    assert not caught.value.transient


def test_the_version_of_a_job_changes_with_its_record_and_its_supervisor(state, store, supervised):
    folder, _ = store()
    versions = [observations.read_version(folder)]
    supervised(folder)
    versions.append(observations.read_version(folder))
    store(status="Complete")
    versions.append(observations.read_version(folder))
    assert len(set(versions)) == 3
    assert observations.read_version(folder) == versions[-1]
    assert observations.read_version(state.job_folder("gone")) is None


@pytest.mark.parametrize(
    ("plan", "seconds"), [('{"grace_seconds": 5}', 5), ('{"grace_seconds": null}', 0), ("{}", 0), ("{", 0)]
)
def test_the_grace_of_a_job_is_that_of_its_plan_or_none(store, plan, seconds):
    folder, _ = store()
    assert observations.read_grace_seconds(folder) == 0
    folder.plan.write_text(plan)
    assert observations.read_grace_seconds(folder) == seconds


def test_a_job_is_shown_without_its_request_and_its_runtime(state, store, tmp_path):
    folder, ref = store(runtime="removed")
    job = observations.read_train_job(folder, ref)
    assert (job.labels, job.runtime.name, job.runtime.trainer.framework) == ({}, "removed", "unknown")
    with pytest.raises(InvalidRequestError, match="delete the job: `trainjob delete job`"):
        observations.read_request(folder)


def test_a_job_is_shown_with_its_labels_and_its_runtime(store):
    client = TrainerClient(LocalProcessBackendConfig())
    folder, ref = store()
    request = client.build_request(runtime="python", trainer=CustomTrainer(fit), options=[Name("job")])
    write_json(folder.request, {**request.to_dict(), "metadata": {"labels": {"team": "a"}, "annotations": {"b": "c"}}})
    job = observations.read_train_job(folder, ref)
    assert (job.labels, job.annotations, job.runtime.name) == ({"team": "a"}, {"b": "c"}, "python")


def fit():
    return {"accuracy": 0.9}
