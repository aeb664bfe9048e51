"""`trainjob migrate`: PyTorchJobs in YAML to TrainJobs in YAML, with differences as comments."""

from __future__ import annotations

import io

import pytest
import yaml

from trainer_core.cli.app import run

JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: job}
spec:
  runPolicy: {ttlSecondsAfterFinished: 60}
  pytorchReplicaSpecs:
    Master:
      template:
        spec:
          nodeSelector: {zone: a}
          containers: [{name: pytorch, image: train:1, command: [torchrun, train.py]}]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pytorchjob.yaml"
    path.write_text(JOB, encoding="utf-8")
    return str(path)


def test_the_runtime_comes_before_the_trainjob_that_needs_it(file, capsys):
    assert run(["migrate", file]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [document["kind"] for document in documents if document] == ["TrainingRuntime", "TrainJob"]


def test_comments_list_settings_that_cannot_be_converted(file, capsys):
    run(["migrate", file])
    comments = [line for line in capsys.readouterr().out.splitlines() if line.startswith("#")]
    assert comments[0] == "# Not converted:"
    assert comments[1].startswith("#   spec.runPolicy.ttlSecondsAfterFinished: TrainJobs have no TTL")


def test_strict_exits_with_2_if_a_setting_cannot_be_converted(file, capsys):
    assert run(["migrate", "--strict", file]) == 2
    assert "1 settings cannot be converted" in capsys.readouterr().err


def test_standard_input_is_converted(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(JOB))
    assert run(["migrate", "-"]) == 0
    assert "kind: TrainJob" in capsys.readouterr().out


def test_a_file_without_a_pytorchjob_is_rejected_in_one_line(tmp_path, capsys):
    path = tmp_path / "pod.yaml"
    path.write_text("{kind: Pod}", encoding="utf-8")
    assert run(["migrate", str(path)]) == 2
    assert capsys.readouterr().err == f"trainjob: {path} has no PyTorchJob (kubeflow.org/v1)\n"


def test_a_missing_file_is_rejected_in_one_line_with_a_remedy(tmp_path, capsys):
    path = tmp_path / "nowhere.yaml"
    assert run(["migrate", str(path)]) == 2
    message = (
        f"trainjob: {path} cannot be read: {path} does not exist; give the path of a YAML file, or - for standard "
    )
    assert capsys.readouterr().err == f"{message}input\n"


def test_an_invalid_pytorchjob_is_rejected_in_one_line(tmp_path, capsys):
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("{zone: a}", "1").replace("[{name: pytorch, image: train:1", "[1, {name: pytorch"))
    assert run(["migrate", str(path)]) == 2
    assert "PyTorchJob 'job' is not valid" in capsys.readouterr().err
