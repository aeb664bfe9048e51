"""`trainjob submit --code`: a function of a project, with the files of the project."""

from __future__ import annotations

import json
import os

import pytest


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project in a folder beside the working directory of the command."""
    folder = tmp_path / "project"
    (folder / "src/tides").mkdir(parents=True)
    (folder / "src/tides/train.py").write_text(
        "from tides.helpers import double\n\ndef main(x: int):\n    return double(x)\n"
    )
    (folder / "src/tides/helpers.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "requirements.txt").write_text("numpy==2.2.6\n")
    return folder


def test_the_folder_travels_and_its_size_is_printed(trainjob, project):
    done = trainjob("submit", "tides.train:main", "--code", str(project), "-a", "x=4", "--runtime", "python", "--wait")
    assert (done.returncode, done.stdout.split()[1:]) == (0, ["Complete", "8"])
    assert "trainjob: code: 3 files, 118 bytes" in done.stderr


def test_several_paths_travel_and_requirements_are_read(trainjob, project, monkeypatch):
    monkeypatch.chdir(project)
    arguments = ("tides.train:main", "--code", "src", "--code", "*.txt", "-r", "requirements.txt", "-a", "x=4")
    done = trainjob("render", *arguments, "--runtime", "python", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["environment"]["packages"] == ["numpy==2.2.6"]


def test_the_code_of_a_definition_is_relative_to_its_file(trainjob, project):
    definition = {"runtime": "python", "trainer": {"func": "tides.train:main", "func_args": {"x": 3}, "code": "."}}
    (project / "job.yaml").write_text(json.dumps(definition))
    done = trainjob("submit", "-f", str(project / "job.yaml"), "--wait")
    assert (done.returncode, done.stdout.split()[1:]) == (0, ["Complete", "6"])


def test_a_large_project_travels_through_the_given_place(trainjob, project):
    (project / "noise.bin").write_bytes(os.urandom(310_000))
    arguments = ("tides.train:main", "--code", str(project), "--code-uri", "file:///place", "-a", "x=4")
    done = trainjob("render", *arguments, "--runtime", "python", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["code"].startswith("file:///place/")


def test_the_packages_of_a_file_and_further_ones_are_installed(trainjob, project):
    (project / "requirements.txt").write_text("scipy==1.15.3 --hash=sha256:00\n")
    arguments = ("tides.train:main", "--code", str(project), "-r", "requirements.txt", "-p", "numpy", "-a", "x=4")
    done = trainjob("render", *arguments, "--runtime", "python", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["environment"]["packages"] == ["numpy", "scipy==1.15.3 --hash=sha256:00"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tides.train:mian", "--code", "."), "defines no mian"),
        (("tides.train:main", "--code", ".", "-a", "y=1"), "main has no parameter y; its parameters are x"),
        (("tides.train:main", "--code", "missing"), "does not exist"),
        (("--image", "x:1", "--code", "."), "--code cannot be used without a training function"),
        (("tides.train:main", "--code", ".", "--code-uri", "/place"), "code_uri must be s3://"),
        (("tides.train:main", "--code-uri", "s3://place"), "there is no code"),
        (("tides.train:main", "-r", "uv.lcok"), "--requirements takes a .txt, pyproject.toml or uv.lock, got uv.lcok"),
    ],
)
def test_what_cannot_be_submitted_is_refused_in_one_line(trainjob, project, monkeypatch, arguments, message):
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project / "src")
    done = trainjob("submit", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
