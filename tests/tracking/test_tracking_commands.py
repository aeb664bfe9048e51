"""The commands runs, promote and models; and the component promote with an MLflow server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer_core import CustomTrainer, Name, Tracking
from trainer_core.cli import app
from trainer_core.frontend import preflight


def fit_and_save():
    import trainer_core

    path = trainer_core.output_path() / "model.bin"
    path.write_bytes(b"weights")
    return {"accuracy": 0.9, "artifacts": {"model": path.as_uri()}}


@pytest.fixture
def run(client, capsys):
    def _run(*arguments):
        return app.run(["--home", client.config.home, *arguments]), capsys.readouterr()

    return _run


def train(client, experiment):
    request = client.build_request(
        runtime="python", trainer=CustomTrainer(fit_and_save), options=[Name("fit"), Tracking(experiment=experiment)]
    )
    client.wait(client.submit(request))


def test_a_job_is_promoted_to_the_server_with_its_run_and_its_files(client, run, tracked, experiment, ask, tmp_path):
    train(client, experiment)

    code, output = run("promote", "fit", "--model", experiment, "--metric", "accuracy", "-o", "json")
    _, listed = run("runs", "--experiment", experiment, "-o", "json")
    _, versions = run("models", experiment)

    downloaded = ask("download", uri=f"models:/{experiment}@champion", folder=str(tmp_path / "downloaded"))
    assert (code, json.loads(output.out)["promoted"]) == (0, True)
    assert [(each["job"], each["status"], each["metrics"]["accuracy"]) for each in json.loads(listed.out)] == [
        ("fit", "FINISHED", 0.9)
    ]
    assert "champion" in versions.out
    assert [path.read_bytes() for path in _list_files(downloaded)] == [b"weights"]


def _list_files(folder):
    return [path for path in Path(folder).rglob("*") if path.is_file()]


def test_a_job_is_promoted_to_a_folder_and_rolled_back(client, run, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    train(client, "none")
    registry = ("--registry", str(tmp_path / "registry"))

    code, promoted = run("promote", "fit", "--model", "digits", "--metric", "accuracy", *registry)
    _, names = run("models", *registry, "-o", "json")
    rolled_back = run("models", "digits", "--rollback", "fit", *registry)[0]
    refused, error = run("models", "digits", "--rollback", "other", *registry)
    unknown, reason = run("models", "digit", *registry)

    assert code == rolled_back == 0
    assert promoted.out.startswith("promoted: version fit of digits, accuracy 0.9 (no model before)")
    assert json.loads(names.out) == ["digits"]
    assert (refused, "its versions are fit" in error.err) == (2, True)
    assert (unknown, "the registry has no model 'digit'" in reason.err) == (2, True)


def test_runs_without_a_server_says_what_to_set(run, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    code, output = run("runs")

    assert (code, "set MLFLOW_TRACKING_URI" in output.err) == (2, True)


@pytest.mark.usefixtures("tracked")
def test_an_experiment_that_is_named_must_exist(run, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "none-yet")

    code, output = run("runs", "--experiment", "none")
    first_time, nothing = run("runs")

    assert (code, "MLflow has no experiment 'none'" in output.err) == (2, True)
    assert (first_time, nothing.out) == (0, "JOB  STATUS  STARTED  METRICS  URL\n")


def test_doctor_asks_the_server(run, tracked, monkeypatch):
    monkeypatch.setattr(preflight, "_TRACKING_SECONDS", 100.0)
    code, output = run("doctor", "-o", "json")

    check = json.loads(output.out)["checks"][-1]
    assert (code, check) == (0, {"what": "tracking", "state": "ok", "found": f"{tracked} answers", "cost": ""})


def test_a_job_whose_artifact_was_overwritten_is_refused_in_one_line(client, run, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    train(client, "none")
    uri = client.wait("fit").artifacts["model"]
    Path(uri.removeprefix("file://")).write_bytes(b"WEIGHTS")
    registry = ("--registry", str(tmp_path / "registry"))

    code, output = run("promote", "fit", "--model", "digits", "--metric", "accuracy", *registry)

    assert code == 2
    assert f"artifact 'model' of TrainJob 'fit': {uri} was written again after the TrainJob had ended" in output.err
    assert len(output.err.splitlines()) == 1
