"""`reap` ends the runs of TrainJobs that ended or were deleted while no process waited for them, and no other run."""

from __future__ import annotations

import shutil
import threading

import pytest
from fake_cluster import Cluster

from trainer_core import (
    CustomTrainer,
    CustomTrainerContainer,
    KubernetesBackendConfig,
    Labels,
    MlflowServer,
    Name,
    Tracking,
    TrainerClient,
)
from trainer_core.base.errors import TrackingError
from trainer_core.cli import app
from trainer_core.model.jobs import KFP_RUN_LABEL
from trainer_core.tracking import mlflow_api, submission, tags
from trainer_core.tracking.mlflow_api import MlflowApi
from trainer_core.tracking.run import find_abandoned_outcome


def fit():
    from trainer_core import progress

    progress(step=1, metrics={"loss": 0.5})
    return {"accuracy": 0.9}


def fail_with_a_password():
    raise ValueError("cannot log in with s3cr3t-word")


def train_for_ever():
    import time

    from trainer_core import progress

    progress(step=1, metrics={"loss": 0.5})
    time.sleep(600)


def submit(client, func, experiment):
    """Submit a tracked job with a name that no job of another test has, for all tests have one server."""
    options = [Tracking(experiment=experiment)]
    return client.submit(client.build_request(runtime="python", trainer=CustomTrainer(func), options=options))


def end_run(client, ref):
    return [each.status for each in client.end_abandoned_runs() if each.job == ref.name]


def wait_for_line(client, ref, text):
    """Wait until the log of a running job has a text."""
    assert any(text in line for line in client.get_job_logs(ref.name, follow=True))


@pytest.fixture
def untracked(client, tracked):
    """A client that reports nothing to the run."""
    other = TrainerClient(client.config)
    other.runs.create_reporter = lambda ref: None
    return other


def test_the_run_of_a_job_that_ended_alone_gets_its_curve_its_metrics_and_its_end(
    client, untracked, experiment, read_runs
):
    ref = submit(client, fit, experiment)
    untracked.wait(ref)
    assert [run["status"] for run in read_runs()] == ["RUNNING"]

    ended = end_run(client, ref)

    (run,) = read_runs()
    assert ended == ["FINISHED"]
    assert (run["status"], run["metrics"]) == ("FINISHED", {"accuracy": 0.9, "loss": 0.5})
    assert end_run(client, ref) == []
    assert read_runs() == [run]


def test_a_run_that_mlflow_ended_inside_the_training_is_completed_all_the_same(
    client, untracked, experiment, read_runs, ask
):
    ref = submit(client, fail_with_a_password, experiment)
    ask("terminate", run=client.get_run(ref).id)
    untracked.wait(ref)
    assert [run["status"] for run in read_runs()] == ["FINISHED"]

    assert end_run(client, ref) == ["FAILED"]
    (run,) = read_runs()
    assert (run["status"], run["tags"][tags.REPORTED]) == ("FAILED", ref.uid)
    assert end_run(client, ref) == []


def test_the_run_of_a_job_that_was_submitted_while_the_server_was_away_is_created_and_completed(
    client, relay, experiment, read_runs, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", relay.uri)
    relay.respond = lambda path: (503, {}, b"{}")
    ended, active = submit(client, fit, experiment), submit(client, train_for_ever, experiment)
    untracked = TrainerClient(client.config)
    untracked.runs.create_reporter = lambda ref: None
    untracked.wait(ended)
    relay.respond = lambda path: None

    assert (end_run(client, ended), end_run(client, active)) == (["FINISHED"], [])
    client.cancel(active)
    (run,) = read_runs()
    assert (run["name"], run["status"], run["metrics"]) == (ended.name, "FINISHED", {"accuracy": 0.9, "loss": 0.5})
    assert run["tags"][tags.UID] == ended.uid


def test_a_run_that_was_created_late_and_that_a_person_deleted_is_not_brought_back(
    client, relay, experiment, read_runs, ask, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", relay.uri)
    relay.respond = lambda path: (503, {}, b"{}")
    ref = submit(client, fit, experiment)
    relay.respond = lambda path: None
    client.wait(ref)
    ask("delete", run=read_runs()[0]["id"])

    assert end_run(client, ref) == []
    assert read_runs() == []


def test_of_many_jobs_that_are_deleted_one_waits_for_a_server_that_hangs(client, relay, experiment, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", relay.uri)
    relay.respond = lambda path: (503, {}, b"{}")
    refs = [submit(client, train_for_ever, experiment) for _ in range(3)]
    client.flush_tracking(60)
    monkeypatch.setattr(mlflow_api, "_REPORT_TIMEOUT", 0.5)
    monkeypatch.setattr(submission, "_unreachable_until", {})
    relay.seen.clear()
    ended = threading.Event()
    relay.respond = lambda path: ended.wait(300) and (503, {}, b"{}")
    for ref in refs:
        client.delete_job(ref)
    asked = len(relay.seen)
    ended.set()

    assert (asked, client.list_jobs()) == (1, [])


def test_a_job_is_reported_before_it_is_deleted(client, tracked, experiment, read_runs):
    ended, active = submit(client, fit, experiment), submit(client, train_for_ever, experiment)
    other = TrainerClient(client.config)
    other.runs.create_reporter = lambda ref: None
    other.wait(ended)
    wait_for_line(client, active, "loss")
    for each in (ended, active):
        client.delete_job(each)

    runs = {run["name"]: run for run in read_runs()}
    assert runs[ended.name]["metrics"] == {"accuracy": 0.9, "loss": 0.5}
    assert [runs[each.name]["status"] for each in (ended, active)] == ["FINISHED", "KILLED"]
    assert runs[active.name]["metrics"] == {"loss": 0.5}
    assert "was deleted" in runs[active.name]["tags"]["trainjob.diagnosis"]


def test_the_run_of_a_deleted_job_is_killed_and_active_and_foreign_runs_stay(client, tracked, experiment, read_runs):
    deleted, active = submit(client, fit, experiment), submit(client, train_for_ever, experiment)
    api = MlflowApi(MlflowServer(tracked))
    foreign = api.create_run(api.get_experiment_id(experiment), "of a person", {}, 1)
    submitting = {tags.NAME: deleted.name, tags.BACKEND: "local"}
    api.create_run(api.get_experiment_id(experiment), "of a submit that has no job yet", submitting, 2)
    other = {**submitting, tags.BACKEND: "kubernetes", tags.UID: "1", tags.NAMESPACE: "default", tags.PLACE: "2"}
    api.create_run(api.get_experiment_id(experiment), "of another backend", other, 3)
    client.flush_tracking(60)
    api.post("runs/update", run_id=client.get_run(deleted).id, status="SCHEDULED")  # As of a job that was suspended.
    api.close()
    client.backend.delete(deleted)

    end_run(client, deleted)

    runs = {run["name"]: run for run in read_runs()}
    client.cancel(active)
    assert runs.pop(deleted.name)["status"] == "KILLED"
    assert {run["status"] for run in runs.values()} == {"RUNNING"}
    assert foreign in [run["id"] for run in runs.values()]


def test_the_run_of_a_job_whose_folder_is_on_another_machine_stays(client, untracked, experiment, read_runs):
    ref = submit(client, fit, experiment)
    untracked.wait(ref)
    # Away at once: the supervisor still removes its reserve after the end of the job.
    shutil.move(client.config.home, f"{client.config.home}-elsewhere")

    assert end_run(client, ref) == []
    assert [run["status"] for run in read_runs()] == ["RUNNING"]


def test_a_job_is_deleted_only_where_its_cluster_does_not_have_it():
    with Cluster(namespaces=["training"]) as own, Cluster(namespaces=["training"]) as other:
        here, elsewhere = (
            TrainerClient(KubernetesBackendConfig(namespace="training", client_configuration=each.configuration()))
            for each in (own, other)
        )
        own.lives.set("digits", "runs")
        trainer = CustomTrainerContainer(image="registry.example/train:1.0")
        request = here.build_request(runtime="torch-distributed", trainer=trainer, options=[Name("digits")])
        ref = here.submit(request)
        run_tags = tags.build_job_tags(ref, here.backend.get_place(ref))
        of_an_earlier_release = tags.build_job_tags(ref, None)

        assert find_abandoned_outcome(here.backend, run_tags) is None
        here.delete_job(ref)
        assert find_abandoned_outcome(elsewhere.backend, run_tags) is None
        assert find_abandoned_outcome(here.backend, of_an_earlier_release) is None
        assert find_abandoned_outcome(here.backend, run_tags).diagnosis.category == "Deleted"


def test_secrets_are_masked_in_the_diagnosis_of_an_ended_run(untracked, experiment, read_runs):
    untracked.runs.redact = lambda text: text.replace("s3cr3t-word", "***")
    ref = submit(untracked, fail_with_a_password, experiment)
    untracked.wait(ref)

    assert end_run(untracked, ref) == ["FAILED"]
    (run,) = read_runs()
    assert "cannot log in with ***" in run["tags"]["trainjob.diagnosis"]


def test_a_server_that_goes_away_meanwhile_is_an_error_and_the_runs_are_ended_later(
    client, relay, experiment, read_runs, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", relay.uri)
    ref = submit(client, fit, experiment)
    client.flush_tracking(60)
    untracked = TrainerClient(client.config)
    untracked.runs.create_reporter = lambda ref: None
    untracked.wait(ref)
    relay.respond = lambda path: (503, {}, b"{}") if "runs/get" in path else None
    with pytest.raises(TrackingError, match="answers 503"):
        client.end_abandoned_runs()
    relay.respond = lambda path: None

    assert end_run(client, ref) == ["FINISHED"]
    assert [run["status"] for run in read_runs()] == ["FINISHED"]


def test_the_command_prints_the_runs_that_it_ended(client, untracked, experiment, capsys):
    ref = submit(client, fit, experiment)
    untracked.wait(ref)

    code = app.run(["--home", client.config.home, "reap"])

    assert code == 0
    assert f"run of {ref.name}: FINISHED http" in capsys.readouterr().out


def test_a_server_that_is_away_keeps_no_job_from_being_deleted(client, relay, experiment, capsys, monkeypatch):
    client.train(
        runtime="python", trainer=CustomTrainer(fit), options=[Name("fit"), Labels({KFP_RUN_LABEL: "deleted"})]
    )
    relay.respond = lambda path: (503, {}, b"{}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", relay.uri)

    code = app.run(["--home", client.config.home, "reap", "--alive", "another"])

    output = capsys.readouterr()
    assert (code, output.out) == (6, "fit\n")
    assert "answers 503" in output.err
